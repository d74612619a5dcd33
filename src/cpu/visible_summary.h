// The summary of the boolean mask that a kernel makes before its tasks: what the queries of each
// tile see of each block of keys. Hidden blocks then cost nothing, and blocks that every query sees
// cost what they cost without a mask.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernel.h"
#include "core/problem.h"

namespace tessera::cpu {

// The workspace of the summary for tiles of `group_rows` queries; 0 without a boolean mask. It lies
// before all other workspace of the call.
std::size_t visible_summary_bytes(const core::Problem& p, std::int64_t group_rows);

// A problem with its summary, and the resources without the workspace that holds it.
struct Summarised {
  core::Problem problem;
  core::Resources resources;
};

// Reads the mask once. A summary depends only on the elements of its own sequence and head: a mask
// that is broadcast gives the same one as its copies.
Summarised summarise_visible(const core::Problem& p, std::int64_t group_rows, int workers,
                             const core::Resources& resources);

}  // namespace tessera::cpu
