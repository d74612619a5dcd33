// How a length is cut into tiles.
#pragma once

#include <cstdint>

#include "core/band.h"
#include "core/base/host_device.h"

namespace tessera::core {

// Cuts `length` into tiles of at most `tile`, none of which crosses a multiple of `block` (0: no
// blocks). A tile of rows therefore lies in one row of blocks of a block mask.
struct Tiling {
  std::int64_t length = 0;
  std::int64_t tile = 1;
  std::int64_t block = 0;

  TESSERA_HD constexpr std::int64_t per_block() const { return (block + tile - 1) / tile; }

  TESSERA_HD constexpr std::int64_t count() const {
    if (block == 0) return (length + tile - 1) / tile;
    return length / block * per_block() + (length % block + tile - 1) / tile;
  }

  // The tile that a row lies in.
  TESSERA_HD constexpr std::int64_t index_of(std::int64_t row) const {
    return block == 0 ? row / tile : row / block * per_block() + row % block / tile;
  }

  TESSERA_HD constexpr Interval operator[](std::int64_t t) const {
    if (block == 0) return {t * tile, t * tile + tile < length ? t * tile + tile : length};
    const std::int64_t block_begin = t / per_block() * block;
    const std::int64_t begin = block_begin + t % per_block() * tile;
    std::int64_t end = begin + tile;
    end = end < block_begin + block ? end : block_begin + block;
    return {begin, end < length ? end : length};
  }
};

}  // namespace tessera::core
