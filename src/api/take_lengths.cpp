// Packed sequences: the cumulative lengths of a call.
#include <algorithm>

#include "api/arguments.h"

namespace tessera::api {
namespace {

using core::kMaxPosition;
using core::Problem;

// Checks one array of cumulative lengths on the host and returns the longest sequence.
std::int64_t check_cumulative(const char* which, const std::int32_t* cumulative, std::int64_t count,
                              std::int64_t tokens) {
  if (cumulative[0] != 0) {
    refuse("attention.mask.lengths.", which, "[0] is ", cumulative[0], "; it must be 0");
  }
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (cumulative[i + 1] < cumulative[i]) {
      refuse("attention.mask.lengths.", which, "[", i + 1, "] is ", cumulative[i + 1],
             "; it must not be less than the one before, ", cumulative[i]);
    }
    longest = std::max<std::int64_t>(longest, cumulative[i + 1] - cumulative[i]);
  }
  if (cumulative[count] != tokens) {
    refuse("attention.mask.lengths.", which, "[", count, "] is ", cumulative[count], "; it must be ", tokens,
           ", the sequence size of ", which);
  }
  return longest;
}

// One side (queries or keys) of packed sequences: its longest length.
std::int64_t take_side(const char* which, const std::int32_t* cumulative, std::int64_t count,
                       std::int64_t declared, const Argument& argument, Data data) {
  if (argument.tensor.shape[0] != 1) {
    refuse(argument.name, ".shape[0] (batch) is ", argument.tensor.shape[0],
           "; it must be 1 when sequences are packed");
  }
  const std::int64_t tokens = argument.tensor.shape[1];
  if (declared < 0 || declared > tokens) {
    refuse("attention.mask.lengths.max_", which, " is ", declared, "; it must be between 0 and ", tokens,
           ", the sequence size of ", which);
  }
  if (cumulative == nullptr) {
    if (data == Data::required) {
      refuse("attention.mask.lengths.", which, " is null; it must point to ", count + 1,
             " cumulative lengths");
    }
    if (declared == 0 && tokens != 0) {
      refuse("attention.mask.lengths.max_", which,
             " is 0; without cumulative lengths it must be at least the longest sequence");
    }
    return declared;
  }
  if (argument.tensor.device.type != DeviceType::cpu) {
    if (declared == 0 && tokens != 0) {
      refuse("attention.mask.lengths.max_", which,
             " is 0; with lengths in device memory it must be at least the longest sequence");
    }
    return declared;
  }
  const std::int64_t longest = check_cumulative(which, cumulative, count, tokens);
  if (declared != 0 && declared < longest) {
    refuse("attention.mask.lengths.max_", which, " is ", declared, "; it must be at least ", longest,
           ", the longest sequence");
  }
  return declared != 0 ? declared : longest;
}

}  // namespace

void take_lengths(const Mask& mask, const Argument& q, const Argument& k, Data data, Problem& p) {
  const Lengths& lengths = mask.lengths;
  p.packed = lengths.count != 0 || lengths.q != nullptr || lengths.k != nullptr;
  if (!p.packed) return;
  if (lengths.count < 0 || lengths.count >= kMaxPosition) {
    refuse("attention.mask.lengths.count is ", lengths.count, "; it must be between 0 and 2^32 - 1");
  }
  check_aligned("attention.mask.lengths.q", lengths.q);
  check_aligned("attention.mask.lengths.k", lengths.k);
  p.batch = lengths.count;
  p.q_length = take_side("q", lengths.q, lengths.count, lengths.max_q, q, data);
  p.k_length = take_side("k", lengths.k, lengths.count, lengths.max_k, k, data);
  p.cumulative_q = lengths.q;
  p.cumulative_k = lengths.k;
}

}  // namespace tessera::api
