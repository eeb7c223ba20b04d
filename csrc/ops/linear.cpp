// Matrix products. One element's arithmetic is the same in every tile: dense, one FMA chain over K;
// quantised, exact integer dots inside a group, and one float chain over the groups. Tiles only choose which
// elements are done together.
#include "ops/codes.h"
#include "ops/ops_isa.h"

namespace ramet {
namespace RAMET_ISA {
namespace {

constexpr int64_t kRowBlock = 256;  // rows whose activations stay in the cache while the panels pass

// Asks for a share of what is worked on next: machines' own prefetchers lose the track at pages' ends.
inline void fetch_share(const uint8_t* bytes, size_t num_bytes, int64_t share, int64_t num_shares) {
  const auto n = static_cast<int64_t>(num_bytes) / num_shares;
  for (int64_t i = 0; i < n; i += 64) __builtin_prefetch(bytes + share * n + i);
}

// Values of inputs k to k + kAtOnce<F> of a panel.
template <Format F>
constexpr int kAtOnce = F == Format::bf16 ? 2 : 1;

template <Format F>
void load_values(const uint8_t* panel, int64_t k, f32x16 (&values)[kAtOnce<F>]) {
  const int64_t i = k * kPanel;
  if constexpr (F == Format::f32) values[0] = load(reinterpret_cast<const float*>(panel) + i);
  if constexpr (F == Format::f16) values[0] = load_f16(reinterpret_cast<const uint16_t*>(panel) + i);
  if constexpr (F == Format::bf16)
    load_bf16_pairs(reinterpret_cast<const uint16_t*>(panel) + i, values[0], values[1]);
}

// Tiles of M rows by P panels: acc[m][p] over all of K.
template <Format F, int M, int P>
void add_dense(const Matrix& w, const uint8_t* panel, const Activations& a, int64_t m0, f32x16 (&acc)[M][P]) {
  constexpr int kNum = kAtOnce<F>;
  const float* x = a.x + m0 * a.k;
  const auto add = [&](int64_t k, int num) {
    f32x16 values[P][kNum];
    for (int p = 0; p < P; ++p) load_values<F>(panel + static_cast<size_t>(p) * w.panel_bytes, k, values[p]);
    for (int m = 0; m < M; ++m) {
      for (int i = 0; i < num; ++i) {
        const f32x16 xk = set(x[m * a.k + k + i]);
        for (int p = 0; p < P; ++p) acc[m][p] = fma(xk, values[p][i], acc[m][p]);
      }
    }
  };
  int64_t k = 0;
  for (; k + kNum <= a.k; k += kNum) add(k, kNum);
  if (k < a.k) add(k, static_cast<int>(a.k - k));
}

inline void put(const Output& out, int64_t row, int64_t n0, int64_t n, const f32x16& product) {
  float* y = out.y + row * out.ldy + n0;
  f32x16 sum = out.bias ? add(product, load_some(out.bias + n0, n - n0)) : product;
  if (out.adds) sum = add(load_some(y, n - n0), sum);
  store_some(y, one_nan(sum), n - n0);
}

template <Format F, int M, int P>
void run_tile(const Matrix& w, int64_t panel, const Activations& a, int64_t m0, const Output& out) {
  f32x16 acc[M][P];
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < P; ++p) acc[m][p] = set(0.0f);
  }
  add_dense<F>(w, w.panel(panel), a, m0, acc);
  for (int p = 0; p < P; ++p) {
    for (int m = 0; m < M; ++m) put(out, m0 + m, (panel + p) * kPanel, w.n, acc[m][p]);
  }
}

}  // namespace
}  // namespace RAMET_ISA
}  // namespace ramet
#include "ops/quantized.h"
#ifdef RAMET_TILE_UNIT
#include "ops/half_tiles.h"
#include "ops/tiles.h"
#endif
namespace ramet {
namespace RAMET_ISA {
namespace {

// Two panels at once where the accumulators fit the registers; a single one otherwise.
template <Format F, int M>
void run_dense(const Matrix& w, int64_t panel, int64_t num, const Activations& a, int64_t m0,
               const Output& out) {
  if constexpr (2 * M <= kLinearChains) {
    if (num == 2) return run_tile<F, M, 2>(w, panel, a, m0, out);
  }
  for (int64_t i = 0; i < num; ++i) run_tile<F, M, 1>(w, panel + i, a, m0, out);
}

template <Format F>
void quantized_as(const Matrix& w, const Activations& a, const Output& out, int64_t begin, int64_t end) {
#ifdef RAMET_TILE_UNIT
  if (fits_tiles(a.codes_for(F))) return linear_tiles<F>(w, a, out, begin, end);
#endif
  linear_quantized<F>(w, a, out, begin, end);
}

template <Format F>
void linear_as(const Matrix& w, const Activations& a, const Output& out, int64_t begin, int64_t end) {
#ifdef RAMET_TILE_UNIT
  if constexpr (F == Format::bf16) return linear_halves(w, a, out, begin, end);
#endif
  for (int64_t block = 0; block < a.rows; block += kRowBlock) {
    const int64_t block_end = block + kRowBlock < a.rows ? block + kRowBlock : a.rows;
    for (int64_t panel = begin; panel < end; panel += 2) {
      const int64_t num = end - panel < 2 ? 1 : 2;
      int64_t m = block;
      for (; m + kLinearRows <= block_end; m += kLinearRows)
        run_dense<F, kLinearRows>(w, panel, num, a, m, out);
      if constexpr (kLinearRows > 4) {
        for (; m + 4 <= block_end; m += 4) run_dense<F, 4>(w, panel, num, a, m, out);
      }
      if constexpr (kLinearRows > 2) {
        for (; m + 2 <= block_end; m += 2) run_dense<F, 2>(w, panel, num, a, m, out);
      }
      for (; m < block_end; ++m) run_dense<F, 1>(w, panel, num, a, m, out);
    }
  }
}

}  // namespace

Input input_of(Format format) {
#ifdef RAMET_TILE_UNIT
  if (format == Format::bf16) return Input::halves;
#endif
  if (format == Format::q4) return Input::codes12;
  return format == Format::q8 ? Input::codes16 : Input::floats;
}

void linear(const Matrix& w, const Activations& a, const Output& out, int64_t panel_begin,
            int64_t panel_end) {
  switch (w.format) {
    case Format::f32:
      return linear_as<Format::f32>(w, a, out, panel_begin, panel_end);
    case Format::f16:
      return linear_as<Format::f16>(w, a, out, panel_begin, panel_end);
    case Format::bf16:
      return linear_as<Format::bf16>(w, a, out, panel_begin, panel_end);
    case Format::q8:
      return quantized_as<Format::q8>(w, a, out, panel_begin, panel_end);
    case Format::q4:
      return quantized_as<Format::q4>(w, a, out, panel_begin, panel_end);
  }
}

// One row of the matrix itself, dequantised: the embedding of a token.
void embed(const Matrix& w, int64_t row, float* y) {
  const uint8_t* panel = w.panel(row / kPanel);
  const int64_t lane = row % kPanel;
  const auto* scales = reinterpret_cast<const uint16_t*>(panel + code_bytes(w.format, w.k)) + lane;
  for (int64_t k = 0; k < w.k; ++k) {
    const int64_t i = k * kPanel + lane, g = k / kGroup;
    switch (w.format) {
      case Format::f32:
        y[k] = reinterpret_cast<const float*>(panel)[i];
        break;
      case Format::f16:
        y[k] = half_to_float(reinterpret_cast<const uint16_t*>(panel)[i]);
        break;
      case Format::bf16:
        y[k] = bf16_to_float(reinterpret_cast<const uint16_t*>(panel)[(k / 2 * kPanel + lane) * 2 + k % 2]);
        break;
      case Format::q8: {
        const int64_t word = (k / 8 * 2 + k / 2 % 2) * kPanel + lane, byte = k % 2 * 2 + k / 4 % 2;
        const auto code = static_cast<int8_t>(panel[word * 4 + byte]);
        y[k] = half_to_float(scales[g * kPanel]) * code;
        break;
      }
      case Format::q4: {
        const int64_t word = k / 8 * kPanel + lane, byte = k % 2 * 2 + k / 4 % 2;
        const uint8_t two = panel[word * 4 + byte];
        const int code = k / 2 % 2 ? two >> 4 : two & 15;
        y[k] = half_to_float(scales[2 * g * kPanel]) * static_cast<float>(code) +
               half_to_float(scales[(2 * g + 1) * kPanel]);
        break;
      }
    }
  }
}

}  // namespace RAMET_ISA
}  // namespace ramet
