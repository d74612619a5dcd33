#include "core/cost.h"

#include <algorithm>

#include "core/visibility.h"

namespace tessera::core {
namespace {

// The work that the mask leaves; see cost.h.
struct Visits {
  double pairs = 0;
  double convention_pairs = 0;  // as FlashAttention counts FLOPs
  double area = 0;
  double visited = 0;
  double key_loads = 0;
  double query_loads = 0;
  std::int64_t longest_keys = 0;  // from the first key to the last that one tile of queries visits, at most
  std::int64_t longest_queries = 0;  // the same of the queries that one tile of keys visits
};

// Adds what one head of one sequence visits, `times` over.
void add_head(const Problem& p, const Sequence& s, std::int64_t q_head, std::int64_t block_q,
              std::int64_t block_k, double times, Visits& visits) {
  const double square = static_cast<double>(s.q_length) * static_cast<double>(s.k_length);
  double pairs = 0;
  const Tiling q_tiles{s.q_length, block_q, p.blocks.block_q};
  for (std::int64_t t = 0; t < q_tiles.count(); ++t) {
    const Interval queries = q_tiles[t];
    const std::int64_t rows = queries.length();
    const auto row_count = static_cast<double>(rows);  // products of counts may pass 2^63
    std::int64_t first = -1, last = 0;
    for_each_tile(visible_keys(p, s, q_head, queries), s.k_length, [&](const TileRange& keys) {
      const std::int64_t width = keys.length();
      Band band = s.band;
      band.diagonal += queries.begin - keys.begin;
      const double elements = row_count * static_cast<double>(width);
      pairs += keys.kind == TileKind::full ? elements : visible_pairs(band, rows, width);
      visits.visited += times * elements;
      visits.key_loads += times * static_cast<double>(width);
      if (first < 0) first = keys.begin;
      last = keys.end;
    });
    if (first >= 0) visits.longest_keys = std::max(visits.longest_keys, last - first);
  }
  const Tiling k_tiles{s.k_length, block_k, p.blocks.block_k};
  for (std::int64_t t = 0; t < k_tiles.count(); ++t) {
    const Interval keys = k_tiles[t];
    std::int64_t first = -1, last = 0;
    for_each_tile(visible_queries(p, s, q_head, keys), s.q_length, [&](const TileRange& queries) {
      visits.query_loads += times * static_cast<double>(queries.length());
      if (first < 0) first = queries.begin;
      last = queries.end;
    });
    if (first >= 0) visits.longest_queries = std::max(visits.longest_queries, last - first);
  }
  const bool plain_causal = s.q_length == s.k_length && s.band.left == kUnbounded && s.band.right == 0 &&
                            s.band.diagonal == 0 && !p.blocks;
  visits.area += times * square;
  visits.pairs += times * pairs;
  visits.convention_pairs += times * (plain_causal ? square / 2 : pairs);
}

Visits count_visits(const Problem& p, std::int64_t block_q, std::int64_t block_k) {
  Visits visits;
  const bool lengths_known =
      p.packed && p.device.type == DeviceType::cpu && p.cumulative_q != nullptr && p.cumulative_k != nullptr;
  Problem problem = p;
  problem.packed = lengths_known;
  // Heads that share a mask and sequences of the same length visit the same.
  const std::int64_t mask_heads = p.blocks && p.blocks.heads != 1 ? p.q_heads : 1;
  const std::int64_t sequences = lengths_known ? p.batch : std::min<std::int64_t>(p.batch, 1);
  const double times = static_cast<double>(p.q_heads / std::max<std::int64_t>(mask_heads, 1)) *
                       static_cast<double>(lengths_known ? 1 : p.batch);
  for (std::int64_t index = 0; index < sequences; ++index) {
    const Sequence s = sequence(problem, index);
    if (s.q_length == 0 || s.k_length == 0) continue;
    for (std::int64_t head = 0; head < mask_heads; ++head) {
      add_head(problem, s, head, block_q > 0 ? block_q : s.q_length, block_k > 0 ? block_k : s.k_length,
               times, visits);
    }
  }
  return visits;
}

// The bytes of every tensor that the direction has.
struct Bytes {
  double element = 0, accumulator = 0;
  double rows = 0;  // query rows over batch and query heads
  double q = 0, k = 0, v = 0, out = 0, lse = 0, grad_lse = 0;
  double bias = 0, grad_bias = 0, visible = 0;
  double grad_q = 0, grad_k = 0, grad_v = 0;

