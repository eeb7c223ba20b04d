// How queries, keys and values become tiles of bfloat16. A product of tiles takes rows of 32 numbers from its
// first one and, from its second, rows of 16 pairs: the two numbers in each 32 bits meet neighbours in a row.
#pragma once
#include "ops/attention_task.h"

namespace ramet {
namespace RAMET_ISA {

constexpr int64_t kTile = 16;  // rows of a tile
constexpr int64_t kWide = 32;  // bfloat16 numbers in a row of it
constexpr int64_t kTileSize = kTile * kWide;
constexpr Tiles::Shape kWhole{kTile, 2 * kWide};
constexpr Tiles::Shape kWholeTiles[8] = {kWhole, kWhole, kWhole, kWhole, kWhole, kWhole, kWhole, kWhole};

// Numbers of a row of keys or values in whole tile rows.
static inline int64_t tile_width(int64_t head_dim) { return (head_dim + kWide - 1) / kWide * kWide; }

// Rows of bfloat16 numbers, of any head size, in whole tile rows and always as far apart.
constexpr int64_t kMaxWidth = 256;
using Row = uint16_t[kMaxWidth];

// Four columns of pairs, from number d on, of 16 rows `apart`: each becomes a vector.
RAMET_INLINE void turn_pairs(const uint16_t* rows, int64_t apart, int64_t d, __m512i (&y)[4]) {
  __m512i x[4];
  RAMET_UNROLL for (int i = 0; i < 4; ++i) {  // of rows i, i + 4, i + 8 and i + 12
    const auto part = [&](int64_t row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * apart + d));
    };
    x[i] = _mm512_inserti32x4(_mm512_castsi128_si512(part(i)), part(i + 4), 1);
    x[i] = _mm512_inserti32x4(_mm512_inserti32x4(x[i], part(i + 8), 2), part(i + 12), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i e = _mm512_unpacklo_epi32(x[2], x[3]), f = _mm512_unpackhi_epi32(x[2], x[3]);
  y[0] = _mm512_unpacklo_epi64(a, e);
  y[1] = _mm512_unpackhi_epi64(a, e);
  y[2] = _mm512_unpacklo_epi64(b, f);
  y[3] = _mm512_unpackhi_epi64(b, f);
}
// Likewise, each a row.
RAMET_INLINE void turn_pairs(const uint16_t* rows, int64_t apart, int64_t d, uint16_t* to) {
  __m512i y[4];
  turn_pairs(rows, apart, d, y);
  RAMET_UNROLL for (int i = 0; i < 4; ++i) _mm512_store_si512(to + i * kWide, y[i]);
}

// Values of 16 positions to half of the tiles of pairs of positions that 32 of them fill, two tiles for 32
// dims. Of every 8 dims the first four are in one tile, the others in the other: `in_order` undoes that.
RAMET_INLINE void lay_values(const uint16_t* rows, int64_t apart, int64_t width, uint16_t* to) {
  for (int64_t i = 0; i < kTile / 2; ++i, rows += 2 * apart, to += kWide) {
    for (int64_t d = 0; d < width; d += kWide) {
      const __m512i a = _mm512_loadu_si512(rows + d), b = _mm512_loadu_si512(rows + apart + d);
      _mm512_store_si512(to + d * kWide, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(to + d * kWide + kTileSize, _mm512_unpackhi_epi16(a, b));
    }
  }
}

// 32 sums whose columns stand as lay_values leaves them.
struct Sums32 {
  f32x16 first, second;
};
RAMET_INLINE Sums32 in_order(const f32x16& a, const f32x16& b) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  return {{{_mm512_permutex2var_ps(a.r[0], first, b.r[0])}},
          {{_mm512_permutex2var_ps(a.r[0], second, b.r[0])}}};
}

// `width` numbers, those from head_dim on zero.
static inline void copy_row(const uint16_t* from, int64_t head_dim, int64_t width, uint16_t* to) {
  std::memset(to + width - kWide, 0, kWide * sizeof(uint16_t));
  std::memcpy(to, from, static_cast<size_t>(head_dim) * sizeof(uint16_t));
}
static inline void copy_row(const int8_t* codes, float scale, int64_t head_dim, int64_t width, uint16_t* to) {
  for (int64_t d = 0; d < width; d += 16) {
    const int64_t left = head_dim - d;
    store_bf16(to + d, left > 0 ? mul(load_int8_some(codes + d, left), set(scale)) : set(0.0f));
  }
}

}  // namespace RAMET_ISA
}  // namespace ramet
