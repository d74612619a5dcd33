#include "lab/report/words/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "lab/report/figure/fields.h"
#include "lab/report/figure/marks.h"
#include "lab/report/words/evidence.h"
#include "lab/report/words/reading.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

constexpr std::size_t kFindings = 5;
constexpr double kNearBest = 1.1;  // "within 10 % of the best"

SmallChart curves(const Evidence& evidence, const std::vector<std::string>& methods, const std::string& x,
                  const std::string& y, bool log = true) {
  SmallChart chart{.bars = false, .log = log, .curves = {}};
  for (const std::string& method : methods) chart.curves.push_back(small_curve(evidence, method, x, y));
  return chart;
}

// The first place from which on `holds` is true of all pairs; the number of pairs where there is
// none.
template <typename Holds>
std::size_t since(const std::vector<RowPair>& pairs, Holds&& holds) {
  std::size_t first = pairs.size();
  while (first > 0 && holds(pairs[first - 1])) --first;
  return first;
}

bool faster(const RowPair& pair) { return pair.verdict() == Verdict::less; }

std::vector<double> speeds_of(const std::vector<RowPair>& pairs, std::size_t first = 0) {
  std::vector<double> speeds;
  for (std::size_t i = first; i < pairs.size(); ++i) speeds.push_back(1 / pairs[i].ratio());
  return speeds;
}

// "flash2 is faster than standard at every N measured (1.5 to 1.7 times as fast)"
std::string speed_words(const std::string& mine, const std::string& base, const std::vector<RowPair>& pairs,
                        const std::string& x) {
  const std::size_t first = since(pairs, faster);
  if (first < pairs.size()) {
    const std::string from = first == 0 ? fmt::format("at every {} measured", quantity_of(x, "", 0).symbol)
                                        : fmt::format("from {} on", place_of(*pairs[first].a, x));
    return fmt::format("{} is faster than {} {} ({} times as fast)", mine, base, from,
                       range_text(speeds_of(pairs, first)));
  }
  const RowPair& last = pairs.back();
  const std::string place = place_of(*last.a, x);
  if (last.verdict() == Verdict::unclear)
    return fmt::format("no difference in time is found between {} and {} at {}", mine, base, place);
  if (last.verdict() == Verdict::alike)
    return fmt::format("{} is as fast as {} within 5 % at {}", mine, base, place);
  return fmt::format("{} is slower than {} at {} ({} times as slow)", mine, base, place,
                     significant(last.ratio(), 2));
}

// "needs 1/120 of the extra memory of standard": of two amounts.
std::string memory_words(const RowPair& pair, const std::string& base) {
  const std::string mine = text_of("peak_extra_bytes", *pair.value.y),
                    other = text_of("peak_extra_bytes", *pair.base.y);
  if (*pair.value.y <= 0 || *pair.base.y <= 0 || alike(*pair.value.y, *pair.base.y))
    return fmt::format("needs {} of extra memory where {} needs {}", mine, base, other);
  return pair.ratio() < 1
             ? fmt::format("needs {} of extra memory where {} needs {}, {} as much", mine, base, other,
                           times(1 / pair.ratio()))
             : fmt::format("needs {} of extra memory, {} as much as {}", mine, times(pair.ratio()), base);
}