  explicit Bytes(const Problem& p)
      : element(static_cast<double>(size_of(p.dtype))),
        accumulator(static_cast<double>(size_of(accumulator_of(p.dtype)))),
        rows(static_cast<double>(p.q_tokens) * static_cast<double>(p.q_heads)) {
    const double keys = static_cast<double>(p.k_tokens) * static_cast<double>(p.kv_heads);
    q = rows * static_cast<double>(p.qk_dim) * element;
    k = keys * static_cast<double>(p.qk_dim) * element;
    v = keys * static_cast<double>(p.v_dim) * element;
    out = rows * static_cast<double>(p.v_dim) * element;
    if (p.has_bias) {
      bias = static_cast<double>(p.bias_batch) * static_cast<double>(p.bias_heads) *
             static_cast<double>(p.bias_rows) * static_cast<double>(p.k_length) *
             static_cast<double>(size_of(p.bias_dtype));
    }
    if (p.has_visible) {
      visible = static_cast<double>(p.visible_batch) * static_cast<double>(p.visible_heads) *
                static_cast<double>(p.visible_rows) * static_cast<double>(p.k_length);
    }
    if (p.direction == Direction::forward) {
      if (p.has_lse) lse = rows * accumulator;
      return;
    }
    lse = rows * accumulator;
    if (p.has_grad_lse) grad_lse = lse;
    if (p.has_grad_q) grad_q = q;
    if (p.has_grad_k) grad_k = k;
    if (p.has_grad_v) grad_v = v;
    if (p.has_grad_bias) grad_bias = bias;
  }
};

class Model {
 public:
  Model(const Problem& p, std::int64_t block_q, std::int64_t block_k, double fast_memory_bytes)
      : p_(p), visits_(count_visits(p, block_q, block_k)), bytes_(p), fast_(fast_memory_bytes) {}

  Cost evaluate(Algorithm algorithm) const {
    Cost cost;
    cost.visible_pairs = visits_.pairs;
    cost.all_pairs = visits_.area;
    cost.visited_pairs = visits_.visited;
    cost.query_loads = visits_.query_loads;
    cost.flops =
        2 * visits_.convention_pairs * static_cast<double>(p_.qk_dim + p_.v_dim) * (forward() ? 1 : 2.5);
    cost.minimum_bytes = minimum();
    if (algorithm == Algorithm::standard) {
      cost.traffic_bytes = standard_traffic();
      cost.extra_bytes = visits_.area * bytes_.accumulator * (forward() ? 1 : 2);
    } else if (algorithm == Algorithm::flash1) {
      cost.traffic_bytes = flash1_traffic();
      cost.extra_bytes = flash1_extra();
    } else {
      cost.traffic_bytes = flash2_traffic();
      cost.extra_bytes = bytes_.rows * bytes_.accumulator * (forward() ? 1 : 2) + wide_grad_q();
    }
    return cost;
  }

 private:
  bool forward() const { return p_.direction == Direction::forward; }
  double qk_dim() const { return static_cast<double>(p_.qk_dim); }
  double v_dim() const { return static_cast<double>(p_.v_dim); }

  double minimum() const {
    const double inputs =
        bytes_.q + bytes_.k + bytes_.v + bytes_.out + bytes_.lse + bytes_.bias + bytes_.visible;
    if (forward()) return inputs;
    return inputs + bytes_.out + bytes_.grad_lse + bytes_.grad_q + bytes_.grad_k + bytes_.grad_v +
           bytes_.grad_bias;
  }

  double reread(double once, double loads, double working_set) const {
    return working_set <= fast_ ? once : std::max(once, loads);
  }

