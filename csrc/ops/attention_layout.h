// How keys and values become tiles of products of bfloat16: in each 32 bits stand the two numbers that meet
// in one step. A layout says what an item of a row is and by how much keys in tiles are too large.
#pragma once
#include "ops/attention_task.h"

namespace ramet {
namespace RAMET_ISA {

constexpr int64_t kTile = 16;  // rows of a tile
constexpr int64_t kWide = 32;  // bfloat16 numbers in a row of it
constexpr int64_t kTileSize = kTile * kWide;

// Four words of 32 bits of each of 16 rows, from item `at` on: word i of all rows becomes columns[i].
template <class Item>
RAMET_INLINE void transpose_words(const Item* const* rows, int64_t at, __m512i (&columns)[4]) {
  __m512i x[4];
  RAMET_UNROLL for (int i = 0; i < 4; ++i) {  // of rows i, i + 4, i + 8, i + 12
    const auto four = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + at));
    };
    x[i] = _mm512_castsi128_si512(four(i));
    x[i] = _mm512_inserti32x4(x[i], four(i + 4), 1);
    x[i] = _mm512_inserti32x4(x[i], four(i + 8), 2);
    x[i] = _mm512_inserti32x4(x[i], four(i + 12), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i e = _mm512_unpacklo_epi32(x[2], x[3]), f = _mm512_unpackhi_epi32(x[2], x[3]);
  columns[0] = _mm512_unpacklo_epi64(a, e);
  columns[1] = _mm512_unpackhi_epi64(a, e);
  columns[2] = _mm512_unpacklo_epi64(b, f);
  columns[3] = _mm512_unpackhi_epi64(b, f);
}

// bfloat16 as stored.
struct HalvesLayout {
  using Item = uint16_t;
  static constexpr bool kIsScaled = false;
  static constexpr float kKeyUnit = 1.0f;

  // 32 dims of 16 positions to a tile [16 pairs of dims][16 positions].
  static void lay_keys(const Item* const* rows, int64_t d, uint16_t* to) {
    for (int64_t c = 0; c < 4; ++c) {
      __m512i columns[4];
      transpose_words(rows, d + 8 * c, columns);
      for (int64_t i = 0; i < 4; ++i) _mm512_store_si512(to + (4 * c + i) * kWide, columns[i]);
    }
  }

  // 32 dims of 32 positions to two tiles [16 pairs of positions i and i + 16][16 dims]. The first has dims 0
  // to 3, 8 to 11, 16 to 19, 24 to 27, the second the others: put_in_order() undoes that.
  static void lay_values(const Item* const* rows, int64_t d, uint16_t* to) {
    for (int64_t i = 0; i < kTile; ++i) {
      const __m512i a = _mm512_loadu_si512(rows[i] + d), b = _mm512_loadu_si512(rows[i + kTile] + d);
      _mm512_store_si512(to + i * kWide, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(to + kTileSize + i * kWide, _mm512_unpackhi_epi16(a, b));
    }
  }
  static void put_in_order(float* sums) {  // of 32 dims
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const __m512 a = _mm512_load_ps(sums), b = _mm512_load_ps(sums + 16);
    _mm512_store_ps(sums, _mm512_permutex2var_ps(a, low, b));
    _mm512_store_ps(sums + 16, _mm512_permutex2var_ps(a, high, b));
  }
};

// int8 codes, which are bfloat16 numbers, all of them. Their scales are applied elsewhere.
struct CodesLayout {
  using Item = int8_t;
  static constexpr bool kIsScaled = true;
  static constexpr float kKeyUnit = 0x1p24f;

  static void lay_keys(const Item* const* rows, int64_t d, uint16_t* to) {
    for (int64_t c = 0; c < 2; ++c) {
      __m512i columns[4];  // of four codes each
      transpose_words(rows, d + 16 * c, columns);
      for (int64_t i = 0; i < 4; ++i) {
        _mm512_store_si512(to + (8 * c + 2 * i) * kWide, pair<24, 16>(columns[i]));
        _mm512_store_si512(to + (8 * c + 2 * i + 1) * kWide, pair<8, 0>(columns[i]));
      }
    }
  }

  static void lay_values(const Item* const* rows, int64_t d, uint16_t* to) {
    for (int64_t half = 0; half < kWide; half += 16) {
      for (int64_t i = 0; i < kTile; ++i) {
        const Item *first = rows[i] + d + half, *second = rows[i + kTile] + d + half;
        _mm512_store_si512(to + half * kTile * 2 + i * kWide,
                           side_by_side(load_int8(first), load_int8(second)));
      }
    }
  }
  static void put_in_order(float*) {}

private:
  static __m512i side_by_side(const f32x16& first, const f32x16& second) {  // whose lower halves are zero
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first.r[0]), 16),
                           _mm512_castps_si512(second.r[0]));
  }
  // Two of four codes, moved to the upper byte of a word and so 2^24 times too large.
  template <int First, int Second>
  static __m512i pair(__m512i four) {
    const auto number = [&](__m512i word) {
      return f32x16{
          {_mm512_cvtepi32_ps(_mm512_and_si512(word, _mm512_set1_epi32(static_cast<int32_t>(0xff000000))))}};
    };
    return side_by_side(number(_mm512_slli_epi32(four, First)), number(_mm512_slli_epi32(four, Second)));
  }
};

}  // namespace RAMET_ISA
}  // namespace ramet