Answer sequence(const Evidence& all) {
  const Evidence forward = all.with({{"direction", "forward"}});
  const std::string ours = all.ours();
  const auto times_of = forward.pairs("algorithm", ours, "standard", "median_ms", "q_length");
  const auto memory = forward.pairs("algorithm", ours, "standard", "peak_extra_bytes", "q_length");
  if (times_of.empty() || memory.empty()) return {};
  const std::string speed = speed_words(ours, "standard", times_of, "q_length");
  const std::string place = place_of(*memory.back().a, "q_length");
  Answer answer{
      fmt::format("Forward, {}; at {} {} {}.", speed, place, ours, memory_words(memory.back(), "standard")),
      {}};
  const std::size_t first = since(times_of, faster);
  answer.findings.push_back(
      {"sequence", first < times_of.size() ? significant(1 / times_of.back().ratio(), 2) + "×" : "1×",
       fmt::format("Forward, {}.", speed), curves(forward, {"standard", ours}, "q_length", "median_ms")});
  if (first == times_of.size() && times_of.back().verdict() == Verdict::more)
    answer.findings.back().number = significant(1 / times_of.back().ratio(), 2) + "×";
  const RowPair& most = memory.back();
  const std::string number = *most.value.y > 0 ? significant(*most.base.y / *most.value.y, 2) + "×" : "0 B";
  answer.findings.push_back({"sequence", number,
                             fmt::format("At {}, {} {}.", place, ours, memory_words(most, "standard")),
                             curves(forward, {"standard", ours}, "q_length", "peak_extra_bytes")});
  return answer;
}

Answer batch(const Evidence& all) {
  const std::string ours = all.ours();
  const Evidence own = all.with({{"algorithm", ours}});
  const auto [axis, series] = own.curve("batch", "median_ms");
  const auto growth = growth_of(axis, series);
  const std::string text = growth_text(axis, series);
  std::string linear =
      fmt::format("These measurements do not settle whether the time of {} is linear in the batch", ours);
  if (growth && !text.empty()) {
    const bool is_linear = std::fabs(growth->exponent - 1) <= std::max(growth->uncertainty, 0.05);
    linear = fmt::format("The time of {} is {} in the batch ({})", ours, is_linear ? "linear" : "not linear",
                         text);
  }
  const auto [places, rates] = own.curve("batch", "tflops");
  double best = 0;
  for (const Mark& mark : rates.marks) best = std::max(best, *mark.y);
  std::string busy;
  for (auto mark = rates.marks.rbegin(); mark != rates.marks.rend() && *mark->y * kNearBest >= best; ++mark) {
    busy = places.labels[mark->x];
  }
  if (axis.values.empty() || busy.empty()) return {};
  Answer answer{fmt::format("{}, and from batch {} on its rate stays within 10 % of the highest ({}).",
                            linear, busy, text_of("tflops", best)),
                {}};
  answer.findings.push_back({"batch", "batch " + busy, answer.sentence,
                             curves(all, {"standard", ours}, "batch", "median_ms", false)});
  return answer;
}

Answer causal(const Evidence& all) {
  const std::string ours = all.ours();
  auto last_of = [&](const std::string& method) {
    const auto pairs =
        all.with({{"algorithm", method}}).pairs("mask", "causal", "full", "median_ms", "q_length");
    return pairs.empty() ? std::nullopt : std::optional(pairs.back());
  };
  const auto mine = last_of(ours), standard = last_of("standard");
  if (!mine) return {};
  const double share = 100 * mine->ratio();
  const std::string place = place_of(*mine->a, "q_length");
  const double low = 100 * mine->value.low / mine->base.high, high = 100 * mine->value.high / mine->base.low;
  const char* answer_word = mine->verdict() == Verdict::unclear ? "Not found here"
                            : high < 65                         ? "Yes"
                            : share < 60                        ? "Perhaps"
                            : share < 90                        ? "In part"
                                                                : "No";
  std::string text = fmt::format("{}: at {} a causal mask takes {:.0f} % of the unmasked time with {}",
                                 answer_word, place, share, ours);
  if (high - low > 10) text += fmt::format(" (the quartiles allow {:.0f} to {:.0f} %)", low, high);
  if (standard) text += fmt::format(" and {:.0f} % with standard", 100 * standard->ratio());
  Answer answer{text + ".", {}};
  SmallChart chart{.bars = true, .log = false, .curves = {}};
  if (standard) chart.curves.push_back(small_bar("standard", 100 * standard->ratio()));
  chart.curves.push_back(small_bar(ours, share, 1));
  answer.findings.push_back({"causal", fmt::format("{:.0f} %", share), answer.sentence, chart});
  return answer;
}

