// `tessera info`: the build, the devices and their kernels.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/commands/commands.h"
#include "lab/commands/options.h"
#include "lab/commands/parse.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/measure/machine/surroundings.h"
#include "lab/measure/results.h"
#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"
#include "tessera/plan.h"
#include "tessera/version.h"

namespace tessera::lab {
namespace {

using Json = nlohmann::ordered_json;

Json surroundings_json(Device device) {
  const Surroundings& around = surroundings(device);
  auto text = [](const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); };
  return {{"driver", text(around.driver)},
          {"cuda", text(around.cuda)},
          {"libraries", text(around.libraries)},
          {"governor", text(around.governor)},
          {"usable_cpus", around.usable_cpus}};
}

Json info_json() {
  Json build = Json::array(), device_list = Json::array(), kernel_list = Json::array();
  for (const std::string& line : split(build_info(), '\n')) {
    if (!line.empty()) build.push_back(line);
  }
  for (const DeviceInfo& device : devices()) {
    device_list.push_back(
        {{"device", to_string(device.device)}, {"name", device.name}, {"description", device.description}});
  }
  for (const KernelInfo& kernel : kernels()) {
    kernel_list.push_back({{"name", kernel.name},
                           {"algorithm", name(kernel.algorithm)},
                           {"direction", name(kernel.direction)},
                           {"device", kernel.device == DeviceType::cpu ? "cpu" : "cuda"},
                           {"features", kernel.features},
                           {"missing", kernel.missing}});
  }
  return {{"version", version()},
          {"commit", commit_text()},
          {"machine", machine_text()},
          {"available_memory_bytes", available_memory()},
          {"surroundings",
           {{"cpu", surroundings_json(Device::cpu())}, {"cuda", surroundings_json(Device::cuda())}}},
          {"build", build},
          {"devices", device_list},
          {"kernels", kernel_list}};
}

// Every feature that some kernel has or misses, in the order of the library.
std::vector<std::string> features_of(const std::vector<KernelInfo>& all) {
  std::vector<std::string> features;
  auto add = [&](const std::vector<std::string>& more) {
    for (const std::string& feature : more) {
      if (std::find(features.begin(), features.end(), feature) == features.end()) features.push_back(feature);
    }
  };
  for (const KernelInfo& kernel : all) add(kernel.features);
  for (const KernelInfo& kernel : all) add(kernel.missing);
  return features;
}

// Kernels are columns; those that exceed the width go into a further table.
std::string kernel_tables(const std::vector<KernelInfo>& all) {
  const std::vector<std::string> features = features_of(all);
  std::size_t label_width = 0;
  for (const std::string& feature : features) label_width = std::max(label_width, display_width(feature));

  std::string text;
  for (std::size_t begin = 0; begin < all.size();) {
    std::vector<Column> columns = {{"", label_width, Justify::left}};
    std::vector<std::vector<std::string>> rows(features.size() + 1);
    rows[0] = {"direction"};
    for (std::size_t f = 0; f < features.size(); ++f) rows[f + 1] = {features[f]};
    std::size_t end = begin;
    for (std::size_t width = label_width; end < all.size(); ++end) {
      const KernelInfo& kernel = all[end];
      const std::size_t needed = 2 + std::max<std::size_t>(display_width(kernel.name), 8);
      if (end > begin && width + needed > line_width()) break;
      width += needed;
      columns.push_back({kernel.name, 8, Justify::left});
      rows[0].emplace_back(name(kernel.direction));
      for (std::size_t f = 0; f < features.size(); ++f) {
        const bool has =
            std::find(kernel.features.begin(), kernel.features.end(), features[f]) != kernel.features.end();
        rows[f + 1].emplace_back(has ? "\u2713" : "-");
      }
    }
    text += (text.empty() ? "" : "\n") + render(columns, rows);
    begin = end;
  }
  return text.empty() ? "none\n" : text;
}

int run_info(bool json) {
  if (json) {
    print(info_json().dump(2, ' ', true) + "\n");
    return 0;
  }
  const bool color = use_color(stdout);
  auto heading = [&](const char* text) { return "\n" + colored(text, Color::bold, color) + "\n"; };
  std::string text = fmt::format("tessera {} ({})\n", version(), commit_text());
  text += heading("Build");
  for (const std::string& line : split(build_info(), '\n')) {
    if (!line.empty()) text += "  " + wrap(line, line_width(), 2) + "\n";
  }
  text += heading("Machine");
  text += "  " + wrap(machine_text(), line_width(), 2) + "\n";
  text += fmt::format("  {} of memory available\n", bytes_text(static_cast<double>(available_memory())));
  for (const DeviceInfo& device : devices()) {
    text += fmt::format("  {}: {}\n", to_string(device.device), device.name);
    for (const std::string& line : split(device.description, '\n')) {
      if (!line.empty()) text += "    " + wrap(line, line_width(), 4) + "\n";
    }
  }
  text += heading("Kernels, preferred ones first, and their features");
  text += kernel_tables(kernels());
  print(text);
  return 0;
}

}  // namespace

void add_info(CLI::App& application, Action& action) {
  CLI::App* command = application.add_subcommand(
      "info", "Show version, build, CPU, GPUs, and the kernels with their features");
  command->allow_extras();
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object instead")->group("Output");
  command->footer(
      "Examples:\n"
      "  tessera info\n"
      "  tessera info --json");
  command->callback([&action, json] { action = [json] { return run_info(*json); }; });
}

}  // namespace tessera::lab
