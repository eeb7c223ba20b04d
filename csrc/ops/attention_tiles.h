// Spans of attention by matrix tiles, for keys and values in bfloat16 or as codes. 16 queries are a tile.
// Queries and weights are the sum of two bfloat16 each, high and low, so products are as good as with 16 bits
// of them; sums are float32, in an order that depends on nothing but the position.
// Where keys and values are codes, a key's scale multiplies its scores, a value's scale its weights.
#pragma once
#include "ops/attention_layout.h"

namespace ramet {
namespace RAMET_ISA {

template <class Layout>
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
        sums_(scores_ + 3 * kTile * kScoreRow),
        tiles_({kWhole, kWhole, kWhole, kWhole, kWhole, kWhole, kWhole, kWhole}) {
    for (int64_t i = 0; i < v_.num_queries; ++i) load_query(i);
  }

  // The span at `begin`, for queries that see any of it; finish(i, partial) takes each one's result. While
  // the vector units make weights of one block's scores, the tile unit scores the next and sums the one
  // before.
  template <class Finish>
  void run(int64_t begin, const Queries& queries, const Finish& finish) {
    Block blocks[3];  // before, now, next
    blocks[2] = block_at(queries.first / kTile * kTile, begin, queries);
    load_span(begin, {v_.seen(queries.first, begin).first, v_.seen(queries.last - 1, begin).end}, blocks[2]);
    do {
      blocks[0] = blocks[1];
      blocks[1] = blocks[2];
      blocks[2] = block_at(blocks[1].base + kTile, begin, queries);
      soften_block(blocks, begin);
      finish_block(blocks[0], finish);
    } while (blocks[2].num_rows > 0);
    for (int64_t u = 0; u < kParts; ++u) sum_part(blocks[1], u);
    finish_block(blocks[1], finish);
  }

private:
  static constexpr int64_t kScoreRow = kSpan + 16;  // rows that do not fall on the same cache sets
  static constexpr Tiles::Shape kWhole{16, 64};
  using Item = typename Layout::Item;
  using Rows = const Item* [kStep];

  static constexpr int64_t kParts = 8;  // of the work of tiles, between which vectors do two rows each

  // Up to 16 queries in a span.
  struct Block {
    int64_t base = 0, first_row = 0, num_rows = 0;  // queries base + first_row to base + num_rows
    int64_t begin = 0, end = 0;  // of the span's positions that any of them sees, in whole steps
    float* scores = nullptr;     // [16][kScoreRow], then weights
    float largest[kTile], totals[kTile];
  };

  int64_t sum_row() const { return partial_floats(dims_); }

  Block block_at(int64_t base, int64_t begin, const Queries& queries) const {
    Block b;
    if (base >= queries.last) return b;
    b.base = base;
    b.first_row = queries.first > base ? queries.first - base : 0;
    b.num_rows = queries.last - base < kTile ? queries.last - base : kTile;
    b.begin = step_floor(v_.seen(base + b.first_row, begin).first);
    b.end = step_ceil(v_.seen(base + b.num_rows - 1, begin).end);
    b.scores = scores_ + base / kTile % 3 * kTile * kScoreRow;
    return b;
  }

  void soften_block(Block (&blocks)[3], int64_t begin) const {
    Block& b = blocks[1];
    Seen seen[kTile];
    for (int64_t r = b.first_row; r < b.num_rows; ++r) {
      seen[r] = v_.seen(b.base + r, begin);
      if constexpr (Layout::kIsScaled) scale_scores(b.scores + r * kScoreRow, seen[r]);
      if (v_.args.cap > 0) bend(b.scores + r * kScoreRow, seen[r], v_.args.cap);
      b.largest[r] = largest_of(b.scores + r * kScoreRow, seen[r]);
    }
    const auto soften_one = [&](int64_t r) {
      if (r >= b.first_row && r < b.num_rows)
        b.totals[r] = soften_row(b.scores + r * kScoreRow, seen[r], b, b.largest[r]);
    };
    for (int64_t u = 0; u < kParts; ++u) {
      if (u * kStep >= blocks[2].begin && u * kStep < blocks[2].end)
        score_step(blocks[2], u * kStep, keys_ + u * kStep * dim_steps_ * kWide);
      soften_one(2 * u);
      sum_part(blocks[0], u);
      soften_one(2 * u + 1);
    }
  }