// The fastest and the slowest place along a setting at which the work stays the same.
Answer extremes(const Evidence& all, const std::string& x, const std::string& field,
                const std::string& what) {
  const std::string ours = all.ours();
  const auto [axis, series] = all.with({{"algorithm", ours}}).curve(x, field);
  if (series.marks.size() < 2) return {};
  const bool rate = field == "tflops";
  auto less = [](const Mark& a, const Mark& b) { return *a.y < *b.y; };
  const auto [low, high] = std::minmax_element(series.marks.begin(), series.marks.end(), less);
  const Mark &best = rate ? *high : *low, &worst = rate ? *low : *high;
  if (compare(best, worst) == Verdict::unclear)
    return {
        fmt::format("No difference is found for {}: {} from {} to {} for {}.", what,
                    quantity_of(field, "", 0).label, text_of(field, *low->y), text_of(field, *high->y), ours),
        {}};
  const double factor = *high->y / *low->y;
  return {fmt::format("{} is fastest {} ({}) and slowest {} ({}), a factor of {}.", ours, at(axis, best.x),
                      text_of(field, *best.y), at(axis, worst.x), text_of(field, *worst.y),
                      significant(factor, 2)),
          {}};
}

Answer embedding(const Evidence& all) {
  const std::string ours = all.ours();
  std::vector<std::string> parts;
  for (const auto& [field, what] :
       {std::pair{"median_ms", "time"}, std::pair{"peak_extra_bytes", "extra memory"}}) {
    const auto [axis, series] = all.with({{"algorithm", ours}}).curve("embedding", field);
    const std::string text = growth_text(axis, series);
    if (!text.empty()) parts.push_back(fmt::format("{} follows {}", what, text));
  }
  if (!parts.empty()) return {fmt::format("With {}, {}.", ours, listed(parts)), {}};
  return extremes(all, "embedding", "tflops", "the width");
}

Answer direction(const Evidence& all) {
  const std::string ours = all.ours();
  std::vector<double> ratios;
  const Evidence own = all.with({{"algorithm", ours}});
  for (const RowPair& pair : own.pairs("direction", "backward", "forward", "median_ms", "q_length"))
    ratios.push_back(pair.ratio());
  if (ratios.empty()) return {};
  Answer answer{
      fmt::format("With {}, backward takes {} times as long as forward, with a median of {} over {}.", ours,
                  range_text(ratios), significant(median_of(ratios), 2), counted(ratios.size(), "point")),
      {}};
  const auto pairs = own.pairs("direction", "backward", "forward", "median_ms", "q_length");
  SmallChart chart{.bars = true, .log = false, .curves = {}};
  chart.curves = {small_bar("forward", *pairs.back().base.y, 0),
                  small_bar("backward", *pairs.back().value.y, 1)};
  answer.findings.push_back({"direction", significant(median_of(ratios), 2) + "×", answer.sentence, chart});
  return answer;
}

Answer highest(const Evidence& all) {
  const json* best = nullptr;
  for (const json* row : all.measured().rows()) {
    const auto rate = number_of(*row, "tflops");
    if (rate && (best == nullptr || *rate > *number_of(*best, "tflops"))) best = row;
  }
  if (best == nullptr) return {};
  return {fmt::format("The highest median rate is {} with {} at {} and {}.",
                      text_of("tflops", *number_of(*best, "tflops")), value_text((*best)["algorithm"]),
                      place_of(*best, "batch"), place_of(*best, "q_length")),
          {}};
}

// "Forward, flash2 reaches 171 GFLOP/s and standard 119 GFLOP/s; backward, …"
Answer summary(const Evidence& all) {
  std::vector<std::string> parts;
  for (const std::string direction : {"forward", "backward"}) {
    std::vector<std::pair<double, std::string>> rates;
    for (const json* row : all.with({{"direction", direction}}).measured().rows()) {
      if (const auto rate = number_of(*row, "tflops"))
        rates.emplace_back(*rate, value_text((*row)["algorithm"]));
    }
    std::sort(rates.rbegin(), rates.rend());
    std::vector<std::string> one;
    for (const auto& [rate, name] : rates)
      one.push_back(fmt::format("{}{} {}", name, one.empty() ? " reaches" : "", text_of("tflops", rate)));
    if (!one.empty()) parts.push_back(fmt::format("{}, {}", direction, listed(one)));
  }
  return {parts.empty() ? "" : capitalised(fmt::format("{}.", fmt::join(parts, "; "))), {}};
}