  // The bias, its gradient and the boolean mask, when every element of `elements` reads its own. A
  // bias of one row is read with the keys. A gradient that sums over what was broadcast is read and
  // written each time.
  double bias_traffic(double elements, double key_loads) const {
    const double size = static_cast<double>(size_of(p_.bias_dtype));
    const double loads = (p_.bias_rows == 1 ? key_loads : elements) * size;
    const bool broadcast =
        p_.bias_batch < p_.batch || p_.bias_heads < p_.q_heads || (p_.bias_rows == 1 && p_.q_length > 1);
    return reread(bytes_.bias, loads, bytes_.bias) +
           reread(bytes_.visible, p_.visible_rows == 1 ? key_loads : elements, bytes_.visible) +
           reread(bytes_.grad_bias, bytes_.grad_bias > 0 ? (broadcast ? 2 : 1) * loads : 0, bytes_.grad_bias);
  }

  double standard_traffic() const {
    double passes = (forward() ? 4 : 3) + (p_.dropout ? 2 : 0);
    if (!forward()) {
      const bool scores = p_.has_grad_q || p_.has_grad_k || p_.has_grad_bias;
      passes += (p_.has_grad_v ? 1 : 0) + (scores ? 4 : 0) + (p_.has_grad_q ? 1 : 0) +
                (p_.has_grad_k ? 1 : 0) + (p_.has_grad_bias ? 1 : 0);
    }
    return minimum() - bytes_.bias - bytes_.grad_bias - bytes_.visible +
           bias_traffic(visits_.area, visits_.area) + visits_.area * bytes_.accumulator * passes;
  }

  // What walks past each block of keys: `row_bytes` per query that visits it.
  double query_traffic(double once, double row_bytes) const {
    return reread(once, visits_.query_loads * row_bytes,
                  static_cast<double>(visits_.longest_queries) * row_bytes);
  }

  double flash1_traffic() const {
    const double e = bytes_.element, a = bytes_.accumulator;
    const double fixed = bytes_.k + bytes_.v + bytes_.lse + bias_traffic(visits_.visited, visits_.key_loads);
    if (forward()) {
      return fixed + query_traffic(bytes_.q + bytes_.out, qk_dim() * e + 2 * (v_dim() + 2) * a);
    }
    const double row = (qk_dim() + 2 * v_dim()) * e + 2 * a + (p_.has_grad_q ? 2 * qk_dim() * a : 0);
    return fixed + bytes_.grad_k + bytes_.grad_v + bytes_.grad_lse +
           query_traffic(bytes_.q + 2 * bytes_.out + bytes_.grad_q, row);
  }

  double flash2_traffic() const {
    const double e = bytes_.element, a = bytes_.accumulator;
    const double bias = bias_traffic(visits_.visited, visits_.key_loads);
    if (forward()) {
      const double key = (qk_dim() + v_dim()) * e;
      return bytes_.q + bytes_.out + bytes_.lse + bias +
             reread(bytes_.k + bytes_.v, visits_.key_loads * key,
                    static_cast<double>(visits_.longest_keys) * key);
    }
    const double delta = bytes_.rows * a;
    const double row = (qk_dim() + v_dim()) * e + 2 * a + (p_.has_grad_q ? 2 * qk_dim() * a : 0);
    return 2 * bytes_.out + delta + bytes_.grad_lse + bytes_.k + bytes_.v + bytes_.grad_k + bytes_.grad_v +
           bias + query_traffic(bytes_.q + bytes_.out + bytes_.lse + delta + bytes_.grad_q, row);
  }

  double flash1_extra() const {
    if (!forward()) return bytes_.rows * bytes_.accumulator + wide_grad_q();
    const double wide_output =
        bytes_.element < bytes_.accumulator ? bytes_.rows * v_dim() * bytes_.accumulator : 0;
    return 2 * bytes_.rows * bytes_.accumulator + wide_output;
  }

  // dQ while it is being summed up.
  double wide_grad_q() const {
    if (forward() || !p_.has_grad_q || bytes_.element == bytes_.accumulator) return 0;
    return bytes_.rows * qk_dim() * bytes_.accumulator;
  }

  const Problem& p_;
  Visits visits_;
  Bytes bytes_;
  double fast_;
};

}  // namespace

Cost cost(const Problem& p, Algorithm algorithm, std::int64_t block_q, std::int64_t block_k,
          double fast_memory_bytes) {
  return Model(p, block_q, block_k, fast_memory_bytes).evaluate(algorithm);
}

}  // namespace tessera::core
