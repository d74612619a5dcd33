// The loop of `tessera peak` for AMX. In a file of its own, with target attributes: compiled on
// every x86-64, called only where request_amx_bf16 says yes.
#include "lab/measure/machine/ceilings.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera::lab::x86 {
namespace {

// The layout that LDTILECFG reads: Intel's Software Developer's Manual, volume 1, 18.3.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace

bool request_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kTile = 1U << 24, kBf16 = 1U << 22;
  if ((d & kTile) == 0 || (d & kBf16) == 0) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// A tile product takes 16 cycles and its result 52: four sums in flight would do.
[[gnu::target("amx-tile,amx-bf16")]] float dot_amx_bf16(std::int64_t steps) {
  // Static: GCC's intrinsic claims to read 8 bytes only, so the rest of a local variable might
  // never be written.
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (std::int64_t step = 0; step < steps; ++step) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  float sum[16 * 16];
  _tile_stored(0, sum, 64);
  _tile_release();
  return sum[0];
}

}  // namespace tessera::lab::x86
#endif
