// Answers of the experiments that train models or call other libraries.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lab/report/figure/fields.h"
#include "lab/report/figure/marks.h"
#include "lab/report/words/evidence.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

std::vector<double> values_of(const Evidence& evidence, const std::string& field) {
  std::vector<double> values;
  for (const json* row : evidence.measured().rows()) {
    if (const auto value = number_of(*row, field)) values.push_back(*value);
  }
  return values;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// "saves 38 % of the time and 75 % of the peak memory", "takes 12 % longer and saves …"
std::string saved_text(double time, double memory) {
  const std::string first = time >= 0 ? fmt::format("saves {:.0f} % of the time", time)
                                      : fmt::format("takes {:.0f} % longer", -time);
  if (memory < 0) return fmt::format("{} and needs {:.0f} % more peak memory", first, -memory);
  return fmt::format("{} and {}{:.0f} % of the peak memory", first, time >= 0 ? "" : "saves ", memory);
}

}  // namespace

Answer training_answer(const Evidence& all) {
  const Evidence flash = all.with({{"algorithm", "flash"}}), standard = all.with({{"algorithm", "standard"}});
  const std::vector<double> time = values_of(flash, "time_saved_percent");
  const std::vector<double> memory = values_of(flash, "memory_saved_percent");
  const std::size_t fits = flash.measured().rows().size(), tried = flash.rows().size();
  const std::size_t fits_standard = standard.measured().rows().size();
  Answer answer;
  const std::string fitting =
      fmt::format("{} of {} with flash attention and {} of {} with standard attention", fits,
                  counted(tried, "model"), fits_standard, standard.rows().size());
  if (time.empty() || memory.empty()) {
    answer.sentence =
        tried == 0
            ? ""
            : fmt::format("No point fits with both, so there is no saving to compare; {} fit.", fitting);
    return answer;
  }
  const std::string saved =
      fmt::format("Flash attention {} on average over {} that fit with both",
                  saved_text(mean_of(time), mean_of(memory)), counted(time.size(), "model"));
  answer.sentence = fmt::format("{}; {} fit.", saved, fitting);
  SmallChart chart{.bars = true, .log = false, .curves = {}};
  chart.curves = {small_bar("standard", 100), small_bar("flash", 100 - mean_of(memory), 1)};
  answer.findings.push_back({"training", fmt::format("{:.0f} %", mean_of(memory)), saved + ".", chart});
  return answer;
}

Answer gpt_answer(const Evidence& all) {
  // The last step of each attention, of the first model that both standard and flash trained.
  std::map<std::string, const json*> last;
  std::string preset;
  for (const json* row : all.measured().rows()) {
    const std::string name = value_text(field_value(*row, "algorithm"));
    if (!number_of(*row, "loss")) continue;
    if (preset.empty()) preset = value_text(field_value(*row, "preset"));
    if (value_text(field_value(*row, "preset")) != preset) continue;
    const json*& one = last[name];
    if (one == nullptr || number_of(*row, "step") >= number_of(*one, "step")) one = row;
  }
  Answer answer;
  if (!last.contains("standard") || !last.contains("flash")) return answer;
  const json &standard = *last["standard"], &flash = *last["flash"];
  const double a = *number_of(standard, "loss"), b = *number_of(flash, "loss");
  const std::string steps = fmt::format("After {:.0f} steps", number_of(flash, "step").value_or(0));
  const std::string losses =
      fmt::format("the losses are {:.4f} with flash and {:.4f} with standard, {} apart", b, a,
                  significant(std::fabs(a - b), 2));
  const auto fast = number_of(flash, "tokens_per_second"), slow = number_of(standard, "tokens_per_second");
  answer.sentence = fmt::format("{} {}", steps, losses);
  if (fast && slow && *slow > 0) {
    answer.sentence += alike(*fast, *slow)
                           ? ", and both train as fast"
                           : fmt::format(", and flash trains {} as fast", times(*fast / *slow));
    SmallChart chart{.bars = true, .log = false, .curves = {}};
    std::size_t place = 0;
    for (const auto& [name, row] : last) {
      if (const auto rate = number_of(*row, "tokens_per_second"))
        chart.curves.push_back(small_bar(name, *rate, place++));
    }
    answer.findings.push_back({"gpt", alike(*fast, *slow) ? "1×" : significant(*fast / *slow, 2) + "×",
                               answer.sentence + ".", chart});
  }
  answer.sentence += ".";
  return answer;
}

Answer peers_answer(const Evidence& all) {
  Answer answer;
  std::vector<std::string> parts;
  std::size_t unclear = 0, points = 0;
  for (const std::string direction : {"forward", "backward"}) {
    const Evidence own = all.with({{"direction", direction}}).measured();
    std::vector<std::string> point;
    for (const Field& known : fields()) {
      if (known.role == Role::key && known.name != "algorithm") point.push_back(known.name);
    }
    std::vector<double> speeds;
    std::map<std::string, std::size_t> best_names;
    for (const json* row : own.with({{"algorithm", "tessera"}}).rows()) {
      const auto mine = measured_mark(*row, "median_ms");
      const json* best = nullptr;
      for (const json* other : own.rows()) {
        if (value_text((*other)["algorithm"]) == "tessera" || key_of(*other, point) != key_of(*row, point))
          continue;
        if (!number_of(*other, "median_ms")) continue;
        if (best == nullptr || *number_of(*other, "median_ms") < *number_of(*best, "median_ms")) best = other;
      }
      if (!mine || best == nullptr) continue;
      const auto theirs = measured_mark(*best, "median_ms");
      speeds.push_back(*theirs->y / *mine->y);
      ++best_names[value_text((*best)["algorithm"])];
      if (compare(*mine, *theirs) == Verdict::unclear) ++unclear;
    }
    if (speeds.empty()) continue;
    points += speeds.size();
    const std::string median = significant(median_of(speeds), 2) + " times";
    parts.push_back(fmt::format(
        "{} {} ({} over {})", parts.empty() ? median + " as fast as the fastest backend of PyTorch" : median,
        direction, range_text(speeds), counted(speeds.size(), "point")));
    if (answer.findings.empty()) {
      SmallChart chart{.bars = false, .log = true, .curves = {}};
      for (const auto& [name, count] : best_names)
        chart.curves.push_back(small_curve(own, name, "q_length", "median_ms"));
      chart.curves.push_back(small_curve(own, "tessera", "q_length", "median_ms"));
      answer.findings.push_back({"peers", significant(median_of(speeds), 2) + "×", "", chart});
    }
  }
  if (parts.empty()) return answer;
  answer.sentence = fmt::format("At the median, Tessera is {}", listed(parts));
  if (unclear > 0)
    answer.sentence += fmt::format("; no difference is found at {} of {}", unclear, counted(points, "point"));
  answer.sentence += ".";
  answer.findings.front().sentence = answer.sentence;
  return answer;
}

}  // namespace tessera::lab::report
