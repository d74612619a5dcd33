// The longest sequence that fits into a memory. The model counts what a transformer keeps; the
// library's plans tell what its attention takes.
//
// Counted, with N the rows of the batch times the sequence, in elements of the model's type unless
// said otherwise:
//   parameters   12 width^2 per layer (Q, K, V, output; up to four times the width and down again),
//                and vocabulary x width once, for the embedding that is the last linear map too
//   gradients    as many as parameters, in training
//   optimizer    for each parameter, in fp32: Adam's two moments, or SGD's momentum; and with a
//                16-bit model the parameters themselves
//   activations  kept from layer to layer. Training: 16 N width per layer (the inputs of two norms,
//                of four linear maps and of the activation function; Q, K, V); with checkpoints, N
//                width per layer and 16 N width for the layer that is recomputed. A KV cache: 2 N
//                width per layer
//   attention    what attention adds: the LSE and P, where it keeps them
//   working      the largest temporary memory: the linear maps of a layer, 9 N width; a call of
//                attention, 5 N width and its workspace; or the logits, in training for every row
//                and with a copy in fp32
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/attention.h"
#include "tessera/plan.h"

namespace tessera::lab {

enum class Optimizer { adam, sgd, none };

const char* name(Optimizer optimizer);

// A stack of equal layers: attention with `heads` heads, then two linear maps with four times the
// width between them.
struct Transformer {
  std::int64_t width = 1024, depth = 12, heads = 16, batch = 1;
  std::int64_t vocabulary = 0;  // 0: the layers alone
  DType dtype = DType::bf16;
  bool causal = true;
  bool train = false;
  Optimizer optimizer = Optimizer::adam;  // in training
  bool checkpoint = false;                // training: layers are computed again from their inputs
  bool kv_cache = false;                  // without training: keys and values of every layer stay
};

// Bytes, as above.
struct FitMemory {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, attention = 0, working = 0;
  const char* at_work = "";  // what `working` is: "linear maps", "attention" or "logits"

  [[nodiscard]] double total() const {
    return parameters + gradients + optimizer + activations + attention + working;
  }
};

// A way to compute attention.
struct FitChoice {
  std::string name;
  Algorithm algorithm = Algorithm::automatic;
  bool keeps_probabilities = false;  // every layer's N x N matrix, from forward to backward, as frameworks do
};

// Every algorithm that the device has kernels for, but for the teaching kernel; in training first
// `standard` that keeps its probabilities, which the library does not do.
std::vector<FitChoice> fit_choices(bool train, DeviceType device);

// What a sequence length takes. Throws Error (unsupported) when no kernel supports it on the
// device.
FitMemory memory_of(const Transformer& model, const FitChoice& choice, std::int64_t length, Device device);

struct Fit {
  FitChoice choice;
  std::int64_t length = 0;  // the longest multiple of kFitStep that fits; 0: none
  FitMemory memory{};       // at that length, or at kFitStep
};

inline constexpr std::int64_t kFitStep = 64;
inline constexpr std::int64_t kLongestFit = std::int64_t{1} << 24;  // not looked beyond

Fit longest_fit(const Transformer& model, const FitChoice& choice, double bytes, Device device);

// A change that makes a model fit which did not, as options of `tessera fit`, and the length that
// fits then.
struct Remedy {
  std::string options;
  std::int64_t length = 0;
};

// Lighter optimisers, checkpoints, fewer layers, more memory: each alone, and only what helps. The
// last two are such that `wanted` tokens fit.
std::vector<Remedy> remedies(const Transformer& model, const FitChoice& choice, double bytes, Device device,
                             std::int64_t wanted);

}  // namespace tessera::lab
