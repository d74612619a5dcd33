// How a verification is shown: the table, Markdown, JSON, and the list of failures.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "lab/commands/verify/verification.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/units.h"
#include "tessera/version.h"

namespace tessera::lab {
namespace {

constexpr std::size_t kCellWidth = 7;
constexpr std::size_t kGap = 2;

// What became of a feature with one kernel in one type.
struct Cell {
  int passed = 0, failed = 0, unsupported = 0;
  double worst = 0;
};

// One column of the table.
struct Lane {
  std::string kernel;
  DType dtype;
  std::size_t width = kCellWidth;
  friend bool operator==(const Lane&, const Lane&) = default;
};

std::vector<Lane> lanes(const Verification& verification) {
  std::vector<Lane> all;
  std::vector<std::string> kernel_order;
  for (const CaseResult& result : verification.results) {
    const Lane lane{result.kernel, result.spec.dtype};
    if (std::find(all.begin(), all.end(), lane) == all.end()) all.push_back(lane);
    if (std::find(kernel_order.begin(), kernel_order.end(), lane.kernel) == kernel_order.end()) {
      kernel_order.push_back(lane.kernel);
    }
  }
  auto position = [&](const Lane& lane) {
    return std::find(kernel_order.begin(), kernel_order.end(), lane.kernel) - kernel_order.begin();
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Lane& a, const Lane& b) { return position(a) < position(b); });
  return all;
}

std::vector<std::string> features_of(const Verification& verification) {
  std::vector<std::string> features;
  for (const CaseResult& result : verification.results) {
    if (std::find(features.begin(), features.end(), result.spec.feature) == features.end()) {
      features.push_back(result.spec.feature);
    }
  }
  return features;
}

Cell cell(const Verification& verification, const std::string& feature, const Lane& lane) {
  Cell sum;
  for (const CaseResult& result : verification.results) {
    if (result.spec.feature != feature || result.kernel != lane.kernel || result.spec.dtype != lane.dtype)
      continue;
    if (result.outcome == Outcome::passed) ++sum.passed;
    if (result.outcome == Outcome::failed) ++sum.failed;
    if (result.outcome == Outcome::unsupported) ++sum.unsupported;
    sum.worst = std::max(sum.worst, result.worst);
  }
  return sum;
}

std::string cell_text(const Cell& c, std::size_t width, bool color) {
  if (c.failed > 0) return colored(pad("FAIL", width, Justify::left), Color::red, color);
  if (c.passed == 0) return pad(c.unsupported > 0 ? "-" : "", width, Justify::left);
  return colored("\u2713", Color::green, color) +
         pad(fmt::format(" {:.2f}", c.worst), width - 1, Justify::left);
}

// The lanes that share a line, beginning with the first of `rest`: wide enough for the kernels'
// names above them, and as many as fit.
std::vector<Lane> next_group(std::span<const Lane> rest, std::size_t label_width) {
  std::vector<Lane> group;
  for (std::size_t total = label_width; group.size() < rest.size();) {
    Lane lane = rest[group.size()];
    // A name reaches over the lanes of its kernel; the first one makes up for what they lack
    // together.
    const bool first = group.empty() || group.back().kernel != lane.kernel;
    const auto lanes_of_kernel = static_cast<std::size_t>(std::count_if(
        rest.begin(), rest.end(), [&](const Lane& other) { return other.kernel == lane.kernel; }));
    const std::size_t reach = lanes_of_kernel * (kCellWidth + kGap) - kGap;
    const std::size_t name_width = display_width(lane.kernel);
    if (first && name_width > reach) lane.width += name_width - reach;
    total += kGap + lane.width;
    if (!group.empty() && total > line_width()) break;
    group.push_back(lane);
  }
  return group;
}

// The kernels' names above the types they were run with.
std::string kernel_line(const std::vector<Lane>& group, std::size_t label_width) {
  std::string line;
  std::string previous;
  std::size_t column = label_width;
  for (const Lane& lane : group) {
    if (lane.kernel != previous) line = pad(line, column + kGap, Justify::left) + lane.kernel;
    previous = lane.kernel;
    column += kGap + lane.width;
  }
  return line + "\n";
}

std::string tensor_text(const reference::TensorError& tensor, double tolerance) {
  return fmt::format("{}: error {} of {} allowed (standard: {}), rmse {} (standard: {}), cosine {:.6f}",
                     tensor.tensor, error_text(tensor.error), error_text(tensor.allowed * tolerance),
                     error_text(tensor.model_error), error_text(tensor.rmse), error_text(tensor.model_rmse),
                     tensor.cosine);
}

std::string quoted(const std::string& text) {
  const bool plain = text.find_first_of(" !,:'=") == std::string::npos;
  return plain ? text : "'" + text + "'";
}

}  // namespace

