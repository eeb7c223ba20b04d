// Quantised products on matrix tiles (AMX INT8), with the bits of the vector path: the integer dots in a
// group are exact, and the float chain over the groups is the same.
//
// The unit multiplies 16 rows by 16 outputs over a group at once. With 4-bit weights a group fills a tile: of
// a row both planes of its codes, of the weights 16 times them and them. With bytes the two halves of the
// codes go apart. Storing sums and scaling them costs more than the products do, so tiles run a group ahead,
// and the accumulators of a block stay in registers over all of K.
#pragma once
#include "ops/codes.h"

namespace ramet {
namespace RAMET_ISA {
namespace {

template <Format F>
constexpr int kSums = F == Format::q4 ? 1 : 2;  // tiles of sums of a group
template <Format F>
constexpr int64_t kGroupPanelBytes = kGroup * kPanel * 2 / kSums<F>;  // of weights as a tile takes them
constexpr int64_t kWideBytes = kMostTileGroups * kGroupPanelBytes<Format::q4>;

// Nibbles of one group of a q4 panel become bytes, 16 times as large and as they are.
inline void widen_group(const uint8_t* nibbles, uint8_t* bytes) {
  for (int64_t i = 0; i < kGroup / 8; ++i) {
    const creg c = c_load(nibbles + i * 64);
    uint8_t *large = bytes + i * 128, *small = large + 512;
    _mm512_store_si512(large, c_fours<0>(c));
    _mm512_store_si512(large + 64, c_fours<1>(c));
    _mm512_store_si512(small, c_fours<2>(c));
    _mm512_store_si512(small + 64, c_fours<3>(c));
  }
}

struct alignas(64) TileDots {
  int32_t sums[2][kRowTile][kPanel];
};

// Two sets of tiles take turns: sums in Sums and the next one, weights in Weights, and codes in 4 and 5.
template <Format F, int Sums, int Weights>
RAMET_INLINE void dot_group(const uint8_t* codes, const uint8_t* bytes, TileDots& to) {
  tile_load<Weights>(bytes, 64);
  tile_zero<Sums>();
  if constexpr (F == Format::q4) {
    tile_load<4 + Sums / 2>(codes, 64);
    tile_dot_bytes<true, false, Sums, 4 + Sums / 2, Weights>();
  } else {
    tile_load<4>(codes, kGroup);
    tile_load<5>(codes + kGroupTileBytes / 2, kGroup);
    tile_zero<Sums + 1>();
    tile_dot_bytes<true, true, Sums, 4, Weights>();
    tile_dot_bytes<false, true, Sums + 1, 5, Weights>();
    tile_store<Sums + 1>(to.sums[1], 64);
  }
  tile_store<Sums>(to.sums[0], 64);
}

struct TilePanel {
  const uint8_t* bytes;    // [group][8 or 16][16 outputs][4]
  const uint16_t* scales;  // [group][1 or 2][16]
};

// What else is done on the way, a share with each group, since it hides behind the tiles: nibbles of the next
// panel widened, and another one asked for.
struct Errand {
  const uint8_t* nibbles = nullptr;
  uint8_t* wide = nullptr;
  const uint8_t* ahead = nullptr;

