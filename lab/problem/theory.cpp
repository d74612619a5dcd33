#include "lab/problem/theory.h"

#include "api/problem_of.h"
#include "api/shapes.h"

namespace tessera::lab {

core::Cost cost_of(const Operation& operation, Direction direction, Algorithm algorithm, std::int64_t block_q,
                   std::int64_t block_k, double fast_memory_bytes) {
  const Attention attention = operation.host_attention();
  const Shapes& shapes = operation.shapes();
  const core::Problem problem =
      direction == Direction::forward
          ? api::problem_of(attention, api::forward_tensors(attention, shapes, Device::cpu()),
                              api::Data::optional)
          : api::problem_of(attention, api::backward_tensors(attention, shapes, Device::cpu()),
                              api::Data::optional);
  return core::cost(problem, algorithm, block_q, block_k, fast_memory_bytes);
}

Theory theory_of(const Operation& operation, Direction direction, std::int64_t block_q,
                 std::int64_t block_k) {
  const Shapes& s = operation.shapes();
  const auto element = static_cast<double>(size_of(s.dtype));
  const auto qk_dim = static_cast<double>(s.qk_dim), v_dim = static_cast<double>(s.v_dim);
  const double pairs = static_cast<double>(s.batch) * static_cast<double>(s.q_heads) *
                       static_cast<double>(s.q_length) * static_cast<double>(s.k_length);
  const double tile = static_cast<double>(block_k) * (qk_dim + v_dim);
  return {.tile_bytes = cost_of(operation, direction, Algorithm::flash1, block_q, block_k, 0).traffic_bytes,
          .bound_bytes = tile > 0 ? element * pairs * qk_dim * v_dim / tile : 0};
}

}  // namespace tessera::lab