  template <class Finish>
  void finish_block(const Block& b, const Finish& finish) const {
    for (int64_t r = b.first_row; r < b.num_rows; ++r) {
      const Partial sums{sums_ + r * sum_row(), dims_};
      for (int64_t d = 0; d < dim_steps_ * kWide; d += kWide) Layout::put_in_order(sums.p + d);
      sums.largest() = b.largest[r];
      sums.total() = b.totals[r];
      finish(b.base + r, sums);
    }
  }

  // To queries_[tile][dim step][high, low][16 queries][32 dims].
  void load_query(int64_t i) {
    const f32x16 scale = mul(v_.q_scale(), set(1.0f / Layout::kKeyUnit));
    for (int64_t d = 0; d < dim_steps_ * kWide; d += 16) {
      const int64_t left = v_.args.head_dim - d;
      const f32x16 x = left > 0 ? mul(load_some(v_.q(i) + d, left), scale) : set(0.0f);
      uint16_t* high =
          queries_ + ((i / kTile * dim_steps_ + d / kWide) * 2 * kTile + i % kTile) * kWide + d % kWide;
      store_bf16(high, x);
      store_bf16(high + kTileSize, sub(x, load_bf16(high)));
    }
  }

  // Lays out what is seen of the span at `begin` and scores the first block, while the keys are at hand.
  // Where it is the only one, they are not kept.
  void load_span(int64_t begin, const Seen& seen, const Block& first) {
    int64_t at[kSpan];
    v_.find(begin + seen.first, seen.end - seen.first, at + seen.first);
    if constexpr (Layout::kIsScaled) find_scales(at, seen);
    const int64_t kept = v_.num_queries > kTile ? dim_steps_ * kWide : 0;
    for (int64_t j = step_floor(seen.first); j < seen.end; j += kStep) {
      const Seen here{seen.first > j ? seen.first - j : 0, seen.end - j < kStep ? seen.end - j : kStep};
      uint16_t* keys = keys_ + j * kept;
      with_rows(v_.args.keys, at + j, here, [&](const Rows& rows) { lay_keys(rows, keys); });
      if (j < first.end) score_step(first, j, keys);
      with_rows(v_.args.values, at + j, here, [&](const Rows& rows) { lay_values(rows, j); });
    }
  }

  // The rows of one step in whole tile rows; those of positions that nobody sees are zeros.
  template <class Work>
  void with_rows(const void* stored, const int64_t* at, const Seen& seen, const Work& work) const {
    alignas(64) static constexpr Item kZeros[256] = {};
    Rows rows;
    for (int64_t i = 0; i < kStep; ++i)
      rows[i] = i >= seen.first && i < seen.end ? static_cast<const Item*>(stored) + at[i] : kZeros;
    if (v_.args.head_dim % kWide == 0) return work(rows);
    alignas(64) Item copies[kStep][256];
    for (int64_t i = 0; i < kStep; ++i) {
      std::memset(copies[i] + (dim_steps_ - 1) * kWide, 0, kWide * sizeof(Item));
      std::memcpy(copies[i], rows[i], static_cast<size_t>(v_.args.head_dim) * sizeof(Item));
      rows[i] = copies[i];
    }
    work(rows);
  }

  // Of what is seen of a span; others in the same steps have zeros.
  void find_scales(const int64_t* at, const Seen& seen) {
    for (int64_t j = step_floor(seen.first); j < step_ceil(seen.end); ++j)
      key_scales_[j] = value_scales_[j] = 0.0f;
    for (int64_t j = seen.first; j < seen.end; ++j) {
      key_scales_[j] = v_.code_scale(v_.args.keys, at[j]);
      value_scales_[j] = v_.code_scale(v_.args.values, at[j]);
    }
  }
  void scale_scores(float* scores, const Seen& seen) const {
    for (int64_t j = seen.first / 16 * 16; j < seen.end; j += 16)
      store(scores + j, mul(load(scores + j), load(key_scales_ + j)));
  }

  // To [16 positions][dim step], each a tile.
  void lay_keys(const Rows& rows, uint16_t* to) const {
    for (int64_t half = 0; half < kStep; half += kTile) {
      for (int64_t d = 0; d < dim_steps_; ++d, to += kTileSize) Layout::lay_keys(rows + half, d * kWide, to);
    }
  }
  // To values_[step][16 dims], each a tile.
  void lay_values(const Rows& rows, int64_t j) {
    uint16_t* to = values_ + j * dim_steps_ * kWide;
    for (int64_t d = 0; d < dim_steps_; ++d, to += 2 * kTileSize) Layout::lay_values(rows, d * kWide, to);
  }