  template <Format F>
  RAMET_INLINE void run(int64_t g) const {
    constexpr int64_t kCodes = kGroup * kPanel * kSums<F> / 2;  // bytes of a packed group, scales apart
    constexpr int64_t kBytes = kCodes + 2 * kPanel * (F == Format::q4 ? 2 : 1);
    if (ahead != nullptr) {
      for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(ahead + g * kBytes + i);
    }
    if constexpr (F == Format::q4) {
      if (nibbles != nullptr) widen_group(nibbles + g * kCodes, wide + g * kGroupPanelBytes<F>);
    }
  }
};

// A block's rows: codes of its first group, and how far those of the next one; [group][16 scales, 16
// offsets].
struct BlockRows {
  const uint8_t* codes;
  int64_t next_group;
  const float* scales;
};

// Products of the first R rows of a block with a panel: out[R][16]. Not inlined: among others its sums would
// not stay in registers.
template <Format F, int R>
__attribute__((noinline)) void run_block(const TilePanel& w, const Errand& errand, const BlockRows& rows,
                                         int64_t num_groups, float* out) {
  constexpr int64_t kScales = kPanel * (F == Format::q4 ? 2 : 1);
  TileDots even, odd;
  __m512 acc[R];
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) acc[m] = _mm512_setzero_ps();
  const auto add_group = [&](const TileDots& dots, int64_t g) __attribute__((always_inline)) {
    const uint16_t* halves = w.scales + g * kScales;
    const float* scales = rows.scales + g * 2 * kRowTile;
    const __m512 scale = f_load_f16(halves), min = f_load_f16(halves + kScales - kPanel);
#pragma GCC unroll 16
    for (int m = 0; m < R; ++m) {
      __m512i dot = _mm512_load_si512(dots.sums[0][m]);
      if constexpr (F == Format::q8)
        dot = _mm512_add_epi32(_mm512_slli_epi32(dot, 8), _mm512_load_si512(dots.sums[1][m]));
      acc[m] = f_fma(f_from_int(dot), f_mul(scale, f_set(scales[m])), acc[m]);
      if constexpr (F == Format::q4) acc[m] = f_fma(min, f_set(scales[kRowTile + m]), acc[m]);
    }
  };
  dot_group<F, 0, 6>(rows.codes, w.bytes, even);
  for (int64_t g = 0; g < num_groups; g += 2) {
    const uint8_t* ahead = rows.codes + (g + 1) * rows.next_group;
    const uint8_t* bytes = w.bytes + (g + 1) * kGroupPanelBytes<F>;
    if (g + 1 < num_groups) dot_group<F, 2, 7>(ahead, bytes, odd);
    errand.run<F>(g);
    add_group(even, g);
    if (g + 1 == num_groups) break;
    if (g + 2 < num_groups) dot_group<F, 0, 6>(ahead + rows.next_group, bytes + kGroupPanelBytes<F>, even);
    errand.run<F>(g + 1);
    add_group(odd, g + 1);
  }
#pragma GCC unroll 16
  for (int m = 0; m < R; ++m) _mm512_store_ps(out + m * kPanel, acc[m]);
}

template <Format F>
const uint16_t* scales_of(const Matrix& w, int64_t panel) {
  return reinterpret_cast<const uint16_t*>(w.panel(panel) + code_bytes(F, w.k));
}

template <Format F>
TilePanel tile_panel(const Matrix& w, int64_t panel, uint8_t* wide) {
  if constexpr (F == Format::q8) return {w.panel(panel), scales_of<F>(w, panel)};
  for (int64_t g = 0; g < w.k / kGroup; ++g)
    widen_group(w.panel(panel) + g * kGroup * kPanel / 2, wide + g * kGroupPanelBytes<F>);
  return {wide, scales_of<F>(w, panel)};
}

template <Format F>
BlockRows block_rows(const Codes& codes, int64_t block) {
  const int64_t num_groups = codes.k / kGroup;
  return {reinterpret_cast<const uint8_t*>(codes.codes) + block * num_groups * kGroupTileBytes,
          F == Format::q4 ? rows_of_block(codes, block) * 2 * kGroup : kGroupTileBytes,
          reinterpret_cast<const float*>(codes.groups) + block * num_groups * 2 * kRowTile};
}

// Rows m0 to m0 + R of a block.
template <Format F, int R>
void run_some(const Matrix& w, int64_t panel, const TilePanel& tile_panel, const Errand& errand,
              const Activations& a, int64_t m0, const Output& out) {
  alignas(64) float products[R * kPanel];
  run_block<F, R>(tile_panel, errand, block_rows<F>(a.codes_for(F), m0 / kRowTile), a.k / kGroup, products);
  for (int m = 0; m < R && m0 + m < a.rows; ++m)
    put(out, m0 + m, panel * kPanel, w.n, load(products + m * kPanel));
}

template <Format F>
void run_rows(const Matrix& w, int64_t panel, const TilePanel& tile_panel, const Errand& errand,
              const Activations& a, int64_t m, const Output& out) {
  const int64_t left = a.rows - m;
  if (left > 12) return run_some<F, 16>(w, panel, tile_panel, errand, a, m, out);
  if (left > 8) return run_some<F, 12>(w, panel, tile_panel, errand, a, m, out);
  if (left > 4) return run_some<F, 8>(w, panel, tile_panel, errand, a, m, out);
  run_some<F, 4>(w, panel, tile_panel, errand, a, m, out);
}

// One block of rows: a panel is widened while the one before it is multiplied.
template <Format F>
void run_one_block(const Matrix& w, const Activations& a, const Output& out, int64_t begin, int64_t end,
                   uint8_t* wide) {
  uint8_t* const both[2] = {wide, wide + w.k / kGroup * kGroupPanelBytes<F>};
  TilePanel now = tile_panel<F>(w, begin, both[0]);
  for (int64_t panel = begin; panel < end; ++panel) {
    uint8_t* const next = both[(panel - begin + 1) % 2];
    const Errand errand{panel + 1 < end ? w.panel(panel + 1) : nullptr, next, w.panel(panel + 2)};
    run_rows<F>(w, panel, now, errand, a, 0, out);
    now = {F == Format::q4 ? next : w.panel(panel + 1), scales_of<F>(w, panel + 1)};
  }
}

// Several panels pass over a block of rows while its codes are in the nearest cache.
template <Format F>
void run_blocks(const Matrix& w, const Activations& a, const Output& out, int64_t begin, int64_t end,
                uint8_t* wide) {
  const int64_t num_groups = a.k / kGroup, at_once = num_groups <= kMostTileGroups / 4 ? 4 : 1;
  for (int64_t panel = begin; panel < end; panel += at_once) {
    const int64_t num = end - panel < at_once ? end - panel : at_once;
    TilePanel panels[4];
    for (int64_t p = 0; p < num; ++p)
      panels[p] = tile_panel<F>(w, panel + p, wide + p * num_groups * kGroupPanelBytes<F>);
    for (int64_t m = 0; m < a.rows; m += kRowTile) {
      for (int64_t p = 0; p < num; ++p) {
        const Errand errand{nullptr, nullptr, m == 0 ? w.panel(panel + p + num) : nullptr};
        run_rows<F>(w, panel + p, panels[p], errand, a, m, out);
      }
    }
  }
}

template <Format F>
void linear_tiles(const Matrix& w, const Activations& a, const Output& out, int64_t begin, int64_t end) {
  alignas(64) static thread_local uint8_t wide[kWideBytes];
  constexpr uint16_t kCodes = kGroup * 2 / kSums<F>;
  constexpr uint8_t kWeights = kGroup / 2 / kSums<F>;
  const auto rows = static_cast<uint8_t>(a.rows < kRowTile ? a.rows : kRowTile);
  const Tiles tiles({{rows, 64},
                     {rows, 64},
                     {rows, 64},
                     {rows, 64},
                     {rows, kCodes},
                     {rows, kCodes},
                     {kWeights, 64},
                     {kWeights, 64}});
  if (a.rows <= kRowTile && a.k / kGroup <= kMostTileGroups / 2)
    return run_one_block<F>(w, a, out, begin, end, wide);
  run_blocks<F>(w, a, out, begin, end, wide);
}

}  // namespace
}  // namespace RAMET_ISA
}  // namespace ramet
