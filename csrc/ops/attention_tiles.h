// Attention by matrix tiles, for keys and values in bfloat16 or as codes. 16 queries are a block, and each
// has a lane of every vector: scores stand as [position][query], weights likewise, sums as [dim][query].
//
// Keys are tiles as they are stored. Weights are bfloat16, so they are made of scores as numbers of 16 bits
// (Weights); what a query's weights are relative to is known after its first scores of a span, and so each
// tile of scores becomes weights while the next one is scored.
#pragma once
#include "ops/attention_layout.h"
#include "ops/attention_weights.h"

namespace ramet {
namespace RAMET_ISA {

class TileWalk {
public:
  TileWalk(const TaskView& view, float* scratch)
      : v_(view),
        width_((view.args.head_dim + kWide - 1) / kWide * kWide),
        ends_(reinterpret_cast<int32_t*>(scratch)),
        rows_(ends_ + padded(view.num_queries)),
        heads_(rows_ + padded(view.num_queries)),
        keys_(reinterpret_cast<uint16_t*>(heads_ + padded(view.num_queries))),
        values_(keys_ + kSpan * width_),
        queries_(values_ + kSpan * width_),
        weights_(queries_ + padded(view.num_queries) * width_),
        scores_(reinterpret_cast<float*>(weights_ + kSpan * kTile)),
        sums_(scores_ + kRing * kTile * kTile),
        totals_(sums_ + (width_ + 2) * kTile),
        tiles_({kWhole, kWhole, kWhole, kWhole, kWhole, kWhole, kWhole, kWhole}) {}

  void run() {
    find_queries();
    for (int64_t base = 0; base < v_.num_queries; base += kTile) load_queries(base);
    for (int64_t s = 0; s < v_.task.num_spans; ++s) {
      const int64_t span = v_.task.first_span + s, begin = span * kSpan;
      const Queries queries = v_.seeing({0, v_.num_queries}, begin, begin + kSpan);
      if (queries.first == queries.last) continue;
      load_span(begin, {v_.seen(queries.first, begin).first, v_.seen(queries.last - 1, begin).end});
      for (int64_t base = queries.first / kTile * kTile; base < queries.last; base += kTile) {
        Block b = block_at(base, begin, queries);
        if (!soften(b)) soften_again(b);
        finish(b, span);
      }
    }
    for (int64_t base = 0; base < v_.num_queries; base += kTile) write_out(base);
  }

private:
  static constexpr Tiles::Shape kWhole{16, 64};
  static constexpr int64_t kRing = 4;  // tiles of scores

  // Up to 16 queries in a span.
  struct Block {
    int64_t base, first_row, num_rows;  // queries base + first_row to base + num_rows
    int64_t begin, end;                 // of the span's positions that any of them sees, in whole steps
    int64_t all_first, all_end;         // what all lanes see
    int64_t last_first;                 // where the last query begins to see
    __m512i first, ends;                // what each lane sees
    Weights weights;
  };

  uint16_t* queries_of(int64_t base) const { return queries_ + base * width_; }

  Block block_at(int64_t base, int64_t begin, const Queries& queries) const {
    Block b;
    b.base = base;
    b.first_row = queries.first > base ? queries.first - base : 0;
    b.num_rows = queries.last - base < kTile ? queries.last - base : kTile;
    const auto inside = [](__m512i x) {
      return _mm512_min_epi32(_mm512_max_epi32(x, _mm512_setzero_si512()), _mm512_set1_epi32(kSpan));
    };
    const __m512i ends = _mm512_sub_epi32(_mm512_load_si512(ends_ + base), all_lanes(begin));
    b.ends = inside(ends);
    b.first = inside(_mm512_sub_epi32(ends, all_lanes(v_.args.window)));
    alignas(64) int32_t first[kTile], last[kTile];
    _mm512_store_si512(first, b.first);
    _mm512_store_si512(last, b.ends);
    b.begin = step_floor(first[b.first_row]);
    b.end = step_ceil(last[b.num_rows - 1]);
    b.last_first = first[b.num_rows - 1];
    b.all_first = first[kTile - 1];
    b.all_end = last[0];
    return b;
  }

  static __m512i all_lanes(int64_t x) {  // beyond any position, as far as positions go
    return _mm512_set1_epi32(static_cast<int32_t>(x < 0x3fffffff ? x : 0x3fffffff));
  }

