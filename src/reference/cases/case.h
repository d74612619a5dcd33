// Random problems over the whole contract, described by one plain struct.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/attention.h"

namespace tessera::reference {

// The shape of the bias: full (B, H, Nq, Nk), per_head (1, H, Nq, Nk), per_batch (B, 1, Nq, Nk),
// row (1, 1, 1, Nk).
enum class BiasKind { none, full, per_head, per_batch, row };

// The shape of the boolean mask, as for a bias. Its elements are a patchwork of hidden, visible and
// random patches, some with rows that see nothing, and have values other than 0 and 1. padding: (B,
// 1, 1, Nk), which hides the last or the first keys of each batch entry.
enum class VisibleKind { none, full, per_head, per_batch, row, padding };

enum class BlockKind { none, local, strided, fixed, big_bird, butterfly, random, random_per_head };

// Everything that describes a random problem; meant for designated initialisers.
struct CaseSpec {
  std::string name{};
  std::string feature{};  // group of the case in the table of `tessera verify`: "causal", "window", "GQA"
  DType dtype = DType::fp32;
  std::int64_t batch = 2, q_length = 65, k_length = 65;
  std::int64_t q_heads = 4, kv_heads = 4, qk_dim = 32, v_dim = 32;
  std::int64_t left = -1, right = -1;
  Align align = Align::bottom_right;
  std::optional<std::int64_t> diagonal{};
  BlockKind blocks = BlockKind::none;
  std::int64_t block_q = 32, block_k = 32;
  bool packed = false;  // `batch` sequences of different lengths (also zero), q_length and k_length at most
  BiasKind bias = BiasKind::none;
  bool alibi = false;
  double softcap = 0;
  double dropout = 0;
  bool grad_lse = false;
  Origin origin{};
  double input_scale = 1;  // standard deviation of q, k and v
  std::optional<double> scale{};
  std::uint64_t seed = 1;
  bool bias_in_accumulator_type = false;  // else in the type of q
  bool alibi_per_batch = false;           // other slopes for each batch entry
  bool dropout_state = false;             // seed and offset by pointer
  VisibleKind visible = VisibleKind::none;
};

// One line with every field that differs from its default: enough to reproduce the case.
std::string describe(const CaseSpec& spec);

// A problem with its memory. Inputs are random and depend on the spec alone; outputs start as NaN.
class Case {
 public:
  explicit Case(const CaseSpec& spec);
  Case(Case&&) = default;
  Case& operator=(Case&&) = default;

  [[nodiscard]] const CaseSpec& spec() const { return spec_; }

  Attention attention;  // its pointers lead into this object
  ForwardTensors forward;
  BackwardTensors backward;

  // Fills every output and gradient with NaN.
  void poison();

 private:
  void make_lengths();
  void make_tensors();
  Tensor allocate(DType dtype, const Extents& shape);
  Tensor visible_tensor();
  Tensor random_tensor(DType dtype, const Extents& shape, double deviation, std::uint64_t stream);

  CaseSpec spec_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::vector<std::int32_t> cumulative_q_, cumulative_k_;
  std::vector<float> slopes_;
  std::unique_ptr<std::uint64_t[]> dropout_state_;
};

// The cases `tessera verify` runs: every feature of the contract and useful combinations, small odd
// sizes.
std::vector<CaseSpec> feature_matrix(DType dtype);

}  // namespace tessera::reference