Answer traffic(const Evidence& all) {
  const Evidence forward = all.with({{"direction", "forward"}});
  const std::string ours = all.ours();
  const auto time = forward.pairs("algorithm", ours, "standard", "median_ms", "q_length");
  auto bytes = forward.pairs("algorithm", ours, "standard", "measured_traffic_bytes", "q_length");
  const char* how = bytes.empty() ? "predicted" : "measured";
  if (bytes.empty())
    bytes = forward.pairs("algorithm", ours, "standard", "predicted_traffic_bytes", "q_length");
  if (time.empty() || bytes.empty()) return {};
  const RowPair &t = time.back(), &b = bytes.back();
  const bool both = faster(t) && b.ratio() < 0.95;
  const std::string speed = faster(t)                         ? times(1 / t.ratio()) + " as fast"
                            : t.verdict() == Verdict::unclear ? "not found to differ in time from standard"
                                                              : "no faster than standard";
  Answer answer{fmt::format("{}: forward, {} has {} the {} traffic of standard ({} against {}) and is {}.",
                            both ? "It moves less and is faster" : "It is not both here", ours,
                            b.ratio() < 1 ? "1/" + significant(1 / b.ratio(), 2) + " of" : times(b.ratio()),
                            how, text_of("predicted_traffic_bytes", *b.value.y),
                            text_of("predicted_traffic_bytes", *b.base.y), speed),
                {}};
  SmallChart chart{.bars = true, .log = false, .curves = {}};
  chart.curves = {small_bar("standard", *b.base.y), small_bar(ours, *b.value.y, 1)};
  answer.findings.push_back({"traffic", significant(1 / b.ratio(), 2) + "×", answer.sentence, chart});
  return answer;
}

Answer block_size(const Evidence& all) {
  const auto [axis, series] = all.curve("requested_block_k", "median_ms");
  if (series.marks.empty()) return {};
  if (series.marks.size() == 1)
    return {fmt::format("Only one tile size runs on this device ({}), so there is no curve.",
                        at(axis, series.marks[0].x)),
            {}};
  const Mark& best = *std::min_element(series.marks.begin(), series.marks.end(),
                                       [](const Mark& a, const Mark& b) { return *a.y < *b.y; });
  const Mark* enough = nullptr;
  bool clear = false;  // some tile is slower than the best one beyond doubt
  for (const Mark& mark : series.marks) {
    clear = clear || compare(mark, best) == Verdict::more;
    if (enough == nullptr && *mark.y <= kNearBest * *best.y) enough = &mark;
  }
  if (!clear)
    return {fmt::format("No tile size is found to be slower than another: the shortest time is {} {}.",
                        text_of("median_ms", *best.y), at(axis, best.x)),
            {}};
  if (enough->x == best.x)
    return {fmt::format("A larger tile stops paying off {}, where the time is shortest ({}).",
                        at(axis, best.x), text_of("median_ms", *best.y)),
            {}};
  return {
      fmt::format("A larger tile stops paying off {}: that time ({}) is within 10 % of the shortest ({} {}).",
                  at(axis, enough->x), text_of("median_ms", *enough->y), text_of("median_ms", *best.y),
                  at(axis, best.x)),
      {}};
}