  // Rows, heads and ends of what is seen, query by query. The last one's fill up a block.
  void find_queries() const {
    int64_t i = 0;
    for (int64_t row = 0; row < v_.task.num_rows; ++row) {
      for (int64_t head = 0; head < v_.group; ++head, ++i) {
        rows_[i] = v_.args.task_rows[v_.task.first_row + row];
        heads_[i] = static_cast<int32_t>(v_.kv_head * v_.group + head);
        ends_[i] = v_.args.positions[rows_[i]] + 1;
      }
    }
    for (; i % kTile != 0; ++i) ends_[i] = ends_[i - 1];
  }

  const float* query(int64_t i) const {
    return v_.args.q + rows_[i] * v_.args.ldq + heads_[i] * v_.args.head_dim;
  }

  // To queries_[16 queries][32 dims], each a tile of pairs of dims.
  void load_queries(int64_t base) {
    alignas(64) Row rows[kTile];
    const f32x16 scale = mul(v_.q_scale(), set(v_.args.cap > 0 ? 1.0f : Weights::kUnit));
    for (int64_t i = 0; i < kTile; ++i) {
      const int64_t num = base + i < v_.num_queries ? v_.args.head_dim : 0;
      const float* q = num > 0 ? query(base + i) : nullptr;
      const auto part = [&](int64_t d) {
        return num > d ? mul(load_some(q + d, num - d), scale).r[0] : _mm512_setzero_ps();
      };
      for (int64_t d = 0; d < width_; d += kWide)
        _mm512_store_si512(rows[i] + d, (__m512i)_mm512_cvtne2ps_pbh(part(d + 16), part(d)));
    }
    uint16_t* to = queries_of(base);
    for (int64_t d = 0; d < width_; d += 8) lay_queries(rows, d, to + d * kTile);
  }

  // Finds the keys and lays out the values that are seen of the span at `begin`.
  void load_span(int64_t begin, const Seen& seen) {
    int64_t at[kSpan];
    v_.find(begin + seen.first, seen.end - seen.first, at + seen.first);
    alignas(64) Row rows[kStep];
    for (int64_t j = step_floor(seen.first); j < seen.end; j += kStep) {
      for (int64_t half = j; half < j + kStep; half += kTile) find_keys(at, seen, half);
      copy<kStep>(v_.args.values, at, seen, j, rows[0], kMaxWidth);
      for (int64_t d = 0; d < width_; d += 8) lay_values(rows, d, values_ + j * width_ + d * kWide);
    }
  }

  // 16 positions' keys are a tile where they lie, if they are neighbours there; else copies are.
  void find_keys(const int64_t* at, const Seen& seen, int64_t j) {
    Keys& keys = key_tiles_[j / kTile];
    const int64_t apart = v_.args.num_kv_heads * v_.args.head_dim;
    if (v_.args.format == KVFormat::bf16 && width_ == v_.args.head_dim && j >= seen.first &&
        j + kTile <= seen.end && at[j + kTile - 1] - at[j] == (kTile - 1) * apart) {
      keys = {static_cast<const uint16_t*>(v_.args.keys) + at[j], apart};
      return;
    }
    keys = {keys_ + j * width_, width_};
    copy<kTile>(v_.args.keys, at, seen, j, keys_ + j * width_, width_);
  }

  // What is stored for N positions from j on, in whole tile rows `apart`; zeros where nobody sees it.
  template <int N>
  void copy(const void* stored, const int64_t* at, const Seen& seen, int64_t j, uint16_t* to,
            int64_t apart) const {
    const int64_t dim = v_.args.head_dim, width = width_;
    const auto* numbers = static_cast<const uint16_t*>(stored);
    if (v_.args.format == KVFormat::bf16 && dim == width && j >= seen.first && j + N <= seen.end) {
      for (int64_t d = 0; d < width; d += kWide) {
        for (int64_t i = 0; i < N; ++i)
          _mm512_store_si512(to + i * apart + d, _mm512_loadu_si512(numbers + at[j + i] + d));
      }
      return;
    }
    for (int64_t i = j; i < j + N; ++i, to += apart) {
      if (i < seen.first || i >= seen.end) {
        std::memset(to, 0, static_cast<size_t>(width) * sizeof(uint16_t));
      } else if (v_.args.format == KVFormat::int8) {
        copy_row(static_cast<const int8_t*>(stored) + at[i], v_.code_scale(stored, at[i]), dim, width, to);
      } else {
        copy_row(numbers + at[i], dim, width, to);
      }
    }
  }

  // Scores of a block against 16 positions, in tile T. Queries of 64 dims stay in their tiles for a whole
  // span.
  static constexpr int64_t kKeptWidth = 2 * kWide;

  void keep_queries(const Block& b) const {
    if (width_ != kKeptWidth) return;
    tile_load<4>(queries_of(b.base), 64);
    tile_load<5>(queries_of(b.base) + kTileSize, 64);
  }

