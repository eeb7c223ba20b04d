// Quantised products by vectors: exact integer dots inside a group, one float chain over the groups. Part of
// linear.cpp, compiled once per instruction set.
//
// One or two tiles of rows take codes apart in registers. With more, the first rows of a block do so for a
// stretch of a panel, and keep what they have in the nearest cache, so that for the others a load, a product
// and a sum are left. Accumulators of a tile fill the registers, so the float chains lie in memory.
#pragma once
#include "ops/codes.h"

namespace ramet {
namespace RAMET_ISA {
namespace {

// Weights are asked for this far ahead, in the order in which they will be read: machines' own prefetchers
// lose the track at pages' ends and where panels turn to scales. What the nearest cache is asked for takes
// the places of what is being read (so Zen 4 reads at half its rate), hence the second one, further ahead.
// Sets with a unit for tiles have vectors for few rows only, and keep what was measured with them.
#ifdef RAMET_TILE_UNIT
constexpr int64_t kGroupsAhead = 8;
constexpr int kAskedCache = 3;  // the nearest, in the words of __builtin_prefetch
#else
constexpr int64_t kGroupsAhead = 16;
constexpr int kAskedCache = 2;  // the second
#endif

constexpr int64_t kCodeRowBlock = 64;            // rows whose codes stay in the second cache
constexpr int kPairs = kGroup / 2;               // of inputs in a group
constexpr int kCodePanels = kRegs == 1 ? 2 : 1;  // of a tile
#ifdef RAMET_ZEN
constexpr int64_t kPackedRows = INT64_MAX;  // codes are taken apart beside products, and stores are dear
#else
constexpr int64_t kPackedRows = 2 * kCodeRows;  // two tiles cost as much as taking a panel apart for them
#endif
constexpr int kWideGroups = 8 / kCodePanels;            // kept at a time
constexpr int kFirstRows = kRegs == 1 ? kCodeRows : 2;  // which keep them: few registers have room for fewer

template <Format F>
constexpr int kParts = F == Format::q8 ? 2 : 4;  // of a word of 16 bits, one code each
template <Format F>
constexpr int kSteps = kPairs / kParts<F>;
template <Format F>
constexpr int64_t kScales = F == Format::q4 ? 2 * kPanel : kPanel;

// Codes of weights are met with 4 bytes of a group's 64 at a time: two inputs of 16 bits, or, in planes, four
// of one plane.
template <Format F>
constexpr bool kInPlanes = kHasPlanes && F == Format::q4;

// With one row, fours stay where they are in their words, a sum for each of the four parts: what spares each
// code a shift is put right in the sums.
template <Format F, int M>
constexpr bool kInPlace = kInPlanes<F> && M == 1;

template <Format F, int S, bool kStays = false>
RAMET_INLINE pairs16 part_of(const codes16& codes) {
#ifdef RAMET_BYTES
  if constexpr (kStays) return nibble_fours_in_place<S>(codes);
  if constexpr (kInPlanes<F>) return nibble_fours<S>(codes);
#endif
  if constexpr (F == Format::q8) return byte_pairs<S>(codes);
  return nibble_pairs<S>(codes);
}
template <Format F>
RAMET_INLINE dots16 meet(const dots16& sum, const pairs16& part, preg inputs) {
#ifdef RAMET_BYTES
  if constexpr (kInPlanes<F>) return dot_bytes(sum, part, inputs);
#endif
  return dot(sum, part, inputs);
}
// Which 4 bytes of a group's inputs belong to part `s` of step `i`.
template <Format F>
constexpr int inputs_of(int i, int s) {
  if (F == Format::q8) return i / 2 * 4 + i % 2 + 2 * s;
  return kInPlanes<F> ? s / 2 * 8 + 2 * i + s % 2 : 4 * i + s;
}

template <Format F, int M, int P>
RAMET_INLINE void add_part(const pairs16 (&parts)[P], const int16_t* x, int64_t next_row,
                           dots16 (&sums)[M][P]) {
  RAMET_UNROLL for (int m = 0; m < M; ++m) {
    const preg inputs = two_inputs(x + m * next_row);
    RAMET_UNROLL for (int p = 0; p < P; ++p) sums[m][p] = meet<F>(sums[m][p], parts[p], inputs);
  }
}

// A stretch of some panels, taken apart.
template <int P>
struct Wide {
  pairs16 parts[kWideGroups][kPairs][P];
  f32x16 scales[kWideGroups][P], mins[kWideGroups][P];

