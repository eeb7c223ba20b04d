// Products of bfloat16 weights on matrix tiles (AMX BF16). Rows are sums of two bfloat16; for each 32 inputs
// the product of the first halves is added, then that of the second ones, one row or many.
#pragma once
#include "ops/halves.h"
#include "simd.h"

namespace ramet {
namespace RAMET_ISA {
namespace {

using TileRows = float[kRowTile][kPanel];

// One or two blocks of 16 rows against two panels: tiles 0 to 3 take the sums, 4 and 5 hold a block's halves,
// 6 and 7 the weights.
template <bool kTwoBlocks>
void multiply_halves(const uint16_t* rows, const uint8_t* const (&panels)[2], int64_t num_steps, bool fetches,
                     TileRows (&out)[4]) {
  constexpr int64_t kRowBytes = kHalfStep * 2;
  const uint16_t* others = rows + num_steps * 2 * kHalfTile;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < num_steps; ++i) {
    constexpr int64_t kStepBytes = kHalfStep * kPanel * 2;
    if (fetches) {
      fetch_share(panels[1] + num_steps * kStepBytes, 2 * num_steps * kStepBytes, i, num_steps);
    }
    _tile_loadd(6, panels[0] + i * kStepBytes, 64);
    _tile_loadd(7, panels[1] + i * kStepBytes, 64);
    _tile_loadd(4, rows + i * 2 * kHalfTile, kRowBytes);
    _tile_loadd(5, rows + i * 2 * kHalfTile + kHalfTile, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(0, 5, 6);
    _tile_dpbf16ps(1, 5, 7);
    if constexpr (kTwoBlocks) {
      _tile_loadd(4, others + i * 2 * kHalfTile, kRowBytes);
      _tile_loadd(5, others + i * 2 * kHalfTile + kHalfTile, kRowBytes);
      _tile_dpbf16ps(2, 4, 6);
      _tile_dpbf16ps(3, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out[0], 64);
  _tile_stored(1, out[1], 64);
  if constexpr (kTwoBlocks) {
    _tile_stored(2, out[2], 64);
    _tile_stored(3, out[3], 64);
  }
}

void linear_halves(const Matrix& w, const Activations& a, const Output& out, int64_t begin, int64_t end) {
  const Tiles tiles({{16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}});
  const int64_t num_steps = num_half_steps(a.k);
  alignas(64) TileRows sums[4];
  for (int64_t panel = begin; panel < end; panel += 2) {
    const int64_t num = end - panel < 2 ? 1 : 2;
    const uint8_t* const panels[2] = {w.panel(panel),
                                      w.panel(panel + num - 1)};  // the same twice, where one is left
    for (int64_t m0 = 0; m0 < a.rows; m0 += 2 * kRowTile) {
      const int64_t rows = a.rows - m0 < 2 * kRowTile ? a.rows - m0 : 2 * kRowTile;
      const uint16_t* halves = a.halves.data + m0 / kRowTile * num_steps * 2 * kHalfTile;
      const auto multiply = rows > kRowTile ? multiply_halves<true> : multiply_halves<false>;
      multiply(halves, panels, num_steps, m0 == 0, sums);
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t p = 0; p < num; ++p) {
          put(out, m0 + m, (panel + p) * kPanel, w.n, load(sums[m / kRowTile * 2 + p][m % kRowTile]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace RAMET_ISA
}  // namespace ramet
