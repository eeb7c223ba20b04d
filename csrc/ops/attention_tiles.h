// Attention by matrix tiles, for keys and values in bfloat16 or as codes. 16 queries are a block, and each
// has a lane of every vector: scores stand as [position][query], weights and sums as [query][position or
// dim].
//
// Keys are tiles as they are stored. Weights are bfloat16, so they are made of scores as numbers of 16 bits
// (Weights); what a query's weights are relative to is known after its first scores of a span, and so each
// tile of scores becomes weights while the next one is scored.
#pragma once
#include "ops/attention_rows.h"
#include "ops/attention_weights.h"

namespace ramet {
namespace RAMET_ISA {

class TileWalk {
public:
  TileWalk(const TaskView& view, float* scratch)
      : v_(view),
        width_(tile_width(view.args.head_dim)),
        ends_(reinterpret_cast<int32_t*>(scratch)),
        rows_(ends_ + padded(view.num_queries)),
        heads_(rows_ + padded(view.num_queries)),
        found_(view, copies_of(view, heads_), copies_of(view, heads_) + SpanRows::space(view)),
        laid_(copies_of(view, heads_) + 2 * SpanRows::space(view)),
        queries_(laid_ + kSpan * width_),
        weights_(queries_ + view.num_kv_heads * padded(view.num_queries) * width_),
        turned_(weights_ + kStep * kTile),
        scores_(reinterpret_cast<float*>(turned_ + (kSpan + kStep) * kTile)),
        sums_(scores_ + kRing * kTile * kTile),
        totals_(sums_ + 2 * kTile * width_ + 2 * kTile) {}

  // False, and to be done again, where a score of heads that stand together is odd.
  bool run() {
    find_queries();
    for (int64_t base = 0; base < v_.num_queries; base += kTile) load_queries(base);
    for (int64_t s = 0; s < v_.task.num_spans; ++s) {
      const int64_t span = v_.task.first_span + s, begin = span * kSpan;
      const Queries queries = v_.seeing({0, v_.num_queries}, begin, begin + kSpan);
      if (queries.first == queries.last) continue;
      load_span(begin, {v_.seen(queries.first, begin).first, v_.seen(queries.last - 1, begin).end});
      for (int64_t base = queries.first / kTile * kTile; base < queries.last; base += kTile) {
        Block b = block_at(base, begin, queries);
        if (!soften(b)) {
          if (is_together()) return false;
          soften_again(b);
        }
        finish(b, span);
      }
    }
    for (int64_t base = 0; base < v_.num_queries; base += kTile) write_out(base);
    return true;
  }

private:
  static constexpr int64_t kRing = 4;  // tiles of scores

  // Up to 16 queries in a span.
  struct Block {
    int64_t base, first_row, num_rows;  // queries base + first_row to base + num_rows
    int64_t begin, end;                 // of the span's positions that any of them sees, in whole steps
    int64_t seen_end;                   // of the positions themselves
    int64_t all_first, all_end;         // what all lanes see
    int64_t last_first;                 // where the last query begins to see
    __m512i first, ends;                // what each lane sees
    Weights weights;
  };

