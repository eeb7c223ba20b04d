// Spans of attention by matrix tiles, for keys and values in bfloat16. 16 queries are a tile. Queries and
// weights are the sum of two bfloat16 each, high and low, so products are as good as with 16 bits of them;
// sums are float32, in an order that depends on nothing but the position.
#pragma once
#include "ops/attention_task.h"

namespace ramet {
namespace RAMET_ISA {

class TileSpans {
public:
  TileSpans(const TaskView& view, float* scratch)
      : v_(view),
        dims_(padded(view.args.head_dim)),
        dim_steps_((view.args.head_dim + kWide - 1) / kWide),
        keys_(reinterpret_cast<uint16_t*>(scratch)),
        values_(keys_ + kSpan * kWide * dim_steps_),
        queries_(values_ + kSpan * kWide * dim_steps_),
        scores_(reinterpret_cast<float*>(queries_ + padded(view.num_queries) * 2 * kWide * dim_steps_)),
        sums_(scores_ + kTile * kScoreRow),
        tiles_({kWhole, kWhole, kWhole, kWhole, kWhole, kWhole, kWhole, kWhole}) {
    for (int64_t i = 0; i < v_.num_queries; ++i) load_query(i);
  }

  // The span at `begin`, for queries from `first` on; finish(i, partial) takes each one's result.
  template <class Finish>
  void run(int64_t begin, int64_t first, const Finish& finish) {
    load_span(begin, v_.num_seen(v_.num_queries - 1, begin));
    for (int64_t tile = first / kTile; tile * kTile < v_.num_queries; ++tile) {
      const int64_t base = tile * kTile, last = v_.num_queries < base + kTile ? v_.num_queries : base + kTile;
      const int64_t end = (v_.num_seen(last - 1, begin) + kStep - 1) / kStep * kStep;
      score(tile, end);
      Softened softened[kTile];
      for (int64_t i = base < first ? first : base; i < last; ++i) {
        softened[i - base] = soften_row(scores_ + (i - base) * kScoreRow, v_.num_seen(i, begin), end);
      }
      add_values(end);
      for (int64_t i = base < first ? first : base; i < last; ++i) {
        const Partial sums{sums_ + (i - base) * sum_row(), dims_};
        put_dims_in_order(sums.p);
        sums.largest() = softened[i - base].largest;
        sums.total() = softened[i - base].total;
        finish(i, sums);
      }
    }
  }

private:
  static constexpr int64_t kTile = 16;  // rows of a tile
  static constexpr int64_t kWide = 32;  // bfloat16 numbers in a row of it
  static constexpr int64_t kTileSize = kTile * kWide;
  static constexpr int64_t kScoreRow = kSpan + 16;  // rows that do not fall on the same cache sets
  static constexpr Tiles::Shape kWhole{16, 64};
  using Rows = const uint16_t* [kStep];

  int64_t sum_row() const { return partial_floats(dims_); }

  // To queries_[tile][dim step][high, low][16 queries][32 dims].
  void load_query(int64_t i) {
    const f32x16 scale = v_.q_scale();
    for (int64_t d = 0; d < dim_steps_ * kWide; d += 16) {
      const int64_t left = v_.args.head_dim - d;
      const f32x16 x = left > 0 ? mul(load_some(v_.q(i) + d, left), scale) : set(0.0f);
      uint16_t* high =
          queries_ + ((i / kTile * dim_steps_ + d / kWide) * 2 * kTile + i % kTile) * kWide + d % kWide;
      store_bf16(high, x);
      store_bf16(high + kTileSize, sub(x, load_bf16(high)));
    }
  }

  void load_span(int64_t begin, int64_t num) {
    for (int64_t j = 0; j < num; j += kStep) {
      const int64_t seen = num - j < kStep ? num - j : kStep;
      int64_t at[kStep];
      v_.find(begin + j, seen, at);
      with_rows(v_.args.keys, at, seen, [&](const Rows& rows) { lay_keys(rows, j); });
      with_rows(v_.args.values, at, seen, [&](const Rows& rows) { lay_values(rows, j); });
    }
  }