  RAMET_INLINE void keep(int64_t g, int pair, int p, const pairs16& part) { parts[g][pair][p] = part; }
  RAMET_INLINE void keep_scales(int64_t g, int p, const f32x16& scale, const f32x16& min) {
    scales[g][p] = scale;
    mins[g][p] = min;
  }
};
// Where no other rows come after.
struct NothingKept {
  RAMET_INLINE void keep(int64_t, int, int, const pairs16&) const {}
  RAMET_INLINE void keep_scales(int64_t, int, const f32x16&, const f32x16&) const {}
};

template <Format F, int S, int M, int P, class Kept>
RAMET_INLINE void add_part_of(const codes16 (&codes)[P], int i, const int16_t* group, int64_t next_row,
                              dots16 (&sums)[M][P], int64_t g, Kept& kept) {
  pairs16 parts[P];
  RAMET_UNROLL for (int p = 0; p < P; ++p) {
    parts[p] = part_of<F, S, kInPlace<F, M>>(codes[p]);
    kept.keep(g, inputs_of<F>(i, S), p, parts[p]);
  }
  add_part<F, M, P>(parts, group + 2 * inputs_of<F>(i, S), next_row, sums);
}

// One group's term of a chain.
template <Format F>
RAMET_INLINE f32x16 add_group(const f32x16& sum, const dots16& dots, const f32x16& scale, const f32x16& min,
                              const float* group, int64_t offset) {
  const f32x16 scaled = fma(to_float(dots), mul(scale, set(group[0])), sum);
  return F == Format::q4 ? fma(min, set(group[offset]), scaled) : scaled;
}

// The sum of those of a group's parts.
template <Format F, int M, int P, int C>
RAMET_INLINE dots16 whole_sum(const dots16 (&sums)[C][M][P], int m, int p) {
#ifdef RAMET_BYTES
  if constexpr (kInPlace<F, M>)
    return join_in_place(sums[0][m][p], sums[1][m][p], sums[2][m][p], sums[3][m][p]);
#endif
  dots16 sum = sums[0][m][p];
  RAMET_UNROLL for (int c = 1; c < C; ++c) sum = add(sum, sums[c][m][p]);
  return sum;
}

// Asks for the group that is kGroupsAhead after g, of the next panels where these end.
template <Format F, int P>
RAMET_INLINE void fetch_ahead(const Matrix& w, const uint8_t* panel, int64_t g) {
  const int64_t num_groups = w.k / kGroup;
  const int64_t ahead = g + (num_groups < kGroupsAhead ? num_groups : kGroupsAhead);
  const bool is_next = ahead >= num_groups;
  const int64_t at = ahead - (is_next ? num_groups : 0);
  const uint8_t* from = panel + (is_next ? P * w.panel_bytes : 0);
  const auto fetch = [](const uint8_t* line) { __builtin_prefetch(line, 0, kAskedCache); };
  RAMET_UNROLL for (int p = 0; p < P; ++p) {
    const uint8_t* codes = from + static_cast<size_t>(p) * w.panel_bytes;
    RAMET_UNROLL for (int i = 0; i < kSteps<F>; ++i) fetch(codes + (at * kSteps<F> + i) * 64);
    fetch(codes + code_bytes(F, w.k) + at * kScales<F> * 2);
  }
}

// Rows m0 to m0 + M by P panels over `num` groups from g0 on, straight from the packed codes.
template <Format F, int M, int P, class Kept>
RAMET_INLINE void add_packed(const Matrix& w, const uint8_t* panel, const Activations& a, int64_t m0,
                             int64_t g0, int64_t num, f32x16 (*acc)[P], Kept& kept) {
  // One sum waits for its last product, and small tiles have few of them, so theirs are split where a panel
  // is one register: integers may be.
  constexpr int kFree = kRegs == 1 ? 8 / (M * P) : 1;
  constexpr int C = kFree < 1 ? 1 : kFree < kParts<F> ? kFree : kParts<F>;
  const CodePlace rows = place_of(a.codes_for(F), m0);
  const uint8_t* scales = panel + code_bytes(F, a.k);
  for (int64_t g = g0; g < g0 + num; ++g) {
    fetch_ahead<F, P>(w, panel, g);
    dots16 sums[C][M][P];
    RAMET_UNROLL for (int c = 0; c < C; ++c) {
      RAMET_UNROLL for (int m = 0; m < M; ++m) {
        RAMET_UNROLL for (int p = 0; p < P; ++p) sums[c][m][p] = no_dots();
      }
    }
    for (int i = 0; i < kSteps<F>; ++i) {
      codes16 codes[P];
      RAMET_UNROLL for (int p = 0; p < P; ++p) codes[p] =
          load_codes(panel + static_cast<size_t>(p) * w.panel_bytes + (g * kSteps<F> + i) * 64);
      const int16_t* group = rows.codes + g * rows.next_group;
      add_part_of<F, 0>(codes, i, group, rows.next_row, sums[0], g - g0, kept);
      add_part_of<F, 1>(codes, i, group, rows.next_row, sums[1 % C], g - g0, kept);
      if constexpr (F == Format::q4) {
        add_part_of<F, 2>(codes, i, group, rows.next_row, sums[2 % C], g - g0, kept);
        add_part_of<F, 3>(codes, i, group, rows.next_row, sums[3 % C], g - g0, kept);
      }
    }
    RAMET_UNROLL for (int p = 0; p < P; ++p) {
      const auto* halves = reinterpret_cast<const uint16_t*>(scales + static_cast<size_t>(p) * w.panel_bytes);
      halves += g * kScales<F>;
      const f32x16 scale = load_f16(halves), min = load_f16(halves + kScales<F> - kPanel);
      kept.keep_scales(g - g0, p, scale, min);
      RAMET_UNROLL for (int m = 0; m < M; ++m) {
        const dots16 sum = whole_sum<F, M, P, C>(sums, m, p);
        acc[m][p] = add_group<F>(acc[m][p], sum, scale, min, rows.scales_of(m, g), rows.offset);
      }
    }
  }
}

template <Format F, int M, int P>
void run_packed(const Matrix& w, int64_t panel, const Activations& a, int64_t m0, const Output& out) {
  f32x16 acc[M][P];
  RAMET_UNROLL for (int m = 0; m < M; ++m) { RAMET_UNROLL for (int p = 0; p < P; ++p) acc[m][p] = set(0.0f); }
  NothingKept nothing;
  add_packed<F, M, P>(w, w.panel(panel), a, m0, 0, w.k / kGroup, acc, nothing);
  RAMET_UNROLL for (int p = 0; p < P; ++p) {
    RAMET_UNROLL for (int m = 0; m < M; ++m) put(out, m0 + m, (panel + p) * kPanel, w.n, acc[m][p]);
  }
}

// The next rows from m0 on, M at most.
template <Format F, int M, int P>
void run_next(const Matrix& w, int64_t panel, const Activations& a, int64_t m0, const Output& out) {
  if (a.rows - m0 >= M) return run_packed<F, M, P>(w, panel, a, m0, out);
  if constexpr (M > 1) run_next<F, M - 1, P>(w, panel, a, m0, out);
}

// Rows m0 to m0 + M over `num` groups from g0 on.
template <Format F, int M, int P>
void add_wide(const Wide<P>& wide, const Activations& a, int64_t m0, int64_t g0, int64_t num,
              f32x16 (*acc)[P]) {
  const CodePlace rows = place_of(a.codes_for(F), m0);
  for (int64_t g = 0; g < num; ++g) {
    dots16 sums[M][P];
    RAMET_UNROLL for (int m = 0; m < M; ++m) {
      RAMET_UNROLL for (int p = 0; p < P; ++p) sums[m][p] = no_dots();
    }
    const int16_t* group = rows.codes + (g0 + g) * rows.next_group;
    RAMET_UNROLL for (int i = 0; i < kPairs; ++i)
        add_part<F, M, P>(wide.parts[g][i], group + 2 * i, rows.next_row, sums);
    RAMET_UNROLL for (int m = 0; m < M; ++m) {
      RAMET_UNROLL for (int p = 0; p < P; ++p) acc[m][p] = add_group<F>(
          acc[m][p], sums[m][p], wide.scales[g][p], wide.mins[g][p], rows.scales_of(m, g0 + g), rows.offset);
    }
  }
}

// P panels with some rows, kCodeRowBlock at most.
template <Format F, int P>
void run_wide(const Matrix& w, int64_t panel, const Activations& a, int64_t m0, int64_t rows,
              const Output& out) {
  Wide<P> wide;
  f32x16 acc[kCodeRowBlock][P];
  for (int64_t m = 0; m < rows; ++m) {
    for (int p = 0; p < P; ++p) acc[m][p] = set(0.0f);
  }
  for (int64_t g = 0; g < w.k / kGroup; g += kWideGroups) {
    const int64_t left = w.k / kGroup - g, num = left < kWideGroups ? left : kWideGroups;
    add_packed<F, kFirstRows, P>(w, w.panel(panel), a, m0, g, num, acc, wide);
    int64_t m = kFirstRows;
    for (; m + kCodeRows <= rows; m += kCodeRows) add_wide<F, kCodeRows>(wide, a, m0 + m, g, num, acc + m);
    if constexpr (kCodeRows > 4) {
      for (; m + 4 <= rows; m += 4) add_wide<F, 4>(wide, a, m0 + m, g, num, acc + m);
    }
    if constexpr (kCodeRows > 2) {
      for (; m + 2 <= rows; m += 2) add_wide<F, 2>(wide, a, m0 + m, g, num, acc + m);
    }
    for (; m < rows; ++m) add_wide<F, 1>(wide, a, m0 + m, g, num, acc + m);
  }
  for (int64_t m = 0; m < rows; ++m) {
    for (int p = 0; p < P; ++p) put(out, m0 + m, (panel + p) * kPanel, w.n, acc[m][p]);
  }
}

// A block of so few rows that it needs nothing kept is the last one.
template <Format F, int P>
void run_panels(const Matrix& w, int64_t panel, const Activations& a, int64_t m0, int64_t rows,
                const Output& out) {
  if (rows > kPackedRows) return run_wide<F, P>(w, panel, a, m0, rows, out);
  for (int64_t m = 0; m < rows; m += kCodeRows) run_next<F, kCodeRows, P>(w, panel, a, m0 + m, out);
}

template <Format F>
void linear_quantized(const Matrix& w, const Activations& a, const Output& out, int64_t begin, int64_t end) {
  for (int64_t m = 0; m < a.rows; m += kCodeRowBlock) {
    const int64_t rows = a.rows - m < kCodeRowBlock ? a.rows - m : kCodeRowBlock;
    int64_t panel = begin;
    for (; panel + kCodePanels <= end; panel += kCodePanels)
      run_panels<F, kCodePanels>(w, panel, a, m, rows, out);
    for (; panel < end; ++panel) run_panels<F, 1>(w, panel, a, m, rows, out);
  }
}

}  // namespace
}  // namespace RAMET_ISA
}  // namespace ramet