  template <int T>
  void score(const Block& b, int64_t j) const {
    const Keys& keys = key_tiles_[j / kTile];
    tile_zero<T>();
    if (width_ == kKeptWidth) {
      tile_load<6>(keys.rows, keys.apart * 2);
      tile_dot_bf16<T, 6, 4>();
      tile_load<7>(keys.rows + kWide, keys.apart * 2);
      tile_dot_bf16<T, 7, 5>();
      return;
    }
    const uint16_t* queries = queries_of(b.base);
    for (int64_t d = 0; d < width_; d += kWide, queries += kTileSize) {
      tile_load<6>(keys.rows + d, keys.apart * 2);
      tile_load<4>(queries, 64);
      tile_dot_bf16<T, 6, 4>();
    }
  }

  // Makes a block's weights. Each tile of scores is stored two tiles before it is needed.
  bool soften(Block& b) const {
    Weights w = b.weights;  // in registers
    w.start();
    keep_queries(b);
    const auto tile_at = [&](int64_t j) { return scores_ + j / kTile % kRing * kTile * kTile; };
    score<0>(b, b.begin);
    score<1>(b, b.begin + kTile);
    tile_store<0>(tile_at(b.begin), 64);
    tile_store<1>(tile_at(b.begin + kTile), 64);
    for (int64_t j = b.begin; j < b.end; j += kStep) {
      const bool is_last = j + kStep >= b.end;
      if (!is_last) score<0>(b, j + kStep);
      soften_tile(b, w, j, tile_at(j));
      if (!is_last) {
        tile_store<0>(tile_at(j + kStep), 64);
        score<1>(b, j + kStep + kTile);
      }
      soften_tile(b, w, j + kTile, tile_at(j + kTile));
      if (!is_last) tile_store<1>(tile_at(j + kStep + kTile), 64);
    }
    const int64_t lanes = (int64_t{1} << b.num_rows) - (int64_t{1} << b.first_row);
    const bool good = w.are_good(static_cast<__mmask16>(lanes));
    b.weights = w;
    return good;
  }

  RAMET_INLINE void soften_tile(const Block& b, Weights& w, int64_t j, float* scores) const {
    if (v_.args.cap > 0) bend(scores, {0, kTile * kTile}, v_.args.cap * Weights::kUnit);
    if (j < b.all_first || j + kTile > b.all_end) hide(b, j, scores);
    if (j <= b.last_first) w.look_at(scores, beginning_in(b, j));
    w.make(scores, weights_ + j * kTile);
  }

  // The queries whose first position is in the tile at j: it alone gives their references, whoever is beside
  // them and begins later.
  static __mmask16 beginning_in(const Block& b, int64_t j) {
    const __m512i after = _mm512_sub_epi32(b.first, _mm512_set1_epi32(static_cast<int32_t>(j)));
    return _mm512_cmplt_epu32_mask(after, _mm512_set1_epi32(kTile));
  }

  // Scores of what a query does not see become those of weight zero.
  static void hide(const Block& b, int64_t j, float* scores) {
    for (int64_t i = 0; i < kTile; ++i) {
      const __m512i position = _mm512_set1_epi32(static_cast<int32_t>(j + i));
      const __mmask16 is_seen =
          _mm512_mask_cmplt_epi32_mask(_mm512_cmpge_epi32_mask(position, b.first), position, b.ends);
      const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
      _mm512_store_ps(scores + i * kTile, _mm512_mask_load_ps(hidden, is_seen, scores + i * kTile));
    }
  }

  // With the largest score of all for the queries whose first ones were no measure of the others.
  void soften_again(Block& b) const {
    b.weights.forget_bad();
    keep_queries(b);
    for (int64_t j = b.begin; j < b.end; j += kTile) {
      score<0>(b, j);
      tile_store<0>(scores_, 64);
      if (v_.args.cap > 0) bend(scores_, {0, kTile * kTile}, v_.args.cap * Weights::kUnit);
      hide(b, j, scores_);
      b.weights.look_at_all(scores_);
    }
    if (!soften(b)) b.weights.spoil_bad();
  }

  // Weights times values, 64 dims at a time, to sums[dim][query].
  void sum(const Block& b, float* sums) const {
    int64_t d = 0;
    for (; d + 2 * kWide <= width_; d += 2 * kWide) sum_dims<4>(b, d, sums + d * kTile);
    for (; d < width_; d += kWide) sum_dims<2>(b, d, sums + d * kTile);
  }

