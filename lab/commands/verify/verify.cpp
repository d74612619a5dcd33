// `tessera verify`: checks every kernel on this machine against the oracle.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cuda/common/host/gpus.h"
#include "lab/commands/commands.h"
#include "lab/commands/options.h"
#include "lab/commands/verify/verification.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/terminal/progress.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab {
namespace {

struct VerifyOptions {
  std::vector<std::string> dtype, kernel, feature, name;
  std::string threads = "0", tolerance = "1", device;
  bool json = false, markdown = false;
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// The requested names out of the known ones, in upper or lower case; commas separate them where
// `lists` is set.
std::vector<std::string> pick(const std::string& option, const std::vector<std::string>& texts,
                              const std::vector<std::string>& known, bool lists) {
  std::vector<std::string> picked;
  for (const std::string& text : texts) {
    for (const std::string& word : lists ? split(text, ',') : std::vector<std::string>{text}) {
      const auto found = std::find_if(known.begin(), known.end(),
                                      [&](const std::string& name) { return lower(name) == lower(word); });
      if (found == known.end()) {
        throw UsageError(fmt::format("{} '{}': must be one of {}", option, word, fmt::join(known, ", ")));
      }
      if (std::find(picked.begin(), picked.end(), *found) == picked.end()) picked.push_back(*found);
    }
  }
  return picked;
}

std::vector<std::string> case_names(const std::vector<std::string>& features) {
  std::vector<std::string> names;
  for (const reference::CaseSpec& spec : reference::feature_matrix(DType::fp32)) {
    const bool wanted =
        features.empty() || std::find(features.begin(), features.end(), spec.feature) != features.end();
    if (wanted && std::find(names.begin(), names.end(), spec.name) == names.end()) names.push_back(spec.name);
  }
  return names;
}

Selection selection(const VerifyOptions& options) {
  Selection result;
  result.dtypes = parse_dtypes("--dtype", options.dtype);
  if (result.dtypes.empty()) result.dtypes = {DType::fp64, DType::fp32, DType::fp16, DType::bf16};
  if (!options.device.empty()) result.device = parse_device("--device", options.device);
  const std::vector<std::string> here = result.device ? kernel_names(result.device->type) : kernel_names();
  if (result.device && here.empty()) {
    const std::string reason = cuda::unusable(result.device->index);
    throw UsageError(fmt::format("--device '{}': {}", options.device,
                                 reason.empty() ? "has no kernels in this build" : reason));
  }
  result.kernels = pick("--kernel", options.kernel, here, true);
  if (result.kernels.empty()) result.kernels = here;
  result.features = pick("--feature", options.feature, feature_names(), true);
  result.cases = pick("--case", options.name, case_names(result.features), false);
  result.tolerance = parse_number("--tolerance", options.tolerance, {0, 1e6});
  result.execution.threads = static_cast<int>(parse_integer("--threads", options.threads, {0, 4096}));
  return result;
}

std::string summary(const Verification& verification, double seconds) {
  std::string text = fmt::format("{} passed, {} failed", verification.count(Outcome::passed),
                                 verification.count(Outcome::failed));
  if (const int unsupported = verification.count(Outcome::unsupported); unsupported > 0) {
    text += fmt::format(", {} not supported", unsupported);
  }
  return text + fmt::format(" in {} on {}\n", duration_text(seconds), machine_text());
}

int run_verify(const VerifyOptions& options) {
  if (options.json && options.markdown) {
    throw UsageError("--json and --markdown cannot be combined; give one of them");
  }
  const Selection chosen = selection(options);
  const auto begin = std::chrono::steady_clock::now();
  Verification verification;
  {
    Progress progress;
    verification = verify(chosen, [&](const std::string& what, double share) {
      progress.show("verifying " + what, share);
      return interrupted() == 0;
    });
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  // A run without any check is no success.
  const bool ok = verification.count(Outcome::failed) == 0 && verification.count(Outcome::passed) > 0;
  if (options.json) {
    print(verification_json(verification).dump(2, ' ', true) + "\n");
  } else if (options.markdown) {
    print(verification_markdown(verification));
  } else {
    const bool color = use_color(stdout);
    const std::string failures = failure_list(verification, chosen.tolerance);
    std::string text = verification_table(verification, color) + "\n";
    if (!failures.empty()) text += failures + "\n";
    text += unsupported_list(verification);
    text +=
        "\u2713 passed; the number is the largest error as a share of the tolerance. The tolerance is 1.5 "
        "times the\n"
        "error of a standard implementation in the same type (2 times for gradients), plus rounding.\n";
    text += colored(summary(verification, seconds), ok ? Color::green : Color::red, color);
    print(text);
  }
  if (!verification.complete) return report_interrupt("tessera verify");
  return ok ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& application, Action& action) {
  CLI::App* command = application.add_subcommand(
      "verify", "Check every kernel on this machine against the fp64 oracle, feature by feature");
  command->allow_extras();
  auto options = std::make_shared<VerifyOptions>();
  auto add_list = [&](const char* option, std::vector<std::string>& values, const char* text,
                      const char* description) {
    command->add_option(option, values, description)
        ->expected(1)
        ->take_all()
        ->option_text(text)
        ->group("Selection");
  };
  add_list("--dtype", options->dtype, "TYPE,...", "fp64, fp32, fp16, bf16 [all]");
  add_list("--kernel", options->kernel, "NAME,...", "Kernels, as tessera info names them [all]");
  command
      ->add_option("--device", options->device,
                   "Only the kernels of cpu, cuda or cuda:N [all, GPUs on cuda:0]")
      ->option_text("DEVICE")
      ->group("Selection");
  add_list("--feature", options->feature, "NAME,...", "Features, as the table names them [all]");
  add_list("--case", options->name, "NAME", "One case of a feature; may be repeated [all]");
  command->add_option("--threads", options->threads, "CPU threads; 0: all [0]")
      ->option_text("N")
      ->group("Selection");
  command
      ->add_option("--tolerance", options->tolerance,
                   "Multiply the tolerance; 0.01 shows what failures look like [1]")
      ->option_text("FACTOR")
      ->group("Selection");
  command->add_flag("--json", options->json, "Print one JSON object with every case instead")
      ->group("Output");
  command->add_flag("--markdown", options->markdown, "Print the support table as Markdown instead")
      ->group("Output");
  command->footer(
      "Exit code 0: everything passed. 1: something failed, and the list has a command that repeats it; or\n"
      "nothing could be checked.\n\n"
      "Examples:\n"
      "  tessera verify\n"
      "  tessera verify --dtype bf16 --feature causal,window\n"
      "  tessera verify --device cuda\n"
      "  tessera verify --markdown > support.md");
  command->callback([&action, options] { action = [options] { return run_verify(*options); }; });
}

}  // namespace tessera::lab
