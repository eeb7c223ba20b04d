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
template <int First, int Second>
RAMET_INLINE void add_step(const uint16_t* halves) {
  tile_load<4>(halves, 2 * kHalfStep);
  tile_load<5>(halves + kHalfTile, 2 * kHalfStep);
  tile_dot_bf16<First, 4, 6>();
  tile_dot_bf16<Second, 4, 7>();
  tile_dot_bf16<First, 5, 6>();
  tile_dot_bf16<Second, 5, 7>();
}

template <bool kTwoBlocks>
void multiply_halves(const uint16_t* rows, const uint8_t* const (&panels)[2], int64_t num_steps, bool fetches,
                     TileRows (&out)[4]) {
  constexpr int64_t kStepBytes = kHalfStep * kPanel * 2;
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int64_t i = 0; i < num_steps; ++i) {
    if (fetches) fetch_share(panels[1] + num_steps * kStepBytes, 2 * num_steps * kStepBytes, i, num_steps);
    tile_load<6>(panels[0] + i * kStepBytes, 64);
    tile_load<7>(panels[1] + i * kStepBytes, 64);
    add_step<0, 1>(rows + i * 2 * kHalfTile);
    if constexpr (kTwoBlocks) add_step<2, 3>(rows + (num_steps + i) * 2 * kHalfTile);
  }
  tile_store<0>(out[0], 64);
  tile_store<1>(out[1], 64);
  if constexpr (kTwoBlocks) {
    tile_store<2>(out[2], 64);
    tile_store<3>(out[3], 64);
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