  // The rows of one step in whole tile rows; those of positions that nobody sees are zeros.
  template <class Work>
  void with_rows(const void* stored, const int64_t* at, int64_t seen, const Work& work) const {
    alignas(64) static constexpr uint16_t kZeros[256] = {};
    Rows rows;
    for (int64_t i = 0; i < kStep; ++i)
      rows[i] = i < seen ? static_cast<const uint16_t*>(stored) + at[i] : kZeros;
    if (v_.args.head_dim % kWide == 0) return work(rows);
    alignas(64) uint16_t copies[kStep][256];
    for (int64_t i = 0; i < kStep; ++i) {
      std::memset(copies[i] + (dim_steps_ - 1) * kWide, 0, kWide * sizeof(uint16_t));
      std::memcpy(copies[i], rows[i], static_cast<size_t>(v_.args.head_dim) * sizeof(uint16_t));
      rows[i] = copies[i];
    }
    work(rows);
  }

  // To keys_[16 positions][dim step], each a tile [16 pairs of dims][16 positions].
  void lay_keys(const Rows& rows, int64_t j) {
    for (int64_t half = 0; half < kStep; half += kTile) {
      for (int64_t d = 0; d < dim_steps_; ++d) {
        transpose_pairs(rows + half, d * kWide, keys_ + ((j + half) / kTile * dim_steps_ + d) * kTileSize);
      }
    }
  }

  // 16 rows of 16 pairs become 16 columns.
  static void transpose_pairs(const uint16_t* const* rows, int64_t d, uint16_t* to) {
    for (int64_t c = 0; c < 4; ++c) {  // pairs 4 c to 4 c + 3
      __m512i x[4];
      for (int i = 0; i < 4; ++i) {  // of rows i, i + 4, i + 8, i + 12
        const auto four = [&](int row) {
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + d + 8 * c));
        };
        x[i] = _mm512_castsi128_si512(four(i));
        x[i] = _mm512_inserti32x4(x[i], four(i + 4), 1);
        x[i] = _mm512_inserti32x4(x[i], four(i + 8), 2);
        x[i] = _mm512_inserti32x4(x[i], four(i + 12), 3);
      }
      const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
      const __m512i e = _mm512_unpacklo_epi32(x[2], x[3]), f = _mm512_unpackhi_epi32(x[2], x[3]);
      uint16_t* column = to + 4 * c * kWide;
      _mm512_store_si512(column, _mm512_unpacklo_epi64(a, e));
      _mm512_store_si512(column + kWide, _mm512_unpackhi_epi64(a, e));
      _mm512_store_si512(column + 2 * kWide, _mm512_unpacklo_epi64(b, f));
      _mm512_store_si512(column + 3 * kWide, _mm512_unpackhi_epi64(b, f));
    }
  }

  // To values_[step][16 dims], each a tile [16 pairs of positions i and i + 16][16 dims]. Of 32 dims the
  // first tile has 0 to 3, 8 to 11, 16 to 19, 24 to 27, the second the others: put_dims_in_order() undoes
  // that.
  void lay_values(const Rows& rows, int64_t j) {
    uint16_t* to = values_ + j * dim_steps_ * kWide;
    for (int64_t d = 0; d < dim_steps_; ++d, to += 2 * kTileSize) {
      for (int64_t i = 0; i < kTile; ++i) {
        const __m512i a = _mm512_loadu_si512(rows[i] + d * kWide),
                      b = _mm512_loadu_si512(rows[i + kTile] + d * kWide);
        _mm512_store_si512(to + i * kWide, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(to + kTileSize + i * kWide, _mm512_unpackhi_epi16(a, b));
      }
    }
  }
  void put_dims_in_order(float* sums) const {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int64_t d = 0; d < dim_steps_ * kWide; d += kWide) {
      const __m512 a = _mm512_load_ps(sums + d), b = _mm512_load_ps(sums + d + 16);
      _mm512_store_ps(sums + d, _mm512_permutex2var_ps(a, low, b));
      _mm512_store_ps(sums + d + 16, _mm512_permutex2var_ps(a, high, b));
    }
  }

