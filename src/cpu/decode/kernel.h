// cpu.decode: forward for few queries over many keys, as the registry calls it.
#pragma once

#include <string>

#include "core/kernel.h"
#include "core/problem.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

// The most queries of a sequence that cpu.decode is preferred for: over any keys, and over many.
inline constexpr std::int64_t kFewDecodeQueries = 8;
inline constexpr std::int64_t kMostDecodeQueries = 16;

// Whether cpu.decode is preferred to cpu.flash2 for a sequence, by its own lengths. cpu.flash2 puts
// the queries of one head into its lanes: with few queries, most lanes compute nothing. With 9 to
// 16 queries it is ahead while K and V stay in the caches. Measured on Zen 5, 12 heads of head_dim
// 64, time of cpu.decode / cpu.flash2: fp32 12 queries 1.12 (16 keys), 0.98 (32), 0.89 (64) and
// 0.95 (2048), 16 queries 1.35 (16), 1.15 (64) and 1.24 (2048); fp16 12 queries 1.2 (64) and 0.79
// (512), 16 queries 0.89 (2048); bf16 16 queries 1.15 (16) and 0.97 (32).
bool prefers_decode(DType dtype, std::int64_t queries, std::int64_t keys) noexcept;

// Requires a vector instruction set.
std::optional<core::Choice> choose_decode(const core::Problem& p, int workers, core::Reason reason);
// The same with the code of a target that has an engine, for cpu.packed.
core::Choice choose_decode(const core::Problem& p, int workers, Target target);

// True where prefers_decode is false for some sequence.
bool decode_prefers_another(const core::Problem& p, core::Reason reason);

std::string decode_details(const core::Problem& p, const core::Choice& choice);

void run_decode(const core::Problem& p, const core::Choice& choice, const core::Resources& resources);

}  // namespace tessera::cpu
