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

double executed_flops(const Operation& operation, Direction direction, Algorithm algorithm,
                      std::int64_t block_q, std::int64_t block_k) {
  const Shapes& s = operation.shapes();
  const core::Cost visits = cost_of(operation, direction, algorithm, block_q, block_k, 0);
  const bool standard = algorithm == Algorithm::standard;
  const double pairs = standard ? visits.all_pairs : visits.visited_pairs;
  const double rows =
      static_cast<double>(s.batch) * static_cast<double>(s.q_heads) * static_cast<double>(s.q_length);
  const auto qk_dim = static_cast<double>(s.qk_dim), v_dim = static_cast<double>(s.v_dim);
  const double dropout = operation.problem().dropout > 0 ? 1 : 0;
  if (direction == Direction::backward) {
    return pairs * (2 * (3 * qk_dim + 2 * v_dim) + 5 + 2 * dropout) + 2 * rows * v_dim;
  }
  const double shared = pairs * (2 * (qk_dim + v_dim) + 5 + dropout);
  if (standard) return shared + pairs;
  if (algorithm == Algorithm::flash1) return shared + visits.query_loads * (3 * v_dim + 1);
  return shared + visits.query_loads * (v_dim + 1) + rows * v_dim;
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
          .bound_bytes = tile > 0 ? element * pairs * qk_dim * v_dim / tile : 0,
          .bound_memory_bytes = element * tile};
}

}  // namespace tessera::lab
