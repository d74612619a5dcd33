// cuda.flash2, backward, by recomputation: a thread block owns a tile of keys of one key/value head and streams the blocks
// of queries that see it, for every query head of the group.
//
//   issue_qk           S^T = K Q^T, and dP^T = V dO^T
//   apply_mask         what a query does not see becomes 0 in P and dS
//   P = 2^(S - LSE)    and dS = P o (dP - delta), packed to 16 bits
//   issue_dv, issue_dk dV += P^T dO, dK += dS^T Q, in registers, one owner each: no atomics
//   issue_dq           dQ = dS K of this tile of keys, added to fp32 sums in global memory, in deterministic mode in turns
//                      (backward_turns.cuh); left out when dQ is not asked for or has a kernel of its own
//
// Two forms. With one split a warp holds all queries of a step for its 32 keys, 32 queries at a time: P and dS go from the
// accumulators straight into the next product, only dS passes through shared memory, for dQ. With more splits the warps
// that share 32 keys split the queries in the scores and head_dim in the sums: P and dS both pass through shared memory,
// and registers hold head_dim / splits columns of dK and dV. Wide heads need that.
//
// Steps go from the last query to the first. Their rows are copied a step ahead: by cp.async into the other stage, or, where
// there is none, through registers into the only one. dQ comes last, so that dV and dK have the copy's time; without
// cp.async it comes first, and leaves its registers to the rows that arrive.
//
// Traffic per tile of keys: K, V read and dK, dV written once; Q, dO, 8 bytes of statistics per row and the fp32 sums of dQ
// (a reduction each) once per step.
#pragma once

#include <type_traits>

#include "cuda/flash2/backward_key_tile.cuh"
#include "cuda/flash2/backward_turns.cuh"

