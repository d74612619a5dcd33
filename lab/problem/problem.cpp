#include "lab/problem/problem.h"

#include <fmt/format.h>

namespace tessera::lab {
namespace {

std::string yes_no(bool value) { return value ? "yes" : "no"; }

}  // namespace

const char* name(Pass pass) {
  switch (pass) {
    case Pass::forward: return "forward";
    case Pass::backward: return "backward";
    case Pass::both: break;
  }
  return "forward + backward";
}

Direction widest_direction(const Problem& problem) {
  return problem.direction == Pass::forward ? Direction::forward : Direction::backward;
}

bool same_but_direction(Problem a, const Problem& b) {
  a.direction = b.direction;
  return a == b;
}

std::string to_string(const BlockPreset& preset) {
  return preset.numbers.empty() ? preset.name
                                : fmt::format("{}:{}", preset.name, fmt::join(preset.numbers, ","));
}

std::string mask_text(const Problem& problem) {
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? "" : "+") + part; };
  if (problem.causal) add("causal");
  if (problem.window != Window{}) add(fmt::format("window:{},{}", problem.window.left, problem.window.right));
  if (!text.empty() && problem.align == Align::top_left) add("top_left");
  if (problem.block_mask.name != "none") {
    add(fmt::format("{}/{}", to_string(problem.block_mask), problem.block_size));
  }
  return text.empty() ? "full" : text;
}

std::int64_t keys(const Problem& problem) { return problem.seq_k > 0 ? problem.seq_k : problem.seq; }

std::int64_t kv_heads(const Problem& problem) {
  return problem.kv_heads > 0 ? problem.kv_heads : problem.heads;
}

std::int64_t value_dim(const Problem& problem) { return problem.v_dim > 0 ? problem.v_dim : problem.dim; }

const std::vector<Property>& properties() {
  using P = const Problem&;
  constexpr auto kNever = [](P) { return false; };
  static const std::vector<Property> kAll = {
      {"batch", [](P p) { return fmt::format("{}", p.batch); }, kNever},
      {"seq", [](P p) { return fmt::format("{}", p.seq); }, kNever},
      {"seq_k", [](P p) { return fmt::format("{}", keys(p)); }, [](P p) { return keys(p) == p.seq; }},
      {"heads", [](P p) { return fmt::format("{}", p.heads); }, kNever},
      {"kv_heads", [](P p) { return fmt::format("{}", kv_heads(p)); },
       [](P p) { return kv_heads(p) == p.heads; }},
      {"dim", [](P p) { return fmt::format("{}", p.dim); }, kNever},
      {"v_dim", [](P p) { return fmt::format("{}", value_dim(p)); },
       [](P p) { return value_dim(p) == p.dim; }},
      {"dtype", [](P p) { return std::string(name(p.dtype)); }, kNever},
      {"mask", mask_text, kNever},
      {"visible", [](P p) { return yes_no(p.visible); }, [](P p) { return !p.visible; }},
      {"bias", [](P p) { return yes_no(p.bias); }, [](P p) { return !p.bias; }},
      {"alibi", [](P p) { return yes_no(p.alibi); }, [](P p) { return !p.alibi; }},
      {"softcap", [](P p) { return fmt::format("{}", p.softcap); }, [](P p) { return p.softcap == 0; }},
      {"dropout", [](P p) { return fmt::format("{}", p.dropout); }, [](P p) { return p.dropout == 0; }},
      {"threads", [](P p) { return p.threads > 0 ? fmt::format("{}", p.threads) : "all"; },
       [](P p) { return p.threads == 0; }},
      {"direction", [](P p) { return std::string(name(p.direction)); }, kNever},
  };
  return kAll;
}

std::string to_string(const Problem& problem) {
  std::string text = fmt::format("batch {}, seq {}", problem.batch, problem.seq);
  if (keys(problem) != problem.seq) text += fmt::format(" x {}", keys(problem));
  text += fmt::format(", heads {}", problem.heads);
  if (kv_heads(problem) != problem.heads) text += fmt::format(" (kv {})", kv_heads(problem));
  text += fmt::format(", dim {}", problem.dim);
  if (value_dim(problem) != problem.dim) text += fmt::format(" (v {})", value_dim(problem));
  text += fmt::format(", {}, {}", name(problem.dtype), mask_text(problem));
  if (problem.visible) text += ", boolean mask";
  if (problem.bias) text += ", bias";
  if (problem.alibi) text += ", alibi";
  if (problem.softcap > 0) text += fmt::format(", softcap {}", problem.softcap);
  if (problem.dropout > 0) text += fmt::format(", dropout {}", problem.dropout);
  return text;
}

}  // namespace tessera::lab
