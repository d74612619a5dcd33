/// \file
/// Attention: the description of the operation, and the two calls that perform it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <vector>

#include "tessera/execution.h"
#include "tessera/export.h"
#include "tessera/mask.h"
#include "tessera/tensor.h"

namespace tessera {

/// How attention is computed. All algorithms give the same result within rounding.
enum class Algorithm : std::uint8_t {
  automatic,  ///< The fastest algorithm that supports the call.
  standard,   ///< Separate passes over an N x N matrix, with the best GEMM available (OpenBLAS, cuBLAS).
  flash1,     ///< Tiles; the outer loop is over keys: each step reads and writes output and statistics.
  flash2,     ///< Tiles; the outer loop is over queries: the output is written once.
  flash3,     ///< flash2 as an asynchronous pipeline; requires a GPU of compute capability 9.0.
  minimal,    ///< The teaching kernel: one thread per row.
};

/// Returns the name of an algorithm, as in "flash2". Never null.
[[nodiscard]] TESSERA_API const char* name(Algorithm algorithm) noexcept;

/// Writes the name.
TESSERA_API std::ostream& operator<<(std::ostream& stream, Algorithm algorithm);

/// Forward or backward.
enum class Direction : std::uint8_t {
  forward,   ///< Output and LSE.
  backward,  ///< Gradients.
};

/// Returns the name of a direction, "forward" or "backward". Never null.
[[nodiscard]] TESSERA_API const char* name(Direction direction) noexcept;

/// Writes the name.
TESSERA_API std::ostream& operator<<(std::ostream& stream, Direction direction);

/// Attention with linear biases: adds -slope * |i + d - j| to the score, where d is the mask's
/// diagonal. An explicit or top-left diagonal (origin.row - origin.column + mask.diagonal) must be
/// less than 2^29 away from 0.
struct Alibi {
  const float* slopes = nullptr;  ///< One slope per query head, on the device of the data; null: off.
  std::int64_t batch_stride = 0;  ///< Distance between the slopes of two batch entries; 0: shared.
};

/// Returns the slopes of the ALiBi paper: 2^(-8/n), 2^(-16/n), ... when the number of heads n is a
/// power of two, and the paper's interleaving rule for other counts. Throws Error
/// (invalid_argument) unless `heads` is from 1 to 2^20.
[[nodiscard]] TESSERA_API std::vector<float> alibi_slopes(std::int64_t heads);

/// Dropout on the normalised probabilities. The dropped elements are a pure function of seed,
/// offset and the element's global (batch, head, row, column): the same on every device, for every
/// tile size, algorithm and number of ranks.
struct Dropout {
  /// In [0, 1 - 2^-16), rounded to steps of 2^-15; 0: off. Kept probabilities are divided by 1
  /// minus the rounded value.
  double probability = 0;
  std::uint64_t seed = 0;    ///< Selects the random bits, together with `offset`.
  std::uint64_t offset = 0;  ///< Selects them together with `seed`; a training loop increments it each step.
  /// {seed, offset} in memory of the data's device, read when the kernel runs, so that each replay
  /// of a CUDA graph can draw new bits; null: use the two values above.
  const std::uint64_t* state = nullptr;
};

/// The global position of a problem's first row, column, batch entry and query head. With it a
/// shard of a longer sequence is masked, biased and dropped exactly as within the whole.
struct Origin {
  std::int64_t row = 0;     ///< Global index of query 0.
  std::int64_t column = 0;  ///< Global index of key 0.
  std::int64_t batch = 0;   ///< Global index of batch entry 0.
  std::int64_t head = 0;    ///< Global index of query head 0.
};

/// The operation, without the data:
///
///     O = dropout(softmax(softcap(scale * Q K^T) + bias + alibi + mask)) V
struct Attention {
  /// Factor on Q K^T: 0, or from 2^-100 to 2^100 in magnitude (fp64: 2^-1000 to 2^1000). Default:
  /// 1 / sqrt(head_dim of q).
  std::optional<double> scale{};
  Mask mask{};  ///< Which keys each query may attend to. Default: all.
  /// cap * tanh(s / cap) on the scaled scores; 0: off. softcap and scale / softcap have the range
  /// of scale.
  double softcap = 0;
  Alibi alibi{};                               ///< Linear biases. Default: none.
  Dropout dropout{};                           ///< Default: none.
  Origin origin{};                             ///< Default: the problem is not a shard.
  Algorithm algorithm = Algorithm::automatic;  ///< How attention is computed.
  bool deterministic = false;                  ///< Makes backward bitwise reproducible on GPUs, too.
};

/// The tensors of a forward call. Query head h reads key/value head h / (Hq / Hkv).
struct ForwardTensors {
  Tensor q{};  ///< (batch, Nq, Hq, d_qk)
  Tensor k{};  ///< (batch, Nk, Hkv, d_qk); Hkv divides Hq.
  Tensor v{};  ///< (batch, Nk, Hkv, d_v)
  /// Optional: (batch|1, Hq|1, Nq|1, Nk), the type of q or its accumulator type. A bias of
  /// -infinity masks the key out, whatever q, k and v hold.
  Tensor bias{};
  Tensor out{};  ///< Written: (batch, Nq, Hq, d_v)
  /// Optional, written: (batch, Hq, Nq, 1) in fp32 (fp64 for fp64). The natural logarithm of the
  /// sum of exponentiated scores, before dropout.
  Tensor lse{};
  /// Optional: (batch|1, Hq|1, Nq|1, Nk), boolean. A query may attend to a key where the element is
  /// not 0 and `attention.mask` allows it, too. Blocks of keys that it hides from a tile of queries
  /// cost no time. CPU only.
  Tensor visible{};
};

/// The tensors of a backward call. Only the gradients whose tensors are given are computed; at
/// least one is required.
struct BackwardTensors {
  Tensor q{};          ///< As passed to forward.
  Tensor k{};          ///< As passed to forward.
  Tensor v{};          ///< As passed to forward.
  Tensor bias{};       ///< As passed to forward.
  Tensor out{};        ///< The output of forward.
  Tensor lse{};        ///< The LSE of forward.
  Tensor grad_out{};   ///< Gradient of `out`.
  Tensor grad_lse{};   ///< Optional: gradient of `lse`, same shape and type.
  Tensor grad_q{};     ///< Written, shape and type of q.
  Tensor grad_k{};     ///< Written, shape and type of k.
  Tensor grad_v{};     ///< Written, shape and type of v.
  Tensor grad_bias{};  ///< Written, shape and type of bias: the sum over the broadcast dimensions.
  Tensor visible{};    ///< As passed to forward.
};

/// Computes attention. It overwrites all elements of the outputs; a row without visible keys gives
/// 0 and an LSE of -infinity.
///
/// On the CPU the call returns when the result is complete; on a GPU it enqueues work on
/// `execution.stream` and returns. Throws Error. After a failure the outputs are untouched, unless
/// the code is device_failure or the caller's executor threw: then they may be partly written.
/// Exceptions of the caller's executor and allocator leave the call, as execution.h says.
///
/// **Reproducible.** The same call on the same device gives bit for bit the same result, for any
/// `execution`. A row of `out` and `lse` depends only on its own head of its own sequence: other
/// batch entries, packed sequences and heads in the call, and their number, do not change a bit. A
/// shard by batch or by heads therefore gives the bits of the whole. Kernel, tiles and the order of
/// sums follow from the lengths of the sequence, head_dim, type, mask, options and device; on GPUs
/// also from strides and alignment. GPUs have two exceptions:
/// - The host does not know the lengths of packed sequences. A packed sequence has the bits of the
///   same sequence packed alone, which may differ from those of a plain batch. (On the CPU they are
///   equal.)
/// - cuBLAS computes the products of `Algorithm::standard` and chooses by the shape of the whole
///   call. The bits may depend on the number of heads, in backward also on the batch, and on the
///   longest packed sequence.
///
/// **One visible key.** Without dropout, a row with one visible key of finite score gives the value
/// of that key bit for bit, with three exceptions:
/// - -0 may become +0.
/// - Kernels that multiply bf16 in hardware (a plan names `avx512_bf16` or `amx`) flush subnormal
///   values of bf16 to 0.
/// - Where a bias of -infinity hides the other keys, `cuda.flash2` in fp32 may round the value, as
///   it rounds any other sum. Masks have no such effect.
///
/// **Range.** scale * q, q.k and the scores must fit the accumulator type. So must, for each row
/// and element of v, the sum of |v| over the visible keys, because kernels divide by the sum of the
/// weights last. Only fp32, bf16 and fp64 values can be that large: 64 keys may have values up to
/// 5e36.
///
/// **Non-finite inputs.** When a mask, `visible` or a bias of -infinity hides a key from a row,
/// neither reaches the results and gradients of the other, even when it holds NaN. When the weight
/// of a visible key rounds to 0 or dropout drops it, a NaN or infinity in its value may or may not
/// reach the row.
///
/// **Floating-point environment.** That of the calling thread has no influence: under any rounding
/// mode, flushing of subnormal numbers or enabled trap (`feenableexcept`) the result has the same
/// bits, and nothing traps. The call restores the environment, including exception flags. Executors
/// and allocators run in the default environment.
TESSERA_API void forward(const Attention& attention, const ForwardTensors& tensors,
                         const Execution& execution = {});

/// Computes the gradients of `forward` by recomputation, from q, k, v, out and lse of the same
/// description. The probabilities follow from `lse` and `out`. Both may belong to a longer row of
/// which this call holds a shard; the gradients of the shards then sum to those of the whole.
///
/// Returns, throws and treats inputs as `forward` does.
///
/// **Reproducible**, as `forward` is and with the same exceptions; on GPUs when
/// `attention.deterministic` is set. A row of `grad_q` depends only on its own head of its own
/// sequence. A row of `grad_k` and `grad_v` is a sum over the query heads of its group: a shard by
/// heads gives the bits of the whole if it keeps groups together. `grad_bias` is a sum over the
/// broadcast dimensions and depends on all of them.
TESSERA_API void backward(const Attention& attention, const BackwardTensors& tensors,
                          const Execution& execution = {});

}  // namespace tessera