namespace tessera::cuda::flash2 {

// What a thread holds of the next step where there is no cp.async.
template <BackwardConfig C>
struct ArrivingQueries {
  HeldRows<C.head_dim, C.block_q, C.threads()> q, grad_out;
  uint4 statistics;
};

template <typename Config>
__device__ __forceinline__ void compute_key_tile(const BackwardArguments& a) {
  constexpr BackwardConfig C = Config::value;
  constexpr int D = C.head_dim, kBlockQ = C.block_q, kWidth = C.width(), kColumns = D / C.splits;
  constexpr bool kUnaligned = C.variant != Variant::plain, kDropout = C.variant == Variant::dropout;
  constexpr int kChunk = C.chunk();
  constexpr bool kThroughRegisters = C.through_registers();
  constexpr bool kEarly = C.stages > 1 || kThroughRegisters;  // the next step is fetched during this one
  constexpr bool kTight = C.splits == 1 || C.stages == 1 || kBefore90;  // see keep_apart
  constexpr bool kInTurns = C.in_turns;
  constexpr Engine E = C.engine;
  constexpr Half16 kType = type_of(E);
  using Shared = BackwardShared<Config::value>;
  using Tile = SharedTile<D>;
  using Scores = SharedTile<kBlockQ>;
  static_assert(C.splits == 1 || kColumns % 64 == 0, "the columns of a split are whole groups of chunks");
  static_assert(kWidth % 16 == 0);
  extern __shared__ __align__(1024) unsigned char shared[];

  const core::Problem& p = a.problem;
  KeyTile& tile = *reinterpret_cast<KeyTile*>(shared + Shared::kTile);
  {
    std::uint32_t index = blockIdx.x;
    if (kInTurns && a.turns != nullptr) {  // see backward_turns.cuh
      if (threadIdx.x == 0) tile.ticket = atomicAdd(a.ticket, 1U);
      __syncthreads();
      index = tile.ticket;
    }
    const auto task = a.order[index];
    const core::Sequence s = core::sequence(p, task.sequence);
    const core::Tiling tiling{s.k_length, C.block_k(), p.blocks ? p.blocks.block_k : 0};
    if (task.tile >= tiling.count()) return;
    const core::Tile keys = tiling[task.tile];
    if (threadIdx.x == 0) {
      tile.keys = {static_cast<int>(task.sequence), static_cast<int>(task.head), static_cast<int>(keys.begin),
                   static_cast<int>(keys.end)};
      tile.q_begin = static_cast<int>(s.q_begin), tile.k_begin = static_cast<int>(s.k_begin);
      tile.q_length = static_cast<int>(s.q_length);
      tile.band = core::diagonals(s.band);
      tile.turn = nullptr;
      QueryRuns runs(p, tile.keys);
      tile.run[0] = runs.next(p, tile.keys, kBlockQ);
      tile.runs = runs;
      if (kUnaligned && tile.run[0].head >= 0) tile.options[0] = head_options(p, s, tile.run[0].head);
    }
  }
  __syncthreads();
  const std::uint32_t base = ptx::shared_address(shared);
  const std::uint32_t grad_scores = base + Shared::kGradScores, scores = base + Shared::kScores;

  // ---- copies: a block of queries into a stage ----
  // Addresses are computed for each copy: 64-bit numbers that live through the loop are too dear.
  auto block_of = [&](int head, int query) {  // among all heads' blocks
    const int sequence = tile.keys.sequence;
    return head * a.blocks.per_head +
           (p.packed ? tile.q_begin / kQueryBlock + sequence
                     : sequence * std::int64_t{(tile.q_length + kQueryBlock - 1) / kQueryBlock}) +
           query / kQueryBlock;
  };
  auto load_queries = [&](int head, int begin, int stage) {
    const std::uint32_t to = base + Shared::kStages + stage * Shared::kStageBytes;
    const int batch = p.packed ? 0 : tile.keys.sequence;
    load_rows<D, kBlockQ, C.threads(), copies_async(E), kUnaligned>(
        SharedTile<D>{to}, rows_of<C.variant>(p.q, batch, head, tile.q_begin, p.qk_dim), begin,
        tile.q_length);
    load_rows<D, kBlockQ, C.threads(), copies_async(E), kUnaligned>(
        SharedTile<D>{to + C.query_tile_bytes()},
        rows_of<C.variant>(p.grad_out, batch, head, tile.q_begin, p.v_dim), begin, tile.q_length);
    if (threadIdx.x < 2 * kBlockQ / 4) {  // four numbers each: LSE, then delta
      const int which = static_cast<int>(threadIdx.x) / (kBlockQ / 4);
      const int at = static_cast<int>(threadIdx.x) % (kBlockQ / 4) * 4;
      const float* from = a.statistics + block_of(head, begin) * (2 * kQueryBlock) + which * kQueryBlock +
                          begin % kQueryBlock + at;
      const std::uint32_t target =
          base + Shared::kStatistics + stage * Shared::kStatisticsBytes + (which * kBlockQ + at) * 4;
      if constexpr (copies_async(Config::value.engine)) ptx::copy_async(target, from, true);
      else ptx::store_shared(target, *reinterpret_cast<const uint4*>(from));
    }
  };
  // The same where there is no cp.async: fetched early in a step, stored when the step no longer needs the place.
  ArrivingQueries<Config::value> arriving;
  auto fetch_queries = [&](int head, int begin) {
    const int batch = p.packed ? 0 : tile.keys.sequence;
    arriving.q.template fetch<false, false>(rows_of<C.variant>(p.q, batch, head, tile.q_begin, p.qk_dim),
                                            begin, tile.q_length);
    arriving.grad_out.template fetch<false, false>(
        rows_of<C.variant>(p.grad_out, batch, head, tile.q_begin, p.v_dim), begin, tile.q_length);
    const int which = static_cast<int>(threadIdx.x) / (kBlockQ / 4);
    const int at = static_cast<int>(threadIdx.x) % (kBlockQ / 4) * 4;
    if (which < 2) {
      arriving.statistics =
          __ldg(reinterpret_cast<const uint4*>(a.statistics + block_of(head, begin) * (2 * kQueryBlock) +
                                               which * kQueryBlock + begin % kQueryBlock + at));
    }
  };
  auto store_fetched = [&](int stage) {
    const std::uint32_t to = base + Shared::kStages + stage * Shared::kStageBytes;
    arriving.q.template put<false, false>({to}, {}, 0, 0);
    arriving.grad_out.template put<false, false>({to + C.query_tile_bytes()}, {}, 0, 0);
    if (threadIdx.x < 2 * kBlockQ / 4) {
      ptx::store_shared(base + Shared::kStatistics + stage * Shared::kStatisticsBytes + threadIdx.x * 16,
                        arriving.statistics);
    }
  };

  auto load_keys = [&](std::uint32_t to, const core::View& view, std::int64_t columns) {
    load_rows<D, C.block_k(), C.threads(), copies_async(E), kUnaligned>(
        SharedTile<D>{to},
        rows_of<C.variant>(view, p.packed ? 0 : tile.keys.sequence, tile.keys.kv_head, tile.k_begin, columns),
        tile.keys.begin, tile.keys.end);
  };
  // The tile of the bias has one copy, to be overwritten when all scores of a step are there.
  constexpr bool kBiasLater = C.splits == 1 && kEarly;  // than the next step's other rows
  auto load_bias_tile = [&](int which, int begin) {
    if constexpr (Config::value.stages_bias()) {
      if (!a.bias_staged || tile.run[which].head < 0) return;
      const RowSource rows{
          static_cast<const std::uint16_t*>(p.bias.data) + tile.options[which].bias + tile.keys.begin,
          p.bias.row_stride, static_cast<int>(p.k_length) - tile.keys.begin, true};
      load_rows<C.block_k(), kBlockQ, C.threads(), true, false>(SharedTile<C.block_k()>{base + Shared::kBias},
                                                                rows, begin, tile.q_length);
    }
  };
  load_keys(base, p.k, p.qk_dim);
  load_keys(base + Shared::kV, p.v, p.v_dim);
  if (tile.run[0].head >= 0) load_queries(tile.run[0].head, tile.run[0].begin, 0);
  load_bias_tile(0, tile.run[0].begin);
  commit_copies<E>();

  // dQ: a warp takes up to 32 queries x kDqColumns columns of a step.
  constexpr int kDqTiles = kBlockQ >= 32 ? 2 : 1, kDqAcross = kBlockQ / (16 * kDqTiles);
  constexpr int kDqColumns = D * kDqAcross / C.warps();
  constexpr int kDqPart = kDqColumns > 32 ? 32 : kDqColumns;  // at a time
  static_assert(kDqColumns % 16 == 0 && kDqColumns <= 64);

  float grad_k[2][kColumns / 8][4] = {}, grad_v[2][kColumns / 8][4] = {};
  QueryStep step{tile.run[0].begin, 0, 0}, next = step;
  // Finds the next step and begins to copy it.
  auto prefetch = [&] {
    int begin = step.begin - kBlockQ, which = step.which;
    if (step.begin <= tile.run[which].first) {
      which ^= 1;
      if (threadIdx.x == 0) {
        QueryRuns runs = tile.runs;
        const QueryRun run = runs.next(p, tile.keys, kBlockQ);
        if (kUnaligned && run.head >= 0)
          tile.options[which] = head_options(p, core::sequence(p, tile.keys.sequence), run.head);
        tile.run[which] = run;
        tile.runs = runs;
      }
      __syncthreads();
      begin = tile.run[which].begin;
    }
    next = {begin, which, C.stages > 1 ? step.stage ^ 1 : 0};
    if (tile.run[which].head >= 0) {
      if constexpr (kThroughRegisters) fetch_queries(tile.run[which].head, begin);
      else load_queries(tile.run[which].head, begin, next.stage);
    }
    if constexpr (!kBiasLater) load_bias_tile(which, begin);
    commit_copies<E>();
  };
  // Deterministic mode: thread 0 looks early in a step whose turn it is, and before the barrier in front of the reductions
  // waits, if need be, and passes on the turn of the step before, whose reductions lie behind a barrier.
  std::uint32_t turns_done = 0;
  auto own_turn = [&] {
    return a.turns + block_of(tile.run[step.which].head, step.begin) * kTurnsPerBlock +
           step.begin % kQueryBlock / kTurnQueries;
  };
  auto look_for_turn = [&] {
    if (kInTurns && a.turns != nullptr && threadIdx.x == 0) turns_done = load_turn(own_turn());
  };
  auto take_turn = [&] {
    if (!kInTurns || a.turns == nullptr || threadIdx.x != 0) return;
    const int before = tile.keys.begin / C.block_k() - max(0, step.begin + tile.band.low) / C.block_k();
    std::uint32_t* turn = own_turn();
    while (turns_done != static_cast<std::uint32_t>(before)) turns_done = load_turn(turn);
    fence();
    if (tile.turn != nullptr) pass_turn(tile.turn);
    tile.turn = turn;
  };
  // One step. Masked: some query does not see some key. Two copies of the code, so that the common one stays short.
  constexpr bool kOneCopy = C.one_copy();
  bool full = false;  // every query of the step sees every key of the tile
  auto compute_step = [&](auto masked) {
    constexpr bool kMasked = decltype(masked)::value;
    const QueryRun& run = tile.run[step.which];
    const std::uint32_t at = step.stage * Shared::kStageBytes;
    const float* statistics =
        reinterpret_cast<const float*>(shared + Shared::kStatistics) + step.stage * 2 * kBlockQ;
    // Options make a chunk long: copies of it would be more than the caches of instructions hold. A bound that the compiler
    // does not know keeps it from unrolling.
    constexpr bool kUnrolled = C.variant == Variant::plain;
    const int width = kUnrolled ? kWidth : opaque(kWidth);
    // What dropout keeps of the queries from `column` on, kDrawn at a time: before the scores, while registers are free.
    constexpr int kDrawn = kWidth < 32 ? kWidth : 32;
    std::uint32_t kept = ~0U;
    auto draw = [&](int column) {
      if (kDropout && a.features.dropout_threshold != 0) {
        kept = kept_of_keys<kDrawn / 8>(tile.options[step.which], a.features, step.begin + column,
                                        tile.keys.begin + Place<C>().group * 32);
      }
    };
    // P and dS of kChunk queries from `column` on, packed. Whether something is masked and something not finite.
    auto scores_of = [&](std::uint32_t(&p_packed)[2][kChunk / 16][4],
                         std::uint32_t(&ds_packed)[2][kChunk / 16][4], int column, std::uint32_t kept) {
      constexpr int Blocks = kChunk / 8;
      float ps[2][Blocks][4], ds[2][Blocks][4];
      const Place<C> place;
      const int lane = place.lane, first_key = tile.keys.begin + place.group * 32;
      const MatrixAddress by_row = row_operand(lane), by_column = column_operand(lane);
      const std::uint32_t own = base + Tile::offset(place.group * 32 + by_row.row, by_row.chunk);
      const std::uint32_t q =
          base + Shared::kStages + at + Tile::offset(column + by_column.row, by_column.chunk);
      issue_scores<E, D, true>(ps, own, q);
      // dP - delta comes out of the product when the sum begins with -delta.
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {
        const float2 delta =
            *reinterpret_cast<const float2*>(statistics + kBlockQ + column + j * 8 + lane % 4 * 2);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) ds[m][j][e] = e % 2 == 0 ? -delta.x : -delta.y;
        }
      }
      if constexpr (kTight) keep_apart();
      if constexpr (Config::value.splits > 1 && Config::value.stages == 1) look_for_turn();
      issue_scores<E, D, false>(ds, own + Shared::kV, q + C.query_tile_bytes());
      auto finish = [&](auto with_mask) {
        return differentiate<C, decltype(with_mask)::value>(ps, ds, a, statistics, column, step.begin, run,
                                                            tile.options[step.which], tile, first_key, kept,
                                                            base + Shared::kBias);
      };
      bool bad = false;
      if (kMasked && !(kOneCopy && full)) bad = finish(std::true_type{});
      else finish(std::false_type{});
      pack_operands<kType>(p_packed, ps);
      pack_operands<kType>(ds_packed, ds);
      return bad;
    };
    [[maybe_unused]] auto store_scores =
        [&]<int Pairs>(std::uint32_t to, const std::uint32_t(&packed)[2][Pairs][4], int column) {
          const Place<C> place;
          const int lane = place.lane;
#pragma unroll
          for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < Pairs; ++n) {
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                const int row = place.group * 32 + m * 16 + lane / 4 + r % 2 * 8,
                          chunk = column / 8 + 2 * n + r / 2;
                ptx::store_shared(to + Scores::offset(row, chunk) + lane % 4 * 4, packed[m][n][r]);
              }
            }
          }
        };
    // Zeros of a masked step must not meet what is not finite.
    auto clear_queries = [&](int first, int last) {
      clear_not_finite<kType, D, C.threads()>(base + Shared::kStages + at, first, last);
      clear_not_finite<kType, D, C.threads()>(base + Shared::kStages + at + C.query_tile_bytes(), first,
                                              last);
      __syncthreads();
    };
    // The lane's address in row 0 of Q, for products that contract queries.
    auto contracted = [&] {
      const Place<C> place;
      const MatrixAddress by_row = row_operand(place.lane);
      return base + Shared::kStages + at +
             Tile::offset(by_row.row, place.split * (kColumns / 8) + by_row.chunk);
    };
    int live_begin = 0, live_end = C.block_k() / 16;  // of dQ's contraction, in units of 16 keys
    bool careful = false;

    // dQ of this tile of keys, added to the sums.
    auto issue_dq = [&] {
      if (careful) {
        clear_not_finite<kType, D, C.threads()>(base, 0, C.block_k());
        __syncthreads();
      }
      float* to = a.grad_q_sums + block_of(run.head, step.begin) * (kQueryBlock * D);
      const Place<C> place;
      const MatrixAddress by_row = row_operand(place.lane), by_column = column_operand(place.lane);
      const int dq_row = place.warp % kDqAcross * 32;
      const std::uint32_t left_lane =
          grad_scores + Scores::offset(by_column.row, dq_row / 8 + by_column.chunk);
#pragma unroll
      for (int part = 0; part < kDqColumns; part += kDqPart) {
        if constexpr (kDqPart < kDqColumns) keep_apart();
        const int dq_column = place.warp / kDqAcross * kDqColumns + part;
        const std::uint32_t right_lane = base + Tile::offset(by_row.row, dq_column / 8 + by_row.chunk);
        float grad_q[kDqTiles][kDqPart / 8][4] = {};
#pragma unroll
        for (int n = 0; n < C.block_k() / 16; ++n) {
          if (kMasked && C.splits == 1 && (n < live_begin || n >= live_end)) continue;
          if constexpr (kThroughRegisters) keep_apart();
          std::uint32_t left[kDqTiles][1][4];
#pragma unroll
          for (int m = 0; m < kDqTiles; ++m)
            ptx::load_matrix_transposed(left[m][0], (left_lane ^ (m << 5)) + n * 16 * Scores::kRowBytes);
          issue_sums<E, D>(grad_q, left, right_lane, n * 16);
        }
#pragma unroll
        for (int m = 0; m < kDqTiles; ++m) {
#pragma unroll
          for (int j = 0; j < kDqPart / 8; ++j) {
            reduce_fragment(
                to + fragment_offset(D, step.begin % kQueryBlock + dq_row + m * 16, dq_column + j * 8),
                grad_q[m][j]);
          }
        }
      }
    };

    if constexpr (Config::value.splits == 1) {
      // Keys that the step sees; other warps have nothing to add, and dQ leaves their keys out.
      if constexpr (kMasked) {
        const int first = max(run.first, step.begin), last = min(run.last, step.begin + kBlockQ);
        live_begin = max(0, first + tile.band.low - tile.keys.begin) / 32 * 2;
        live_end = (min(tile.keys.end, last + tile.band.high) - tile.keys.begin + 31) / 32 * 2;
      }
      const int group = static_cast<int>(threadIdx.x) / 32;
      const bool live = !kMasked || (2 * group >= live_begin && 2 * group < live_end);
#pragma unroll
      for (int column = 0; column < width; column += kChunk) {
        std::uint32_t p_packed[2][kChunk / 16][4], ds_packed[2][kChunk / 16][4];
        bool bad = false;
        keep_apart();
        if (live) {
          if (column % kDrawn == 0) draw(column);
          bad = scores_of(p_packed, ds_packed, column, kept >> (column % kDrawn / 2));
        }
        if (column + kChunk == kWidth) look_for_turn();
        if (kMasked && __syncthreads_or(bad)) {
          careful = true;
          clear_queries(column, column + kChunk);
        }
        if (kEarly && column == 0) prefetch();
        if (!live) continue;
        if (a.grad_q_sums != nullptr) store_scores(grad_scores, ds_packed, column);
        issue_sums<E, D>(grad_v, p_packed, contracted() + C.query_tile_bytes(), column);
        issue_sums<E, D>(grad_k, ds_packed, contracted(), column);
      }
      if (a.grad_q_sums != nullptr) take_turn();
      const bool bias_follows = C.stages_bias() && kBiasLater && a.bias_staged;
      if (a.grad_q_sums != nullptr || bias_follows) __syncthreads();
      if (bias_follows) {
        load_bias_tile(next.which, next.begin);
        commit_copies<E>();
      }
      if (a.grad_q_sums != nullptr) issue_dq();
    } else {
#pragma unroll
      for (int column = 0; column < width; column += kChunk) {
        std::uint32_t p_packed[2][kChunk / 16][4], ds_packed[2][kChunk / 16][4];
        if constexpr (kTight) keep_apart();
        const int from = Place<C>().split * kWidth + column;
        if (kWidth * C.splits > kBlockQ && from >= kBlockQ) break;
        if (column % kDrawn == 0) draw(from);
        careful |= scores_of(p_packed, ds_packed, from, kept >> (column % kDrawn / 2));
        store_scores(scores, p_packed, from);
        store_scores(grad_scores, ds_packed, from);
      }
      take_turn();
      if constexpr (!kMasked) {
        __syncthreads();
      } else {
        careful = __syncthreads_or(careful) != 0;
        if (careful) clear_queries(0, kBlockQ);
      }
      auto add_rows = [&](float(&sums)[2][kColumns / 8][4], std::uint32_t left_tile, std::uint32_t right) {
        const Place<C> place;
        const MatrixAddress by_row = row_operand(place.lane);
        const std::uint32_t left_lane =
            left_tile + Scores::offset(place.group * 32 + by_row.row, by_row.chunk);
#pragma unroll
        for (int n = 0; n < kBlockQ / 16; ++n) {
          std::uint32_t left[2][1][4];
#pragma unroll
          for (int m = 0; m < 2; ++m)
            ptx::load_matrix(left[m][0], (left_lane ^ (n << 5)) + m * 16 * Scores::kRowBytes);
          issue_sums<E, D>(sums, left, right, n * 16);
        }
      };
      if constexpr (kThroughRegisters) {
        if (a.grad_q_sums != nullptr) issue_dq();
        prefetch();  // into registers that dQ has left
        keep_apart();
      }
      add_rows(grad_v, scores, contracted() + C.query_tile_bytes());
      if constexpr (kTight) keep_apart();
      if constexpr (Config::value.stages > 1 && D == 256) prefetch();  // twice the bytes, half a step earlier
      add_rows(grad_k, grad_scores, contracted());
      if constexpr (Config::value.stages > 1 && D < 256) prefetch();
      if constexpr (!kThroughRegisters) {
        if (a.grad_q_sums != nullptr) issue_dq();
      }
    }
    if (careful && a.grad_q_sums != nullptr) {  // K as it was
      __syncthreads();
      load_keys(base, p.k, p.qk_dim);
      commit_copies<E>();
    }
  };
  while (tile.run[step.which].head >= 0) {
    wait_copies<E>();
    __syncthreads();  // the stage has arrived, and everyone is done with the step before
    if constexpr (C.splits > 1 && C.stages > 1) look_for_turn();
    const QueryRun& run = tile.run[step.which];
    const int begin = step.begin;
    full =
        begin >= run.first && begin + kBlockQ <= run.last && tile.keys.end - tile.keys.begin == C.block_k() &&
        tile.keys.begin >= begin + kBlockQ - 1 + tile.band.low && tile.keys.end - 1 <= begin + tile.band.high;
    if (!kOneCopy && full) compute_step(std::false_type{});
    else compute_step(std::true_type{});
    if constexpr (C.stages == 1) __syncthreads();
    if constexpr (!kEarly) prefetch();
    step = next;
    if constexpr (kThroughRegisters) {
      if (tile.run[step.which].head >= 0) store_fetched(step.stage);
    }
  }

  // ---- finalize: dK and dV through the room of K and V ----
  wait_copies<E>();
  __syncthreads();
  if (kInTurns && threadIdx.x == 0 && tile.turn != nullptr) {
    fence();
    pass_turn(tile.turn);
  }
  const Place<C> place;
  stage_rows<kType, D>(base, place.group * 32, place.split * (kColumns / 8), grad_k, a.gradient_scale());
  stage_rows<kType, D>(base + Shared::kV, place.group * 32, place.split * (kColumns / 8), grad_v,
                       a.features.keep_scale);
  __syncthreads();
  auto store = [&](const core::View& view, std::uint32_t from, std::int64_t columns) {
    const RowSource to = rows_of<C.variant>(view, p.packed ? 0 : tile.keys.sequence, tile.keys.kv_head,
                                            tile.k_begin + tile.keys.begin, columns);
    store_rows<D>(from, const_cast<std::uint16_t*>(to.data), to.stride, 0, tile.keys.end - tile.keys.begin,
                  to.columns, to.aligned, static_cast<int>(threadIdx.x), C.threads());
  };
  if (p.has_grad_k) store(p.grad_k, base, p.qk_dim);
  if (p.has_grad_v) store(p.grad_v, base + Shared::kV, p.v_dim);
}

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), Config::value.thread_blocks)
    backward_keys(const __grid_constant__ BackwardArguments a) {
  // No GPU before 9.0 has more than 163 KB of shared memory for a thread block.
  if constexpr (!kBefore90 || BackwardShared<Config::value>::kBytes <= 163 * 1024)
    compute_key_tile<Config>(a);
}

template <BackwardConfig C>
constexpr BackwardKernel keys_kernel() {
  return {&backward_keys<Use<C>>,
          C.head_dim,
          C.variant,
          C.block_q,
          C.block_k(),
          C.threads(),
          BackwardShared<C>::kBytes,
          C.in_turns,
          C.thread_blocks,
          BackwardShared<C>::kBiasBytes};
}

}  // namespace tessera::cuda::flash2
