// How long a sequence fits into a memory: a transformer's parameters and activations by counting, its attention by the
// library's own plans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/attention.h"
#include "tessera/plan.h"

namespace tessera::lab {

// A stack of equal layers: attention with `heads` heads, then two linear maps with four times the width between them.
struct Transformer {
  std::int64_t width = 1024, depth = 12, heads = 16, batch = 1;
  DType dtype = DType::bf16;
  bool train = false;
  bool causal = true;
};

// Bytes.
struct FitMemory {
  double parameters = 0;  // 12 width^2 per layer
  double states = 0;      // training: gradients, and for each parameter what Adam keeps in fp32
  double activations =
      0;  // without attention's own: 9 N width, of one layer; training: 16 N width of every layer
  double attention =
      0;  // workspace of one call, LSE of every layer in training, and probabilities where they are kept

  [[nodiscard]] double total() const { return parameters + states + activations + attention; }
};

// A way to compute attention.
struct FitChoice {
  std::string name;
  Algorithm algorithm = Algorithm::automatic;
  bool keeps_probabilities = false;  // every layer's N x N matrix, from forward to backward, as frameworks do
};

// Those that are worth comparing: standard, and in training standard that keeps its probabilities; flash.
std::vector<FitChoice> fit_choices(bool train);

// What a sequence length takes. Throws Error (unsupported) when no kernel serves it on the device.
FitMemory memory_of(const Transformer& model, const FitChoice& choice, std::int64_t length, Device device);

struct Fit {
  FitChoice choice;
  std::int64_t length = 0;  // the longest multiple of kFitStep that fits; 0: none
  FitMemory memory{};       // at that length, or at kFitStep
};

inline constexpr std::int64_t kFitStep = 64;
inline constexpr std::int64_t kLongestFit = std::int64_t{1} << 24;  // not looked beyond

Fit longest_fit(const Transformer& model, const FitChoice& choice, double bytes, Device device);

}  // namespace tessera::lab