Answer sparsity(const Evidence& all) {
  const Evidence own = all.with({{"algorithm", "block_sparse"}, {"direction", "forward"}});
  const auto [axis, series] = own.curve("kept_share", "median_ms");
  const auto growth = growth_of(axis, series);
  const std::string text = growth_text(axis, series);
  if (series.marks.size() < 2) return {};
  const Mark &few = series.marks.front(), &all_kept = series.marks.back();
  const double share = 100 * axis.values[few.x] / axis.values[all_kept.x], time = 100 * *few.y / *all_kept.y;
  const std::string ends = fmt::format("{} % of the blocks take {} % of the time of all",
                                       significant(share, 2), significant(time, 2));
  Answer answer{fmt::format("These measurements do not settle it: forward, {}.", ends), {}};
  if (growth && !text.empty()) {
    const bool proportional = std::fabs(growth->exponent - 1) <= std::max(growth->uncertainty, 0.1);
    answer.sentence = fmt::format("{}: forward, the time follows {}, and {}.",
                                  proportional ? "Yes, nearly" : "Not quite", text, ends);
  }
  SmallChart chart{
      .bars = false, .log = false, .curves = {small_curve(own, "block_sparse", "kept_share", "median_ms")}};
  answer.findings.push_back({"sparsity", significant(time, 2) + " %", answer.sentence, chart});
  return answer;
}

Answer long_sequences(const Evidence& all) {
  const Evidence forward = all.with({{"direction", "forward"}});
  const std::string ours = all.ours();
  std::vector<std::string> wins, never;
  for (const char* method : {"block_sparse", "sparse_strided", "sparse_fixed", "linformer"}) {
    const auto pairs = forward.pairs("algorithm", method, ours, "median_ms", "q_length");
    // Masks differ between the methods, so that points are paired by length alone.
    std::vector<RowPair> found = pairs;
    if (found.empty()) {
      for (const json* row : forward.with({{"algorithm", method}}).rows()) {
        const auto value = measured_mark(*row, "median_ms");
        for (const json* other : forward.with({{"algorithm", ours}}).rows()) {
          const auto base = measured_mark(*other, "median_ms");
          if (value && base && (*row)["q_length"] == (*other)["q_length"])
            found.push_back({row, other, *value, *base});
        }
      }
      std::sort(found.begin(), found.end(),
                [](const RowPair& a, const RowPair& b) { return (*a.a)["q_length"] < (*b.a)["q_length"]; });
    }
    if (found.empty()) continue;
    const std::size_t first = since(found, faster);
    if (first == found.size()) never.emplace_back(method);
    else wins.push_back(fmt::format("{} from {} on", method, place_of(*found[first].a, "q_length")));
  }
  std::string text;
  if (!wins.empty()) text = fmt::format("Forward, these are faster than exact {}: {}", ours, listed(wins));
  if (!never.empty())
    text += fmt::format("{}{} {} at no length measured", text.empty() ? "Forward, " : "; ", listed(never),
                        text.empty()        ? "beats exact " + ours
                        : never.size() == 1 ? "is faster"
                                            : "are faster");
  return {text.empty() ? "No sparse or approximate attention was measured in this run." : text + ".", {}};
}

Answer minimal(const Evidence& all) {
  const std::string ours = all.with({{"direction", "forward"}}).ours();
  const auto time = all.pairs("algorithm", "minimal", ours, "median_ms", "q_length");
  const auto error = all.pairs("algorithm", "minimal", ours, "max_error", "q_length");
  if (time.empty() || error.empty()) return {};
  const RowPair& last = time.back();
  const std::string speed =
      last.verdict() == Verdict::unclear ? fmt::format("is not found to differ in time from {}", ours)
      : last.ratio() >= 1                ? fmt::format("takes {} as long as {}", times(last.ratio()), ours)
                                         : fmt::format("is {} as fast as {}", times(1 / last.ratio()), ours);
  Answer answer{
      fmt::format("At {} the kernel of one page {} ({} against {}); its largest error is {} times as large.",
                  place_of(*last.a, "q_length"), speed, text_of("median_ms", *last.value.y),
                  text_of("median_ms", *last.base.y), significant(error.back().ratio(), 2)),
      {}};
  answer.findings.push_back({"minimal", significant(last.ratio(), 2) + "×", answer.sentence,
                             curves(all, {"minimal", "standard", ours}, "q_length", "median_ms")});
  return answer;
}

