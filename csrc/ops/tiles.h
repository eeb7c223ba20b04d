// Quantised products on matrix tiles (AMX INT8), with the bits of the vector path: the integer dots in a
// group are exact, and the float chain over the groups is the same.
//
// The unit multiplies 16 rows by 16 outputs over a group at once, the two halves of the codes apart. Putting
// the halves together and scaling them costs the vector units more than the products cost the tiles, so tiles
// run a group ahead, and the accumulators of a block stay in registers over all of K.
#pragma once
#include "ops/codes.h"

namespace ramet {
namespace RAMET_ISA {
namespace {

constexpr int64_t kGroupPanelBytes = kGroup * kPanel;  // of weights as bytes

// Nibbles of one group of a q4 panel become bytes.
inline void widen_group(const uint8_t* nibbles, uint8_t* bytes) {
  const __m512i low_half = _mm512_set1_epi8(15);
  for (int64_t i = 0; i < kGroup / 8; ++i) {
    const __m512i c = _mm512_loadu_si512(nibbles + i * 64);
    _mm512_store_si512(bytes + i * 128, _mm512_and_si512(c, low_half));
    _mm512_store_si512(bytes + i * 128 + 64, _mm512_and_si512(_mm512_srli_epi16(c, 4), low_half));
  }
}

struct alignas(64) TileDots {
  int32_t halves[2][kRowTile][kPanel];
};

// Two sets of tiles take turns: sums of the upper halves, of the lower ones, and weights. The codes' halves
// pass through 4 and 5.
template <Format F, int Upper, int Lower, int Weights>
RAMET_INLINE void dot_group(const uint8_t* codes, const uint8_t* bytes, TileDots& to) {
  constexpr bool kSigned = F == Format::q8;
  tile_load<4>(codes, kGroup);
  tile_load<5>(codes + kGroupTileBytes / 2, kGroup);
  tile_load<Weights>(bytes, 64);
  tile_zero<Upper>();
  tile_zero<Lower>();
  tile_dot_bytes<true, kSigned, Upper, 4, Weights>();
  tile_dot_bytes<false, kSigned, Lower, 5, Weights>();
  tile_store<Upper>(to.halves[0], 64);
  tile_store<Lower>(to.halves[1], 64);
}

struct TilePanel {
  const uint8_t* bytes;    // [group][8][16 outputs][4]
  const uint16_t* scales;  // [group][1 or 2][16]
  const uint8_t* ahead;    // as many bytes that are soon wanted, or null
  size_t num_bytes;
};

// Products of the first R rows of a block with a panel: out[R][16].
template <Format F, int R>
void run_block(const TilePanel& w, const uint8_t* codes, const float* scales, int64_t num_groups,
               float* out) {
  constexpr int64_t kScales = kPanel * (F == Format::q4 ? 2 : 1);
  TileDots even, odd;
  __m512 acc[R];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) acc[m] = _mm512_setzero_ps();
  const auto add_group = [&](const TileDots& dots, int64_t g) __attribute__((always_inline)) {
    const uint16_t* halves = w.scales + g * kScales;
    const float* rows = scales + g * 2 * kRowTile;
    const __m512 scale = f_load_f16(halves), min = f_load_f16(halves + kScales - kPanel);
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      const __m512i upper = _mm512_load_si512(dots.halves[0][m]),
                    lower = _mm512_load_si512(dots.halves[1][m]);
      const __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower);
      acc[m] = f_fma(f_from_int(dot), f_mul(scale, f_set(rows[m])), acc[m]);
      if constexpr (F == Format::q4) acc[m] = f_fma(min, f_set(rows[kRowTile + m]), acc[m]);
    }
  };
  dot_group<F, 0, 1, 6>(codes, w.bytes, even);
  for (int64_t g = 0; g < num_groups; g += 2) {
    if (w.ahead != nullptr) fetch_share(w.ahead, w.num_bytes, g / 2, (num_groups + 1) / 2);
    const uint8_t* ahead = codes + (g + 1) * kGroupTileBytes;
    const uint8_t* bytes = w.bytes + (g + 1) * kGroupPanelBytes;
    if (g + 1 < num_groups) dot_group<F, 2, 3, 7>(ahead, bytes, odd);
    add_group(even, g);
    if (g + 1 == num_groups) break;
    if (g + 2 < num_groups) dot_group<F, 0, 1, 6>(ahead + kGroupTileBytes, bytes + kGroupPanelBytes, even);
    add_group(odd, g + 1);
  }
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) _mm512_store_ps(out + m * kPanel, acc[m]);
}

