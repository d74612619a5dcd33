// One head of one sequence: its rows in memory, its band and its random stream.
#pragma once

#include <cstdint>

#include "core/base/float16.h"
#include "core/online_softmax.h"
#include "core/problem.h"

namespace tessera::cpu {

struct HeadView {
  const core::Problem& p;
  core::Sequence s;
  std::int64_t q_head;
  std::int64_t kv_head;
  core::DropoutStream stream;

  HeadView(const core::Problem& problem, std::int64_t sequence, std::int64_t head)
      : p(problem),
        s(core::sequence(problem, sequence)),
        q_head(head),
        kv_head(problem.kv_head(head)),
        stream(problem.dropout ? core::dropout_stream(problem, sequence, head) : core::DropoutStream{}) {}

  // Row i of the queries, or of a tensor of their shape; row j of the keys or values.
  template <typename T>
  T* query_row(const core::View& view, std::int64_t i) const {
    return view.row<T>(s.tensor_batch, q_head, s.q_begin + i);
  }
  template <typename T>
  T* key_row(const core::View& view, std::int64_t j) const {
    return view.row<T>(s.tensor_batch, kv_head, s.k_begin + j);
  }
};

}  // namespace tessera::cpu
