/// \file
/// Attention: the description of the operation, and the two calls that perform it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/execution.h"
#include "tessera/export.h"
#include "tessera/mask.h"
#include "tessera/tensor.h"

namespace tessera {

/// How attention is computed. Every algorithm gives the same result within rounding.
enum class Algorithm : std::uint8_t {
  automatic,  ///< The fastest that serves the problem.
  standard,   ///< Separate passes over an N x N matrix in memory, with the best GEMM at hand.
  flash1,     ///< Tiles, keys outside: output and statistics are read and written per block of keys.
  flash2,     ///< Tiles, queries outside: statistics stay in registers, output is written once.
  flash3,     ///< flash2 as an asynchronous pipeline of copies and products; requires compute capability 9.0.
  minimal,    ///< The teaching kernel: one thread per row.
};

/// The name of an algorithm, as in "flash2". Never null.
TESSERA_API const char* name(Algorithm algorithm) noexcept;

/// Forward or backward.
enum class Direction : std::uint8_t {
  forward,   ///< Output and LSE.
  backward,  ///< Gradients.
};

/// The name of a direction, "forward" or "backward". Never null.
TESSERA_API const char* name(Direction direction) noexcept;

/// Attention with linear biases: -slope * |i + d - j| is added to the score, d being the mask's diagonal. An explicit or
/// top-left diagonal (origin.row - origin.column + mask.diagonal) must be less than 2^29 away from 0.
struct Alibi {
  const float* slopes = nullptr;  ///< One slope per query head, where the data lives; null: off.
  std::int64_t batch_stride = 0;  ///< Distance between the slopes of two batch entries; 0: shared.
};

/// The slopes of the ALiBi paper for a number of heads: 2^(-8/n), 2^(-16/n), ... for n a power of two, and
/// its interleaving rule for other counts.
TESSERA_API std::vector<float> alibi_slopes(std::int64_t heads);

/// Dropout on the normalised probabilities. Whether an element is dropped is a pure function of seed, offset
/// and the element's global (batch, head, row, column): the same on every device, for every tile size,
/// algorithm and number of ranks.
struct Dropout {
  double probability = 0;    ///< In [0, 1 - 2^-16); 0: off. Rounded to steps of 2^-15; what is kept
                             ///< is divided by 1 minus the rounded probability.
  std::uint64_t seed = 0;    ///< Chooses the random bits ...
  std::uint64_t offset = 0;  ///< ... together with this, which a training loop counts up.
  const std::uint64_t* state = nullptr;  ///< {seed, offset} read when the kernel runs, from the memory where
                                         ///< the data lives (a replayed CUDA graph then draws new bits);
                                         ///< null: the values above.
};

/// The global position of a problem's first row, column, batch entry and query head, for a shard of a longer
/// sequence: it masks, biases and drops exactly as the whole would.
struct Origin {
  std::int64_t row = 0;     ///< Global index of query 0.
  std::int64_t column = 0;  ///< Global index of key 0.
  std::int64_t batch = 0;   ///< Global index of batch entry 0.
  std::int64_t head = 0;    ///< Global index of query head 0.
};

/// The operation, everything but the data:
///
///     O = dropout(softmax(softcap(scale * Q K^T) + bias + alibi + mask)) V
struct Attention {
  std::optional<double> scale{};               ///< Default 1 / sqrt(head_dim of q). Else 0, or +-2^-100 to
                                               ///< +-2^100 (for fp64 2^-1000 to 2^1000).
  Mask mask{};                                 ///< Who sees whom; default: everyone everyone.
  double softcap = 0;                          ///< cap * tanh(s / cap) on the scaled scores; 0: off. It and
                                               ///< scale / softcap are within the range of scale.
  Alibi alibi{};                               ///< Linear biases; default: none.
  Dropout dropout{};                           ///< Default: none.
  Origin origin{};                             ///< Default: the problem is the whole.
  Algorithm algorithm = Algorithm::automatic;  ///< How it is computed.
  bool deterministic = false;                  ///< Backward bitwise reproducible also on GPUs.
};

/// The tensors of a forward call. Query head h reads key/value head h / (Hq / Hkv).
struct ForwardTensors {
  Tensor q{};     ///< (batch, Nq, Hq, d_qk)
  Tensor k{};     ///< (batch, Nk, Hkv, d_qk); Hkv divides Hq.
  Tensor v{};     ///< (batch, Nk, Hkv, d_v)
  Tensor bias{};  ///< Optional: (batch|1, Hq|1, Nq|1, Nk), the type of q or its accumulator type.
                  ///< -infinity hides the key from the row as a mask does, whatever q, k and v hold.
  Tensor out{};   ///< Written: (batch, Nq, Hq, d_v)
  Tensor lse{};   ///< Optional, written: (batch, Hq, Nq, 1) in fp32 (fp64 for fp64): the natural logarithm
                  ///< of the sum of exponentiated scores, before dropout.
};

/// The tensors of a backward call. Gradients that are not given are not computed; at least one must be.
struct BackwardTensors {
  Tensor q{};          ///< As given to forward.
  Tensor k{};          ///< As given to forward.
  Tensor v{};          ///< As given to forward.
  Tensor bias{};       ///< As given to forward.
  Tensor out{};        ///< What forward wrote.
  Tensor lse{};        ///< What forward wrote.
  Tensor grad_out{};   ///< Gradient of `out`.
  Tensor grad_lse{};   ///< Optional: gradient of `lse`, same shape and type.
  Tensor grad_q{};     ///< Written, shape and type of q.
  Tensor grad_k{};     ///< Written, shape and type of k.
  Tensor grad_v{};     ///< Written, shape and type of v.
  Tensor grad_bias{};  ///< Written, shape and type of bias: summed over what was broadcast.
};

/// Computes attention. Outputs are fully overwritten; a row that sees no key gives 0 and an LSE of -infinity.
///
/// **Reproducible.** The same call on the same device gives the same bits, whatever `execution` says. A row of `out`
/// and `lse` depends on its own head of its own sequence alone: it has the same bits whatever other batch entries,
/// packed sequences and heads are in the call, and however many. So a shard by batch or by heads gives the bits of the
/// whole. Kernel, tiles and the order of sums follow from the lengths of the sequence, head_dim, type, mask, the
/// options in use and the device, on GPUs also from strides and alignment. On GPUs there are two exceptions:
/// - The lengths of packed sequences are not known to the host. A packed sequence has the bits of the same sequence
///   packed alone, which may differ from those of a plain batch. (On the CPU they are the same.)
/// - The products of `Algorithm::standard` are cuBLAS's, which chooses by the shape of the whole call. Its bits may
///   depend on the number of heads, on the batch in backward, and on the longest of packed sequences.
///
/// **One key.** Without dropout a row that sees one key whose score is finite gives that key's value bit for bit, but a
/// value of -0 as +0. Products of bf16 (a plan names `avx512_bf16` or `amx`) also take its subnormal numbers for 0.
///
/// **Range.** scale * q, q.k and the scores must fit the accumulator type, and so must, for each row and element of v, the
/// sum of |v| over the keys that the row sees: the kernels divide by the sum of the weights last. Only fp32, bf16 and fp64
/// values can be so large: 64 keys may have values up to 5e36.
///
/// **Non-finite inputs.** A row and a key that a mask or a bias of -infinity hides from each other do not reach each other's
/// results and gradients, whatever they hold, even NaN. Where the weight of a visible key rounds to 0, or dropout drops
/// it, a NaN or infinity in its value may or may not reach the row.
///
/// On the CPU the call returns when the result is there; on a GPU work is queued on `execution.stream`.
/// Throws Error; outputs are untouched unless the code is device_failure.
///
/// A call passes on what the caller's executor or allocator throws, as execution.h says.
///
/// The calling thread's floating-point environment has no influence: with any rounding mode, flushing of
/// subnormal numbers or enabled traps (`feenableexcept`) the result has the same bits, and nothing traps. The
/// environment is the same after the call, exception flags included. An executor and an allocator are called in
/// the default one.
TESSERA_API void forward(const Attention& attention, const ForwardTensors& tensors,
                         const Execution& execution = {});

/// Computes the gradients of `forward` by recomputation, from q, k, v, out and lse of the same description.
/// Probabilities come from `lse` and `out` as given, also where they belong to a longer row of which the call
/// sees a shard: the gradients of the shards then add up to those of the whole.
///
/// **Reproducible**, with the promise and the exceptions of `forward`; on GPUs when `attention.deterministic` is set.
/// A row of `grad_q` depends on its own head of its own sequence alone. A row of `grad_k` and `grad_v` is a sum over
/// the query heads of its group, so a shard by heads gives the bits of the whole where it keeps groups together.
/// `grad_bias` is a sum over all that the bias was broadcast to, and depends on all of that.
TESSERA_API void backward(const Attention& attention, const BackwardTensors& tensors,
                          const Execution& execution = {});

}  // namespace tessera