Answer accuracy(const Evidence& all) {
  std::vector<std::string> parts;
  std::string number;
  SmallChart chart{.bars = true, .log = false, .curves = {}};
  const std::string ours = all.ours();
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    std::vector<double> ratios;
    const auto pairs =
        all.with({{"dtype", dtype}}).pairs("algorithm", ours, "standard", "rms_error", "q_length");
    for (const RowPair& pair : pairs) {
      if (*pair.base.y > 0) ratios.push_back(pair.ratio());
    }
    if (ratios.empty()) continue;
    parts.push_back(fmt::format("{} times {} in {}", range_text(ratios),
                                parts.empty() ? "that of standard" : "that", dtype));
    if (number.empty()) {
      number = range_text({*std::max_element(ratios.begin(), ratios.end())}) + "×";
      chart.curves = {small_bar("standard", 1),
                      small_bar(ours, *std::max_element(ratios.begin(), ratios.end()), 1)};
    }
  }
  if (parts.empty()) return {};
  Answer answer{fmt::format("The RMS error of {} is {}.", ours, listed(parts)), {}};
  answer.findings.push_back({"accuracy", number, answer.sentence, chart});
  return answer;
}

Answer out_of_memory(const Evidence& all) {
  std::vector<std::string> parts;
  SmallChart chart{.bars = true, .log = false, .curves = {}};
  std::vector<std::pair<std::string, std::pair<std::size_t, std::size_t>>> methods;
  for (const json* row : all.rows()) {
    const std::string name = value_text((*row)["algorithm"]);
    const bool tried = (*row)["status"] == "ok" || (*row)["status"] == "out_of_memory";
    auto found =
        std::find_if(methods.begin(), methods.end(), [&](const auto& one) { return one.first == name; });
    if (found == methods.end()) found = methods.insert(found, {name, {0, 0}});
    found->second.first += (*row)["status"] == "ok" ? 1 : 0;
    found->second.second += tried ? 1 : 0;
  }
  std::erase_if(methods, [](const auto& one) { return one.second.second == 0; });
  if (methods.empty()) return {};
  for (const auto& [name, count] : methods) {
    parts.push_back(fmt::format("{} of {} with {}", count.first, count.second, name));
    chart.curves.push_back(small_bar(name, static_cast<double>(count.first), chart.curves.size()));
  }
  const auto budget = number_of(*all.rows().front(), "memory_budget_bytes");
  const std::string within =
      budget ? fmt::format("Within {}, these points fit: ", bytes_text(*budget)) : "These points fit: ";
  Answer answer{within + listed(parts) + ".", {}};
  const auto& last = methods.back().second;
  answer.findings.push_back(
      {"out_of_memory", fmt::format("{}/{}", last.first, last.second), answer.sentence, chart});
  return answer;
}

Answer steps(const Evidence& all) {
  double sum = 0;
  const json* largest = nullptr;
  for (const json* row : all.with({{"algorithm", "standard"}}).measured().rows()) {
    const auto time = number_of(*row, "median_ms");
    if (field_value(*row, "stage").is_null() || !time) continue;
    sum += *time;
    if (largest == nullptr || *time > *number_of(*largest, "median_ms")) largest = row;
  }
  if (largest == nullptr) return {};
  const std::string ours = all.ours();
  const std::string share =
      fmt::format("{} takes {:.0f} % of the {} that standard spends in its steps",
                  value_text(field_value(*largest, "stage")), 100 * *number_of(*largest, "median_ms") / sum,
                  text_of("median_ms", sum));
  const Rows fused = all.with({{"algorithm", ours}}).measured().rows();
  if (fused.empty() || !number_of(*fused.front(), "median_ms")) return {share + ".", {}};
  return {fmt::format("{}; {} does all of them in {}.", share, ours,
                      text_of("median_ms", *number_of(*fused.front(), "median_ms"))),
          {}};
}