  // Scores of 16 queries, 64 positions at a time; those of positions beyond the span's last are not used.
  void score(int64_t tile, int64_t end) {
    const uint16_t* queries = queries_ + tile * dim_steps_ * 2 * kTileSize;
    constexpr int64_t kBytes = kScoreRow * 4;
    for (int64_t j = 0; j < end; j += 4 * kTile) {
      const uint16_t* keys = keys_ + j * dim_steps_ * kWide;
      const int64_t next = dim_steps_ * kTileSize;
      tile_zero<0>();
      tile_zero<1>();
      tile_zero<2>();
      tile_zero<3>();
      for (int64_t d = 0; d < dim_steps_; ++d) {
        tile_load<4>(queries + 2 * d * kTileSize, 64);
        tile_load<5>(queries + (2 * d + 1) * kTileSize, 64);
        two_products<0, 6>(keys + d * kTileSize);
        two_products<1, 7>(keys + d * kTileSize + next);
        two_products<2, 6>(keys + d * kTileSize + 2 * next);
        two_products<3, 7>(keys + d * kTileSize + 3 * next);
      }
      tile_store<0>(scores_ + j, kBytes);
      tile_store<1>(scores_ + j + kTile, kBytes);
      tile_store<2>(scores_ + j + 2 * kTile, kBytes);
      tile_store<3>(scores_ + j + 3 * kTile, kBytes);
    }
  }

  // A step's weights take the place of its scores: 32 high parts, then 32 low ones, those of positions i and
  // i + 16 side by side.
  static Softened soften_row(float* scores, int64_t num, int64_t end) {
    return soften(scores, num, end, [&](int64_t j, const f32x16& first, const f32x16& second) {
      const __m512i a = _mm512_castps_si512(first.r[0]), b = _mm512_castps_si512(second.r[0]);
      const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000)),
                    half = _mm512_set1_epi32(0x8000);
      const auto low_of = [&](__m512i x) {  // what the upper half leaves, to be rounded by cutting
        const __m512 cut = _mm512_castsi512_ps(_mm512_and_si512(x, upper));
        return _mm512_add_epi32(_mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(x), cut)), half);
      };
      const auto side_by_side = [&](__m512i x, __m512i y) {  // upper halves
        return _mm512_ternarylogic_epi32(upper, y, _mm512_srli_epi32(x, 16), 0xca);
      };
      _mm512_store_si512(scores + j, side_by_side(a, b));
      _mm512_store_si512(scores + j + 16, side_by_side(low_of(a), low_of(b)));
    });
  }

  void add_values(int64_t end) {
    int64_t t = 0;
    for (; t + 4 <= 2 * dim_steps_; t += 4) {
      tile_zero<0>();
      tile_zero<1>();
      tile_zero<2>();
      tile_zero<3>();
      for (int64_t j = 0; j < end; j += kStep) {
        const uint16_t* values = values_ + j * dim_steps_ * kWide + t * kTileSize;
        load_weights(j);
        two_products<0, 6>(values);
        two_products<1, 7>(values + kTileSize);
        two_products<2, 6>(values + 2 * kTileSize);
        two_products<3, 7>(values + 3 * kTileSize);
      }
      store_sums<0>(t);
      store_sums<1>(t + 1);
      store_sums<2>(t + 2);
      store_sums<3>(t + 3);
    }
    if (t < 2 * dim_steps_) {
      tile_zero<0>();
      tile_zero<1>();
      for (int64_t j = 0; j < end; j += kStep) {
        const uint16_t* values = values_ + j * dim_steps_ * kWide + t * kTileSize;
        load_weights(j);
        two_products<0, 6>(values);
        two_products<1, 7>(values + kTileSize);
      }
      store_sums<0>(t);
      store_sums<1>(t + 1);
    }
  }
  void load_weights(int64_t j) const {
    tile_load<4>(scores_ + j, kScoreRow * 4);
    tile_load<5>(scores_ + j + 16, kScoreRow * 4);
  }
  template <int T>
  void store_sums(int64_t t) const {
    tile_store<T>(sums_ + t * kTile, sum_row() * 4);
  }
  template <int Sum, int B>  // high parts, in tile 4, then low ones, in tile 5
  static void two_products(const uint16_t* b) {
    tile_load<B>(b, 64);
    tile_dot_bf16<Sum, 4, B>();
    tile_dot_bf16<Sum, 5, B>();
  }

  const TaskView& v_;
  const int64_t dims_, dim_steps_;
  uint16_t *keys_, *values_, *queries_;
  float *scores_, *sums_;
  const Tiles tiles_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