  // Several KV heads: one row's queries are one block, and meet each head's keys in lanes of their own.
  bool is_together() const { return v_.num_kv_heads > 1; }
  static uint16_t* copies_of(const TaskView& view, int32_t* heads) {
    return reinterpret_cast<uint16_t*>(heads + padded(view.num_queries));
  }
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
    b.seen_end = last[b.num_rows - 1];
    b.end = step_ceil(b.seen_end);
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
        heads_[i] = static_cast<int32_t>(v_.kv_head * v_.per_kv_head + head);
        ends_[i] = v_.args.positions[rows_[i]] + 1;
      }
    }
    for (; i % kTile != 0; ++i) ends_[i] = ends_[i - 1];
  }

  const float* query(int64_t i) const {
    return v_.args.q + rows_[i] * v_.args.ldq + heads_[i] * v_.args.head_dim;
  }

  // To queries_[16 queries][32 dims], each a tile of pairs of dims; for heads that stand together once for
  // each, where other heads' queries are zero.
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
    for (int64_t d = 0; d < width_; d += 8) turn_pairs(rows[0], kMaxWidth, d, to + d * kTile);
    if (!is_together()) return;
    for (int64_t k = v_.num_kv_heads; k-- > 0;) {  // the first is where all of them are, so it comes last
      const auto own = static_cast<__mmask16>(((1 << v_.per_kv_head) - 1) << k * v_.per_kv_head);
      for (int64_t i = 0; i < kTile * width_; i += kWide)
        _mm512_store_si512(to + k * kTile * width_ + i, _mm512_maskz_loadu_epi32(own, to + i));
    }
  }

  // Finds the keys and values of the span at `begin`, and lays out the values, if all blocks have the same.
  void load_span(int64_t begin, const Seen& seen) {
    for (int64_t j = step_floor(seen.first); j < seen.end; j += kStep) {
      found_.find(begin, seen, j);
      found_.find(begin, seen, j + kTile);
      if (!is_together()) load_values(0, j);
    }
  }

  // A head's values at 32 positions.
  void load_values(int64_t k, int64_t j) const {
    for (int64_t half = 0; half < kStep; half += kTile) {
      const Rows16& values = found_.values(j + half);
      lay_values(values.rows + k * width_, values.apart, width_, laid_ + j * width_ + half * kTile);
    }
  }

  // Scores of a block against 16 positions, in tile T. Queries of 64 dims stay in their tiles for a whole
  // span.
  static constexpr int64_t kKeptWidth = 2 * kWide;

  bool keeps_queries() const { return width_ == kKeptWidth && !is_together(); }
  void keep_queries(const Block& b) const {
    if (!keeps_queries()) return;
    tile_load<4>(queries_of(b.base), 64);
    tile_load<5>(queries_of(b.base) + kTileSize, 64);
  }

  template <int T>
  void score(const Block& b, int64_t j) const {
    const Rows16& keys = found_.keys(j);
    tile_zero<T>();
    if (keeps_queries()) {
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

  // Scores of heads that stand together: two tiles side by side, as each product waits for the one before.
  void score_together(int64_t j) const {
    const Rows16 &first = found_.keys(j), &second = found_.keys(j + kTile);
    const uint16_t* queries = queries_;
    tile_zero<0>();
    tile_zero<1>();
    for (int64_t d = 0; d < v_.num_kv_heads * width_; d += kWide, queries += kTileSize) {
      tile_load<4>(queries, 64);
      tile_load<6>(first.rows + d, first.apart * 2);
      tile_dot_bf16<0, 6, 4>();
      tile_load<7>(second.rows + d, second.apart * 2);
      tile_dot_bf16<1, 7, 4>();
    }
  }

  // Half of a step's scores; for heads that stand together first all, then nothing.
  template <int T>
  void score_step(const Block& b, int64_t j) const {
    if (!is_together()) return score<T>(b, j + T * kTile);
    if (T == 0) score_together(j);
  }

  // Makes a block's weights. Each tile of scores is stored two tiles before it is needed.
  bool soften(Block& b) const {
    Weights w = b.weights;  // in registers
    w.start();
    keep_queries(b);
    const int64_t num_turned = is_together() ? b.num_rows : kTile;  // zeros of who begins later count
    const auto tile_at = [&](int64_t j) { return scores_ + j / kTile % kRing * kTile * kTile; };
    score_step<0>(b, b.begin);
    score_step<1>(b, b.begin);
    tile_store<0>(tile_at(b.begin), 64);
    tile_store<1>(tile_at(b.begin + kTile), 64);
    for (int64_t j = b.begin; j < b.end; j += kStep) {
      const bool is_last = j + kStep >= b.end;
      if (!is_last) score_step<0>(b, j + kStep);
      soften_tile(b, w, j, tile_at(j), weights_);
      if (!is_last) {
        tile_store<0>(tile_at(j + kStep), 64);
        score_step<1>(b, j + kStep);
      }
      if (j + kTile < b.seen_end) {
        soften_tile(b, w, j + kTile, tile_at(j + kTile), weights_ + kTile * kTile);
      } else {
        std::memset(weights_ + kTile * kTile, 0, kTile * kTile * sizeof(uint16_t));
      }
      if (!is_last) tile_store<1>(tile_at(j + kStep + kTile), 64);
      for (int64_t i = 0; i < num_turned; i += 4)
        turn_pairs(weights_, kWide, 2 * i, turned_ + j * kTile + i * kWide);
    }
    const int64_t lanes = (int64_t{1} << b.num_rows) - (int64_t{1} << b.first_row);
    const bool good = w.are_good(static_cast<__mmask16>(lanes));
    b.weights = w;
    return good;
  }

  RAMET_INLINE void soften_tile(const Block& b, Weights& w, int64_t j, float* scores, uint16_t* to) const {
    if (v_.args.cap > 0) bend(scores, {0, kTile * kTile}, v_.args.cap * Weights::kUnit);
    if (j < b.all_first || j + kTile > b.all_end) hide(b, j, scores);
    if (j <= b.last_first) w.look_at(scores, beginning_in(b, j));
    w.make(scores, to);
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

  // Weights times values to sums[query][dim], 64 dims at a time. Each head that stands together with others
  // writes 16 rows of which the first are its own, and later heads the others.
  void sum(const Block& b, float* sums) const {
    for (int64_t k = 0; k < v_.num_kv_heads; ++k) {
      const int64_t first = k * v_.per_kv_head;
      if (is_together()) load_values(k, b.begin);
      int64_t d = 0;
      for (; d + 2 * kWide <= width_; d += 2 * kWide) sum_dims<4>(b, k, d, sums + first * width_ + d);
      for (; d < width_; d += kWide) sum_dims<2>(b, k, d, sums + first * width_ + d);
    }
  }

  // N tiles of 16 dims. Values that are not laid out yet are, a step ahead of their products.
  template <int N>
  void sum_dims(const Block& b, int64_t k, int64_t d, float* sums) const {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    for (int64_t j = b.begin; j < b.end; j += kStep) {
      const uint16_t* values = laid_ + j * width_ + d * kStep;
      if (is_together() && d == 0 && j + kStep < b.end) load_values(k, j + kStep);
      tile_load<4>(turned_ + j * kTile + k * v_.per_kv_head * kWide, 64);
      add_products<0, 5>(values);
      add_products<1, 6>(values + kTileSize);
      if constexpr (N == 4) {
        add_products<2, 7>(values + 2 * kTileSize);
        add_products<3, 5>(values + 3 * kTileSize);
      }
    }
    tile_store<0>(sums, width_ * 4);
    tile_store<1>(sums + kTile, width_ * 4);
    if constexpr (N == 4) {
      tile_store<2>(sums + 2 * kTile, width_ * 4);
      tile_store<3>(sums + 3 * kTile, width_ * 4);
    }
  }
  template <int Sum, int B>
  static void add_products(const uint16_t* values) {
    tile_load<B>(values, 64);
    tile_dot_bf16<Sum, 4, B>();
  }

  // What a block has of one span or several: sums[query][dim], in the order of lay_values.
  struct Result {
    float *sums, *largest, *total;
  };
  Result result_at(float* sums) const {
    float* last = sums + 2 * kTile * width_;
    return {sums, last, last + kTile};
  }
  // Where its first span puts it, and later ones are merged.
  Result total_of(int64_t base) const { return result_at(totals_ + base / kTile * 2 * kTile * (width_ + 1)); }

  void finish(const Block& b, int64_t span) const {
    const bool is_first = span == v_.task.first_span || ends_[b.base] - v_.args.window >= span * kSpan;
    const Result total = total_of(b.base), result = is_first ? total : result_at(sums_);
    sum(b, result.sums);
    store(result.largest, b.weights.largest());
    store(result.total, b.weights.total());
    keep_partials(b, span, result);
    if (!is_first) merge_results(b, total, result);
  }

  // As merge_span does for one query.
  void merge_results(const Block& b, const Result& into, const Result& next) const {
    const f32x16 m = load(into.largest), n = load(next.largest), largest = max(n, m);
    const f32x16 a = pow2_of(sub(m, largest)), c = pow2_of(sub(n, largest));
    alignas(64) float of_into[kTile], of_next[kTile];
    store(of_into, a);
    store(of_next, c);
    store(into.largest, largest);
    store(into.total, fma(load(next.total), c, mul(load(into.total), a)));
    for (int64_t r = 0; r < b.num_rows; ++r) {
      const f32x16 x = set(of_into[r]), y = set(of_next[r]);
      for (int64_t i = r * width_; i < (r + 1) * width_; i += 16)
        store(into.sums + i, fma(load(next.sums + i), y, mul(load(into.sums + i), x)));
    }
  }

  // Of rows whose spans are merged later.
  void keep_partials(const Block& b, int64_t span, const Result& result) const {
    const int64_t dims = padded(v_.args.head_dim);
    for (int64_t r = b.first_row; r < b.num_rows; ++r) {
      const int64_t first = v_.args.partial_of_row[rows_[b.base + r]];
      if (first < 0) continue;
      const int64_t at = (first + span) * v_.args.num_heads + heads_[b.base + r];
      const Partial partial{v_.args.partials + at * partial_floats(dims), dims};
      put_row(result.sums + r * width_, set(1.0f), partial.p, dims);
      partial.largest() = result.largest[r];
      partial.total() = result.total[r];
    }
  }

  void write_out(int64_t base) const {
    const int64_t dim = v_.args.head_dim;
    const Result result = total_of(base);
    alignas(64) float factors[kTile];
    store(factors, div(set(1.0f), load(result.total)));
    for (int64_t r = 0; r < kTile && base + r < v_.num_queries; ++r) {
      const int64_t row = rows_[base + r];
      if (v_.args.partial_of_row[row] >= 0) continue;
      put_row(result.sums + r * width_, set(factors[r]),
              v_.args.out + (row * v_.args.num_heads + heads_[base + r]) * dim, dim);
    }
  }

  // A query's sums times a factor, in order.
  static void put_row(const float* sums, const f32x16& factor, float* to, int64_t num) {
    for (int64_t d = 0; d < num; d += kWide) {
      const Sums32 x = in_order(load(sums + d), load(sums + d + 16));
      store_some(to + d, mul(x.first, factor), num - d);
      if (num - d > 16) store_some(to + d + 16, mul(x.second, factor), num - d - 16);
    }
  }

  const TaskView& v_;
  const int64_t width_;                               // of a row of keys or values in whole tile rows
  int32_t *const ends_, *const rows_, *const heads_;  // of each query
  SpanRows found_;
  uint16_t *const laid_, *const queries_, *const weights_, *const turned_;
  float *const scores_, *const sums_, *const totals_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
