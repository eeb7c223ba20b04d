// How queries, keys and values become tiles of bfloat16. A product of tiles takes rows of 32 numbers from its
// first one and, from its second, rows of 16 pairs: the two numbers in each 32 bits meet neighbours in a row.
#pragma once
#include "ops/attention_task.h"

namespace ramet {
namespace RAMET_ISA {

constexpr int64_t kTile = 16;  // rows of a tile
constexpr int64_t kWide = 32;  // bfloat16 numbers in a row of it
constexpr int64_t kTileSize = kTile * kWide;

// Rows of bfloat16 numbers, of any head size, in whole tile rows and always as far apart.
constexpr int64_t kMaxWidth = 256;
using Row = uint16_t[kMaxWidth];

// The 128 bits from d on of rows 0, Apart, 2 * Apart and 3 * Apart.
template <int64_t Apart>
RAMET_INLINE __m512i four_of(const Row* rows, int64_t d) {
  const auto part = [&](int64_t i) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(rows[i * Apart] + d));
  };
  __m512i x = _mm512_castsi128_si512(part(0));
  x = _mm512_inserti32x4(x, part(1), 1);
  x = _mm512_inserti32x4(x, part(2), 2);
  return _mm512_inserti32x4(x, part(3), 3);
}

// 8 dims, from d on, of 16 queries: each pair of dims becomes a row.
static inline void lay_queries(const Row* rows, int64_t d, uint16_t* to) {
  __m512i x[4];
  RAMET_UNROLL for (int i = 0; i < 4; ++i) x[i] = four_of<4>(rows + i, d);
  const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i e = _mm512_unpacklo_epi32(x[2], x[3]), f = _mm512_unpackhi_epi32(x[2], x[3]);
  _mm512_store_si512(to, _mm512_unpacklo_epi64(a, e));
  _mm512_store_si512(to + kWide, _mm512_unpackhi_epi64(a, e));
  _mm512_store_si512(to + 2 * kWide, _mm512_unpacklo_epi64(b, f));
  _mm512_store_si512(to + 3 * kWide, _mm512_unpackhi_epi64(b, f));
}

// 8 dims, from d on, of the values of 32 positions: each dim becomes a row.
static inline void lay_values(const Row* rows, int64_t d, uint16_t* to) {
  __m512i x[8], y[8];
  RAMET_UNROLL for (int i = 0; i < 8; ++i) x[i] = four_of<8>(rows + i, d);
  RAMET_UNROLL for (int i = 0; i < 4; ++i) {  // two positions of 4 dims each
    y[i] = _mm512_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
    y[i + 4] = _mm512_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
  }
  RAMET_UNROLL for (int i = 0; i < 4; ++i) {  // four positions of 2 dims
    x[2 * i] = _mm512_unpacklo_epi32(y[2 * i], y[2 * i + 1]);
    x[2 * i + 1] = _mm512_unpackhi_epi32(y[2 * i], y[2 * i + 1]);
  }
  RAMET_UNROLL for (int i = 0; i < 4; ++i) {  // all of one dim
    const __m512i &first = x[i / 2 * 4 + i % 2], &second = x[i / 2 * 4 + i % 2 + 2];
    _mm512_store_si512(to + 2 * i * kWide, _mm512_unpacklo_epi64(first, second));
    _mm512_store_si512(to + (2 * i + 1) * kWide, _mm512_unpackhi_epi64(first, second));
  }
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