  template <int N>  // tiles of 16 dims
  void sum_dims(const Block& b, int64_t d, float* sums) const {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    for (int64_t j = b.begin; j < b.end; j += kStep) {
      const uint16_t* values = values_ + j * width_ + d * kWide;
      tile_load<4>(weights_ + j * kTile, 64);
      add_products<0, 5>(values);
      add_products<1, 6>(values + kTileSize);
      if constexpr (N == 4) {
        add_products<2, 7>(values + 2 * kTileSize);
        add_products<3, 5>(values + 3 * kTileSize);
      }
    }
    tile_store<0>(sums, 64);
    tile_store<1>(sums + kTile * kTile, 64);
    if constexpr (N == 4) {
      tile_store<2>(sums + 2 * kTile * kTile, 64);
      tile_store<3>(sums + 3 * kTile * kTile, 64);
    }
  }
  template <int Sum, int A>
  static void add_products(const uint16_t* values) {
    tile_load<A>(values, 64);
    tile_dot_bf16<Sum, A, 4>();
  }

  // Where a block's first span puts its sums, and later ones are merged: [dim][query], largest, total.
  float* totals_of(int64_t base) const { return totals_ + base * (width_ + 2); }

  void finish(const Block& b, int64_t span) const {
    float* total = totals_of(b.base);
    const bool is_first = span == v_.task.first_span || ends_[b.base] - v_.args.window >= span * kSpan;
    float* sums = is_first ? total : sums_;
    sum(b, sums);
    store(sums + width_ * kTile, b.weights.largest());
    store(sums + (width_ + 1) * kTile, b.weights.total());
    keep_partials(b, span, sums);
    if (!is_first) merge_sums(total, sums);
  }

  // As merge_span does for one query.
  void merge_sums(float* into, const float* next) const {
    float* into_last = into + width_ * kTile;
    const float* next_last = next + width_ * kTile;
    const f32x16 m = load(into_last), n = load(next_last), largest = max(n, m);
    const f32x16 a = pow2_of(sub(m, largest)), b = pow2_of(sub(n, largest));
    store(into_last, largest);
    for (int64_t d = 0; d <= width_ + 1; ++d) {
      if (d != width_)
        store(into + d * kTile, fma(load(next + d * kTile), b, mul(load(into + d * kTile), a)));
    }
  }

  // Of rows whose spans are merged later.
  void keep_partials(const Block& b, int64_t span, const float* sums) const {
    const int64_t dims = padded(v_.args.head_dim);
    float* rows[kTile] = {};
    bool any = false;
    for (int64_t r = b.first_row; r < b.num_rows; ++r) {
      const int64_t first = v_.args.partial_of_row[rows_[b.base + r]];
      if (first < 0) continue;
      any = true;
      const int64_t at = (first + span) * v_.args.num_heads + heads_[b.base + r];
      const Partial partial{v_.args.partials + at * partial_floats(dims), dims};
      rows[r] = partial.p;
      partial.largest() = sums[width_ * kTile + r];
      partial.total() = sums[(width_ + 1) * kTile + r];
    }
    if (any) put_rows(sums, set(1.0f), rows, dims);
  }

  void write_out(int64_t base) const {
    float* rows[kTile] = {};
    bool any = false;
    for (int64_t r = 0; r < kTile && base + r < v_.num_queries; ++r) {
      if (v_.args.partial_of_row[rows_[base + r]] >= 0) continue;
      any = true;
      rows[r] = v_.args.out + (rows_[base + r] * v_.args.num_heads + heads_[base + r]) * v_.args.head_dim;
    }
    const float* sums = totals_of(base);
    if (any) put_rows(sums, div(set(1.0f), load(sums + (width_ + 1) * kTile)), rows, v_.args.head_dim);
  }

  // [dim][query] times a factor of each query, to rows of `num` floats, where there are any.
  static void put_rows(const float* sums, const f32x16& factor, float* const* rows, int64_t num) {
    for (int64_t d = 0; d < num; d += kTile) {
      f32x16 tile[kTile];
      for (int64_t i = 0; i < kTile; ++i) tile[i] = mul(load(sums + (d + i) * kTile), factor);
      transpose(tile);
      for (int64_t r = 0; r < kTile; ++r) {
        if (rows[r] != nullptr) store_some(rows[r] + d, tile[r], num - d);
      }
    }
  }

  struct Keys {  // of 16 positions
    const uint16_t* rows;
    int64_t apart;  // numbers from row to row
  };

  const TaskView& v_;
  const int64_t width_;                               // of a row of keys or values in whole tile rows
  int32_t *const ends_, *const rows_, *const heads_;  // of each query
  uint16_t *const keys_, *const values_, *const queries_, *const weights_;
  float *const scores_, *const sums_, *const totals_;
  Keys key_tiles_[kSpan / kTile];
  const Tiles tiles_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