std::string verification_table(const Verification& verification, bool color) {
  const std::vector<std::string> features = features_of(verification);
  const std::vector<Lane> all = lanes(verification);
  std::size_t label_width = 7;
  for (const std::string& feature : features) label_width = std::max(label_width, display_width(feature));

  std::string text;
  for (std::span<const Lane> rest = all; !rest.empty();) {
    const std::vector<Lane> group = next_group(rest, label_width);
    rest = rest.subspan(group.size());
    std::vector<Column> columns = {{"feature", label_width, Justify::left}};
    for (const Lane& lane : group) columns.push_back({name(lane.dtype), lane.width, Justify::left});
    const Table table(columns);
    text += (text.empty() ? "" : "\n") + kernel_line(group, label_width) + table.header();
    for (const std::string& feature : features) {
      std::vector<std::string> cells = {feature};
      for (const Lane& lane : group) {
        cells.push_back(cell_text(cell(verification, feature, lane), lane.width, color));
      }
      text += table.row(cells);
    }
  }
  return text;
}

std::string verification_markdown(const Verification& verification) {
  const std::vector<Lane> all = lanes(verification);
  std::vector<Column> columns = {{"feature", 0, Justify::left}};
  for (const Lane& lane : all) {
    columns.push_back({fmt::format("`{}` {}", lane.kernel, name(lane.dtype)), 0, Justify::left});
  }
  std::vector<std::vector<std::string>> rows;
  for (const std::string& feature : features_of(verification)) {
    std::vector<std::string> cells = {feature};
    for (const Lane& lane : all) {
      const Cell c = cell(verification, feature, lane);
      cells.emplace_back(c.failed > 0 ? "\u2717" : c.passed > 0 ? "\u2713" : "\u2013");
    }
    rows.push_back(std::move(cells));
  }
  return render_markdown(columns, rows);
}

nlohmann::ordered_json verification_json(const Verification& verification) {
  using Json = nlohmann::ordered_json;
  Json cases = Json::array();
  for (const CaseResult& result : verification.results) {
    Json tensors = Json::array();
    for (const reference::TensorError& tensor : result.tensors) {
      tensors.push_back({{"tensor", tensor.tensor},
                         {"ok", tensor.ok},
                         {"error", tensor.error},
                         {"allowed", tensor.allowed},
                         {"standard_error", tensor.model_error},
                         {"rmse", tensor.rmse},
                         {"standard_rmse", tensor.model_rmse},
                         {"cosine", tensor.cosine}});
    }
    cases.push_back({{"feature", result.spec.feature},
                     {"case", result.spec.name},
                     {"dtype", name(result.spec.dtype)},
                     {"kernel", result.kernel},
                     {"status", name(result.outcome)},
                     {"reason", result.reason.empty() ? Json(nullptr) : Json(result.reason)},
                     {"worst_share_of_allowed", result.worst},
                     {"seconds", result.seconds},
                     {"tensors", tensors}});
  }
  const int passed = verification.count(Outcome::passed);
  const int failed = verification.count(Outcome::failed);
  return {{"version", version()},
          {"machine", machine_text()},
          {"ok", failed == 0 && passed > 0 && verification.complete},
          {"complete", verification.complete},
          {"passed", passed},
          {"failed", failed},
          {"unsupported", verification.count(Outcome::unsupported)},
          {"cases", cases}};
}

std::string unsupported_list(const Verification& verification) {
  std::vector<std::string> lines;
  for (const CaseResult& result : verification.results) {
    if (result.outcome != Outcome::unsupported) continue;
    std::string line = fmt::format("- {}: {}", result.kernel, result.reason);
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
  }
  std::string text;
  for (const std::string& line : lines) text += wrap(line, line_width(), 2) + "\n";
  return text;
}

std::string failure_list(const Verification& verification, double tolerance) {
  constexpr int kMostListed = 20;
  std::string text;
  int listed = 0;
  for (const CaseResult& result : verification.results) {
    if (result.outcome != Outcome::failed) continue;
    if (++listed > kMostListed) continue;
    text += fmt::format("FAIL {} {} {}: {}\n", result.kernel, name(result.spec.dtype), result.spec.feature,
                        result.spec.name);
    text += "  " + wrap(result.reason, line_width(), 2) + "\n";
    for (const reference::TensorError& tensor : result.tensors) {
      const bool over = tensor.error > tensor.allowed * tolerance;
      if (over || !tensor.ok) text += "  " + wrap(tensor_text(tensor, tolerance), line_width(), 4) + "\n";
    }
    text += "  case: " + wrap(reference::describe(result.spec), line_width(), 8) + "\n";
    text += fmt::format("  again: tessera verify --kernel {} --dtype {} --feature {} --case {}{}\n",
                        result.kernel, name(result.spec.dtype), quoted(result.spec.feature),
                        quoted(result.spec.name),
                        tolerance != 1 ? fmt::format(" --tolerance {}", tolerance) : "");
  }
  if (listed > kMostListed) {
    text += fmt::format("... and {} more; --json has all of them\n", listed - kMostListed);
  }
  return text;
}

}  // namespace tessera::lab
