// Block masks in the C interface: a counted handle around a BlockMask.
#include <atomic>
#include <memory>
#include <span>

#include "api/capi/support.h"
#include "api/capi/translate.h"
#include "tessera/capi.h"
#include "tessera/mask.h"

using namespace tessera;
using namespace tessera::api;

struct tsr_block_mask {
  explicit tsr_block_mask(BlockMask made) noexcept : mask(std::move(made)) {}
  BlockMask mask;
  std::atomic<std::int64_t> references{1};
};

const BlockMask& tessera::api::block_mask_of(const tsr_block_mask& handle) noexcept { return handle.mask; }

namespace {

// Hands out what `make` builds for the caller's layout, with one reference.
template <typename Make>
tsr_status create(const tsr_block_layout* layout, tsr_block_mask** mask, Make&& make) noexcept {
  return guarded([&] {
    require(mask, "mask");
    static constexpr tsr_block_layout kInitial = TSR_BLOCK_LAYOUT_INIT;
    const tsr_block_layout l = read_versioned(layout, kInitial, "layout", "TSR_BLOCK_LAYOUT_INIT");
    const BlockLayout sizes{l.q_length, l.k_length, l.block_q, l.block_k, l.heads};
    *mask = std::make_unique<tsr_block_mask>(make(sizes)).release();
  });
}

// The caller's array, which may be null when it is empty.
template <typename T>
std::span<const T> array(const T* data, std::size_t count, const char* argument) {
  if (count > 0) require(data, argument);
  return {data, count};
}

void hand_out(std::span<const std::int32_t> values, const std::int32_t** indices, std::size_t* count) {
  *indices = values.data();
  *count = values.size();
}

}  // namespace

tsr_status tsr_block_mask_from_csr(const tsr_block_layout* layout, const int64_t* row_offsets,
                                   size_t row_offset_count, const int32_t* columns, size_t column_count,
                                   tsr_block_mask** mask) {
  return create(layout, mask, [&](const BlockLayout& sizes) {
    return BlockMask::from_csr(sizes, array(row_offsets, row_offset_count, "row_offsets"),
                               array(columns, column_count, "columns"));
  });
}

tsr_status tsr_block_mask_from_blocks(const tsr_block_layout* layout, const uint8_t* kept, size_t count,
                                      tsr_block_mask** mask) {
  return create(layout, mask, [&](const BlockLayout& sizes) {
    return BlockMask::from_blocks(sizes, array(kept, count, "kept"));
  });
}

tsr_status tsr_block_mask_from_dense(const tsr_block_layout* layout, const uint8_t* visible, size_t count,
                                     tsr_block_mask** mask) {
  return create(layout, mask, [&](const BlockLayout& sizes) {
    return BlockMask::from_dense(sizes, array(visible, count, "visible"));
  });
}

tsr_status tsr_block_mask_local(const tsr_block_layout* layout, int64_t radius, tsr_block_mask** mask) {
  return create(layout, mask, [&](const BlockLayout& sizes) { return BlockMask::local(sizes, radius); });
}

tsr_status tsr_block_mask_strided(const tsr_block_layout* layout, int64_t stride, tsr_block_mask** mask) {
  return create(layout, mask, [&](const BlockLayout& sizes) { return BlockMask::strided(sizes, stride); });
}

tsr_status tsr_block_mask_fixed(const tsr_block_layout* layout, int64_t stride, int64_t summary,
                                tsr_block_mask** mask) {
  return create(layout, mask,
                [&](const BlockLayout& sizes) { return BlockMask::fixed(sizes, stride, summary); });
}

tsr_status tsr_block_mask_big_bird(const tsr_block_layout* layout, int64_t radius, int64_t global,
                                   int64_t random, uint64_t seed, tsr_block_mask** mask) {
  return create(layout, mask, [&](const BlockLayout& sizes) {
    return BlockMask::big_bird(sizes, radius, global, random, seed);
  });
}

tsr_status tsr_block_mask_butterfly(const tsr_block_layout* layout, tsr_block_mask** mask) {
  return create(layout, mask, [&](const BlockLayout& sizes) { return BlockMask::butterfly(sizes); });
}

tsr_status tsr_block_mask_random(const tsr_block_layout* layout, double density, uint64_t seed,
                                 tsr_block_mask** mask) {
  return create(layout, mask,
                [&](const BlockLayout& sizes) { return BlockMask::random(sizes, density, seed); });
}

void tsr_block_mask_retain(tsr_block_mask* mask) {
  if (mask != nullptr) mask->references.fetch_add(1, std::memory_order_relaxed);
}

void tsr_block_mask_release(tsr_block_mask* mask) {
  if (mask != nullptr && mask->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete mask;
}

tsr_status tsr_block_mask_describe(const tsr_block_mask* mask, tsr_block_mask_info* info) {
  return guarded([&] {
    require(mask, "mask");
    require(info, "info");
    check_struct_size(info->struct_size, sizeof(std::size_t), "info", "TSR_BLOCK_MASK_INFO_INIT");
    const BlockMask& m = mask->mask;
    const BlockLayout& l = m.layout();
    write_versioned(info, tsr_block_mask_info{0, l.q_length, l.k_length, l.block_q, l.block_k, l.heads,
                                              m.q_blocks(), m.k_blocks(), m.kept(), m.density()});
  });
}

tsr_status tsr_block_mask_prepare(const tsr_block_mask* mask, tsr_device device) {
  return guarded([&] {
    require(mask, "mask");
    mask->mask.prepare(device_from(device, "device"));
  });
}

tsr_status tsr_block_mask_row(const tsr_block_mask* mask, int64_t head, int64_t q_block,
                              const int32_t** indices, size_t* count) {
  return guarded([&] {
    require(mask, "mask");
    require(indices, "indices");
    require(count, "count");
    hand_out(mask->mask.row(head, q_block), indices, count);
  });
}

tsr_status tsr_block_mask_column(const tsr_block_mask* mask, int64_t head, int64_t k_block,
                                 const int32_t** indices, size_t* count) {
  return guarded([&] {
    require(mask, "mask");
    require(indices, "indices");
    require(count, "count");
    hand_out(mask->mask.column(head, k_block), indices, count);
  });
}

tsr_status tsr_block_mask_draw(const tsr_block_mask* mask, int64_t head, char* buffer, size_t capacity,
                               size_t* length) {
  return guarded([&] {
    require(mask, "mask");
    copy_text(mask->mask.draw(head), buffer, capacity, length);
  });
}