// What an experiment of a study asks as well: "t4_batch" asks what "batch" does.
std::string plain_name(const std::string& name) {
  static const std::map<std::string, std::string> kSame = {
      {"t4_width", "embedding"}, {"sweeps_width", "embedding"},      {"tables_width", "embedding"},
      {"l4_kernel", "minimal"},  {"tables_points", "out_of_memory"}, {"sweeps_comparison", "sequence"}};
  if (const auto found = kSame.find(name); found != kSame.end()) return found->second;
  for (const std::string prefix : {"t4_", "sweeps_", "tables_", "paper_"}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

// The experiment's own answer; a function for each question.
Answer own_answer(const std::string& name, const Evidence& all) {
  using Function = Answer (*)(const Evidence&);
  static const std::map<std::string, Function> kAnswers = {{"summary", summary},
                                                           {"sequence", sequence},
                                                           {"batch", batch},
                                                           {"causal", causal},
                                                           {"embedding", embedding},
                                                           {"direction", direction},
                                                           {"heatmap", highest},
                                                           {"traffic", traffic},
                                                           {"block_size", block_size},
                                                           {"sparsity", sparsity},
                                                           {"long", long_sequences},
                                                           {"minimal", minimal},
                                                           {"accuracy", accuracy},
                                                           {"out_of_memory", out_of_memory},
                                                           {"training", training_answer},
                                                           {"gpt", gpt_answer},
                                                           {"peers", peers_answer},
                                                           {"steps", steps}};
  if (name == "heads") return extremes(all, "q_heads", "median_ms", "the number of heads");
  if (name == "head_dim") return extremes(all, "qk_dim", "tflops", "the head dimension");
  const auto found = kAnswers.find(name);
  return found == kAnswers.end() ? Answer{} : found->second(all);
}

}  // namespace

Answer answer_of(const Section& section) {
  std::vector<std::pair<std::string, Rows>> runs;
  for (const json& row : section.rows) {
    const std::string label = row.value("run", "");
    auto found = std::find_if(runs.begin(), runs.end(), [&](const auto& one) { return one.first == label; });
    if (found == runs.end()) found = runs.insert(found, {label, {}});
    found->second.push_back(&row);
  }
  if (runs.empty()) return {};
  const auto most = std::max_element(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  Answer answer = own_answer(plain_name(section.spec.name), Evidence(most->second));
  for (Finding& finding : answer.findings) finding.experiment = section.spec.name;
  if (answer.sentence.empty()) {
    for (const DrawnFigure& figure : section.figures) {
      const Reading reading = reading_of(figure);
      if (answer.sentence.empty() && !reading.comparisons.empty())
        answer.sentence = reading.sentences.front();
    }
  }
  if (answer.sentence.empty() && !section.figures.empty())
    answer.sentence = reading_of(section.figures.front()).sentences.front();
  if (runs.size() > 1) {
    answer.sentence = fmt::format("On {}: {}", most->first, answer.sentence);
    for (Finding& finding : answer.findings)
      finding.sentence = fmt::format("On {}: {}", most->first, finding.sentence);
  }
  return answer;
}

std::vector<Finding> top_findings(const Report& report) {
  constexpr std::array kOrder = {"sequence", "peers",         "training", "gpt",      "causal",
                                 "sparsity", "out_of_memory", "traffic",  "accuracy", "direction",
                                 "minimal",  "long",          "batch"};
  std::vector<Finding> first, second;
  for (const char* name : kOrder) {
    for (const Section& section : report.sections) {
      if (plain_name(section.spec.name) != name) continue;
      const Answer answer = answer_of(section);
      for (std::size_t i = 0; i < answer.findings.size(); ++i) {
        if (!answer.findings[i].number.empty())
          (i == 0 || first.size() < 2 ? first : second).push_back(answer.findings[i]);
      }
    }
  }
  first.insert(first.end(), second.begin(), second.end());
  if (first.size() > kFindings) first.resize(kFindings);
  return first;
}

}  // namespace tessera::lab::report