template <Format F>
TilePanel tile_panel(const Matrix& w, int64_t panel, const uint8_t* ahead, uint8_t* wide) {
  const uint8_t* packed = w.panel(panel);
  const auto* scales = reinterpret_cast<const uint16_t*>(packed + code_bytes(F, w.k));
  if constexpr (F == Format::q8) return {packed, scales, ahead, w.panel_bytes};
  for (int64_t g = 0; g < w.k / kGroup; ++g)
    widen_group(packed + g * kGroupPanelBytes / 2, wide + g * kGroupPanelBytes);
  return {wide, scales, ahead, w.panel_bytes};
}

// Rows m0 to m0 + R of a block.
template <Format F, int R>
void run_some(const Matrix& w, int64_t panel, const TilePanel& tile_panel, const Activations& a, int64_t m0,
              const Output& out) {
  const int64_t num_groups = a.k / kGroup, block = m0 / kRowTile;
  const auto* codes = reinterpret_cast<const uint8_t*>(a.codes.codes) + block * num_groups * kGroupTileBytes;
  const auto* scales = reinterpret_cast<const float*>(a.codes.groups) + block * num_groups * 2 * kRowTile;
  alignas(64) float products[R * kPanel];
  run_block<F, R>(tile_panel, codes, scales, num_groups, products);
  for (int m = 0; m < R && m0 + m < a.rows; ++m)
    put(out, m0 + m, panel * kPanel, w.n, load(products + m * kPanel));
}

template <Format F>
void run_rows(const Matrix& w, int64_t panel, const TilePanel& tile_panel, const Activations& a, int64_t m,
              const Output& out) {
  const int64_t left = a.rows - m;
  if (left > 12) return run_some<F, 16>(w, panel, tile_panel, a, m, out);
  if (left > 8) return run_some<F, 12>(w, panel, tile_panel, a, m, out);
  if (left > 4) return run_some<F, 8>(w, panel, tile_panel, a, m, out);
  run_some<F, 4>(w, panel, tile_panel, a, m, out);
}

template <Format F>
void linear_tiles(const Matrix& w, const Activations& a, const Output& out, int64_t begin, int64_t end) {
  alignas(64) static thread_local uint8_t wide[kMostTileGroups * kGroupPanelBytes];
  const Tiles tiles({{16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 32}, {16, 32}, {8, 64}, {8, 64}});
  // Several panels pass over a block of rows while its codes are in the nearest cache.
  const int64_t num_groups = a.k / kGroup, at_once = num_groups <= kMostTileGroups / 4 ? 4 : 1;
  for (int64_t panel = begin; panel < end; panel += at_once) {
    const int64_t num = end - panel < at_once ? end - panel : at_once;
    TilePanel panels[4];
    for (int64_t p = 0; p < num; ++p)
      panels[p] =
          tile_panel<F>(w, panel + p, w.panel(panel + p + num), wide + p * num_groups * kGroupPanelBytes);
    for (int64_t m = 0; m < a.rows; m += kRowTile) {
      for (int64_t p = 0; p < num; ++p) {
        run_rows<F>(w, panel + p, panels[p], a, m, out);
        panels[p].ahead = nullptr;
      }
    }
  }
}

}  // namespace
}  // namespace RAMET_ISA
}  // namespace ramet
