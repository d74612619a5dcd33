// A problem of the lab: one call to measure, described by numbers and names alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/attention.h"
#include "tessera/plan.h"

namespace tessera::lab {

// How many keys before and after the diagonal a query attends to; -1: all.
struct Window {
  std::int64_t left = -1;
  std::int64_t right = -1;
  friend bool operator==(const Window&, const Window&) = default;
};

// A block-mask preset and its numbers, as in "bigbird:1,1,2".
struct BlockPreset {
  std::string name = "none";
  std::vector<double> numbers;
  friend bool operator==(const BlockPreset&, const BlockPreset&) = default;
};
std::string to_string(const BlockPreset& preset);

// What one call computes: a direction of the library, or one after the other.
enum class Pass { forward, backward, both };

// "forward", "backward", "forward + backward".
const char* name(Pass pass);

struct Problem {
  std::int64_t batch = 1;
  std::int64_t seq = 1024;
  std::int64_t seq_k = 0;  // 0: as seq
  std::int64_t heads = 8;
  std::int64_t kv_heads = 0;  // 0: as heads
  std::int64_t dim = 64;
  std::int64_t v_dim = 0;  // 0: as dim
  DType dtype = DType::fp32;
  bool causal = false;
  Window window{};
  Align align = Align::bottom_right;
  BlockPreset block_mask{};
  std::int64_t block_size = 128;
  bool visible = false;  // a boolean mask that hides the last quarter of the keys
  bool bias = false;
  bool alibi = false;
  double softcap = 0;
  double dropout = 0;
  std::int64_t threads = 0;  // 0: all
  Pass direction = Pass::forward;
  Device device{};
  friend bool operator==(const Problem&, const Problem&) = default;
};

// Whether two problems are equal but for their direction.
bool same_but_direction(Problem a, const Problem& b);

// The direction whose tensors the problem needs: backward for both.
Direction widest_direction(const Problem& problem);

// The values that 0 stands for.
std::int64_t keys(const Problem& problem);
std::int64_t kv_heads(const Problem& problem);
std::int64_t value_dim(const Problem& problem);

// "causal", "window:128,0", "causal+local:2/64"; "full" without a mask.
std::string mask_text(const Problem& problem);

// A column of a table of problems: its name and a problem's value. A value that all problems share
// is said once, above the table; a value that is `implied` (off, or equal to another one) in all of
// them is left out.
struct Property {
  const char* name;
  std::string (*value)(const Problem& problem);
  bool (*implied)(const Problem& problem);
};
const std::vector<Property>& properties();

// Shapes, type, mask and options on one line; without direction, device and threads.
std::string to_string(const Problem& problem);

}  // namespace tessera::lab