  // Scores of a block against the 32 positions from j on.
  void score_step(const Block& b, int64_t j, const uint16_t* keys) const {
    const uint16_t* queries = queries_ + b.base * dim_steps_ * 2 * kWide;
    const int64_t second = dim_steps_ * kTileSize;
    tile_zero<0>();
    tile_zero<1>();
    for (int64_t d = 0; d < dim_steps_; ++d, keys += kTileSize, queries += 2 * kTileSize) {
      tile_load<6>(queries, 64);
      tile_load<7>(keys, 64);
      tile_dot_bf16<0, 6, 7>();
      tile_load<7>(keys + second, 64);
      tile_dot_bf16<1, 6, 7>();
      tile_load<6>(queries + kTileSize, 64);
      tile_dot_bf16<1, 6, 7>();
      tile_load<7>(keys, 64);
      tile_dot_bf16<0, 6, 7>();
    }
    tile_store<0>(b.scores + j, kScoreRow * 4);
    tile_store<1>(b.scores + j + kTile, kScoreRow * 4);
  }

  // A step's weights take the place of its scores: 32 high parts, then 32 low ones, those of positions i and
  // i + 16 side by side.
  float soften_row(float* scores, const Seen& seen, const Block& b, float largest) const {
    return soften(scores, seen, b.begin, b.end, largest, [&](int64_t j, f32x16 first, f32x16 second) {
      if constexpr (Layout::kIsScaled) {
        first = mul(first, load(value_scales_ + j));
        second = mul(second, load(value_scales_ + j + 16));
      }
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

  // Weights times values: the u-th of kParts equal shares of the work, which is steps of positions for each
  // 64 dims in turn.
  void sum_part(const Block& b, int64_t u) const {
    const int64_t num_steps = (b.end - b.begin) / kStep, all = num_steps * ((dim_steps_ + 1) / 2);
    for (int64_t n = u * all / kParts; n < (u + 1) * all / kParts; ++n) {
      const int64_t tile = n / num_steps * 4, j = b.begin + n % num_steps * kStep;
      if (tile + 4 <= 2 * dim_steps_) {
        sum_step<4>(b, tile, j);
      } else {
        sum_step<2>(b, tile, j);
      }
    }
  }

  template <int N>  // tiles of 16 dims
  void sum_step(const Block& b, int64_t tile, int64_t j) const {
    const uint16_t* values = values_ + (j / kStep * 2 * dim_steps_ + tile) * kTileSize;
    if (j == b.begin) {
      tile_zero<2>();
      tile_zero<3>();
      tile_zero<4>();
      tile_zero<5>();
    }
    const float* weights = b.scores + j;
    tile_load<0>(weights, kScoreRow * 4);
    tile_load<1>(weights + kTile, kScoreRow * 4);
    add_products<2, 6>(values);
    add_products<3, 7>(values + kTileSize);
    if constexpr (N == 4) {
      add_products<4, 6>(values + 2 * kTileSize);
      add_products<5, 7>(values + 3 * kTileSize);
    }
    if (j + kStep < b.end) return;
    float* sums = sums_ + tile * kTile;
    tile_store<2>(sums, sum_row() * 4);
    tile_store<3>(sums + kTile, sum_row() * 4);
    if constexpr (N == 4) {
      tile_store<4>(sums + 2 * kTile, sum_row() * 4);
      tile_store<5>(sums + 3 * kTile, sum_row() * 4);
    }
  }
  template <int Sum, int B>  // of high parts, in tile 0, and of low ones, in tile 1
  static void add_products(const uint16_t* values) {
    tile_load<B>(values, 64);
    tile_dot_bf16<Sum, 0, B>();
    tile_dot_bf16<Sum, 1, B>();
  }

  const TaskView& v_;
  const int64_t dims_, dim_steps_;
  uint16_t *keys_, *values_, *queries_;
  float *scores_, *sums_;
  alignas(64) float key_scales_[kSpan], value_scales_[kSpan];  // of codes
  const Tiles tiles_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
