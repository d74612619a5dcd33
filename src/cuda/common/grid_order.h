// The order of tasks (core/task_order.h) in the form in which a thread block finds its task
// quickly.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"
#include "core/task_order.h"

namespace tessera::cuda {

// n / d for 0 <= n < 2^31 by a multiplication: on a GPU a division is twenty instructions.
struct Divider {
  std::uint32_t divisor = 1, multiplier = 1U << 31, shift = 0;

  Divider() = default;
  explicit constexpr Divider(std::uint32_t d) : divisor(d) {
    while ((std::uint64_t{1} << shift) < d) ++shift;
    // ceil(2^(31 + shift) / d): between 2^31 and 2^32, and exact for 31-bit numbers.
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift)) + d - 1) / d);
  }

  TESSERA_HD constexpr std::uint32_t quotient(std::uint32_t n) const {
    return static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> 31 >> shift);
  }
  TESSERA_HD constexpr std::uint32_t remainder(std::uint32_t n) const { return n - quotient(n) * divisor; }
};

// A TaskOrder, tile by tile, in the form in which a thread block finds its task quickly.
class GridOrder {
 public:
  GridOrder() = default;
  explicit constexpr GridOrder(const core::TaskOrder& order)
      : heads_(static_cast<std::uint32_t>(order.heads > 0 ? order.heads : 1)),
        tiles_(static_cast<std::uint32_t>(order.tiles)),
        descending_(order.order == core::TileOrder::descending) {
    const std::int64_t all = order.sequences * order.heads;
    const std::int64_t section = order.together > 0 && order.together < all ? order.together : all;
    if (all == 0 || order.tiles == 0) return;
    sections_ = Divider(static_cast<std::uint32_t>(section * order.tiles));
    section_ = Divider(static_cast<std::uint32_t>(section));
    full_sections_ = static_cast<std::uint32_t>(all / section);
    last_section_ = Divider(static_cast<std::uint32_t>(all % section == 0 ? section : all % section));
  }

  TESSERA_HD constexpr core::BasicTask<std::uint32_t> operator[](std::uint32_t index) const {
    const std::uint32_t section = sections_.quotient(index), within = sections_.remainder(index);
    const Divider& size = section < full_sections_ ? section_ : last_section_;
    const std::uint32_t head = section * section_.divisor + size.remainder(within),
                        step = size.quotient(within);
    return {heads_.quotient(head), heads_.remainder(head), descending_ ? tiles_ - 1 - step : step};
  }

 private:
  Divider sections_, section_, last_section_, heads_;
  std::uint32_t full_sections_ = 0, tiles_ = 0;
  bool descending_ = false;
};

}  // namespace tessera::cuda
