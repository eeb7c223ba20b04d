// Attention by matrix tiles, for keys and values in bfloat16 or as codes. 16 queries are a block, and each
// has a lane of every vector: scores stand as [position][query], weights and sums as [query][position or
// dim].
//
// Keys are tiles as they are stored. Weights are bfloat16, so they are made of scores as numbers of 16 bits
// (Weights); what a query's weights are relative to is known after its first scores of a span, and so each
// tile of scores becomes weights while the next one is scored.
#pragma once
#include "ops/attention_flow.h"

namespace ramet {
namespace RAMET_ISA {

class TileWalk {
public:
  TileWalk(const TaskView& view, Tiles& tiles, float* scratch)
      : TileWalk(view, tiles, reinterpret_cast<int32_t*>(scratch),
                 reinterpret_cast<uint16_t*>(scratch + TileQueries::num_ends(view))) {}

  void run() {
    queries_.load();
    for (int64_t s = 0; s < v_.task.num_spans; ++s) {
      const int64_t span = v_.task.first_span + s, begin = span * kSpan;
      const Queries queries = v_.seeing({0, v_.num_queries}, begin, begin + kSpan);
      if (queries.first == queries.last) continue;
      load_span(begin, {v_.seen(queries.first, begin).first, v_.seen(queries.last - 1, begin).end});
      if (flows()) {
        flow(begin, span, queries);
      } else {
        walk(begin, span, queries);
      }
    }
    for (int64_t base = 0; base < v_.num_queries; base += kTile) results_.write_out(base);
  }

private:
  static constexpr int64_t kRing = 4;  // tiles of scores

  TileWalk(const TaskView& view, Tiles& tiles, int32_t* ends, uint16_t* numbers)
      : v_(view),
        tiles_(tiles),
        width_(tile_width(view.args.head_dim)),
        queries_(view, ends, numbers + 2 * SpanRows::space(view)),
        found_(view, numbers, numbers + SpanRows::space(view)),
        laid_(numbers + 2 * SpanRows::space(view) + TileQueries::num_tiled(view)),
        weights_(laid_ + kSpan * width_),
        turned_(weights_ + kStep * kTile),
        scores_(reinterpret_cast<float*>(turned_ + (kSpan + kStep) * kTile)),
        results_(view, queries_, scores_ + kRing * kTile * kTile) {}

  bool flows() const { return width_ == TileFlow::kWidth && !v_.parts(); }

  void flow(int64_t begin, int64_t span, const Queries& queries) {
    static_assert(TileFlow::kSpace <= (kStep + kSpan + kStep) * kTile, "it is where weights are otherwise");
    int64_t first = v_.num_queries, last = -1;  // of the blocks with odd scores, and good ones between them
    TileFlow(v_, tiles_, queries_, results_, found_, laid_, weights_)
        .run(begin, span, queries, [&](int64_t base) {
          first = base < first ? base : first;
          last = base > last ? base : last;
        });
    for (int64_t base = first; base <= last; base += kTile) {
      Block b = queries_.block_at(base, begin, queries);
      if (!soften(b)) soften_again(b);
      finish(b, span);
    }
  }

  void walk(int64_t begin, int64_t span, const Queries& queries) {
    for (int64_t base = queries.first / kTile * kTile; base < queries.last; base += kTile) {
      Block b = queries_.block_at(base, begin, queries);
      if (!soften(b)) soften_again(b);
      finish(b, span);
    }
  }

  // Finds the keys and values of the span at `begin`, and lays out the values, if all blocks have the same.
  void load_span(int64_t begin, const Seen& seen) {
    for (int64_t j = step_floor(seen.first); j < seen.end && !v_.is_own(j); j += kStep) {
      found_.find(begin, seen, j);
      found_.find(begin, seen, j + kTile);
      load_values(j);
    }
  }

  // Values at 32 positions.
  void load_values(int64_t j) const {
    for (int64_t half = 0; half < kStep; half += kTile) {
      const Rows16& values = found_.values(j + half);
      lay_values(values.rows, values.apart, width_, laid_ + j * width_ + half * kTile);
    }
  }

  // Scores of a block against 16 positions, in tile T. Queries of 64 dims stay in their tiles for a whole
  // span.
  static constexpr int64_t kKeptWidth = 2 * kWide;

  bool keeps_queries() const { return width_ == kKeptWidth; }
  void keep_queries(const Block& b) const {
    if (!keeps_queries()) return;
    tiles_.load<4>(queries_.tiles_of(b.base), 64);
    tiles_.load<5>(queries_.tiles_of(b.base) + kTileSize, 64);
  }

  template <int T>
  void score(const Block& b, int64_t j) const {
    const Rows16& keys = found_.keys(j);
    tiles_.zero<T>();
    if (keeps_queries()) {
      tiles_.load<6>(keys.rows, keys.apart * 2);
      tiles_.dot_bf16<T, 6, 4>();
      tiles_.load<7>(keys.rows + kWide, keys.apart * 2);
      tiles_.dot_bf16<T, 7, 5>();
      return;
    }
    const uint16_t* queries = queries_.tiles_of(b.base);
    for (int64_t d = 0; d < width_; d += kWide, queries += kTileSize) {
      tiles_.load<6>(keys.rows + d, keys.apart * 2);
      tiles_.load<4>(queries, 64);
      tiles_.dot_bf16<T, 6, 4>();
    }
  }

  // Half of a step's scores; nothing yet where rows have pages of their own.
  template <int T>
  void score_step(const Block& b, int64_t j) {
    if (!v_.is_own(j)) score<T>(b, j + T * kTile);
  }
  template <int T>
  void store_scores(const Block& b, int64_t j, float* scores) {
    if (!v_.is_own(j)) return tiles_.store<T>(scores, 64);
    each_row(b, [&](int64_t first, int64_t last) {
      find_own(b, first, j);
      alignas(64) float own[kTile * kTile];
      score<2>(b, j);
      tiles_.store<2>(own, 64);
      const __mmask16 lanes = static_cast<__mmask16>((int64_t{1} << last) - (int64_t{1} << first));
      for (int64_t i = 0; i < kTile * kTile; i += kTile)
        _mm512_mask_store_ps(scores + i, lanes, _mm512_load_ps(own + i));
    });
  }

  // Calls work(first, last) for the lanes of a block that one row has.
  template <class Work>
  void each_row(const Block& b, const Work& work) const {
    for (int64_t first = b.first_row, last = first; first < b.num_rows; first = last) {
      while (last < b.num_rows && queries_.row_of(b.base + last) == queries_.row_of(b.base + first)) ++last;
      work(first, last);
    }
  }
  // 16 positions in the pages of a lane's row.
  void find_own(const Block& b, int64_t lane, int64_t j) {
    const int64_t query = b.base + lane;
    found_.find(v_.pages_of(query), b.span_begin, v_.seen(query, b.span_begin), j);
  }

  // Makes a block's weights. Each tile of scores is stored two tiles before it is needed.
  bool soften(Block& b) {
    Weights w = b.weights;  // in registers
    w.start();
    keep_queries(b);
    const auto tile_at = [&](int64_t j) { return scores_ + j / kTile % kRing * kTile * kTile; };
    score_step<0>(b, b.begin);
    score_step<1>(b, b.begin);
    store_scores<0>(b, b.begin, tile_at(b.begin));
    store_scores<1>(b, b.begin + kTile, tile_at(b.begin + kTile));
    for (int64_t j = b.begin; j < b.end; j += kStep) {
      const bool is_last = j + kStep >= b.end;
      if (!is_last) score_step<0>(b, j + kStep);
      soften_tile(b, w, j, tile_at(j), weights_);
      if (!is_last) {
        store_scores<0>(b, j + kStep, tile_at(j + kStep));
        score_step<1>(b, j + kStep);
      }
      if (j + kTile < b.seen_end) {
        soften_tile(b, w, j + kTile, tile_at(j + kTile), weights_ + kTile * kTile);
      } else {
        std::memset(weights_ + kTile * kTile, 0, kTile * kTile * sizeof(uint16_t));
      }
      if (!is_last) store_scores<1>(b, j + kStep + kTile, tile_at(j + kStep + kTile));
      for (int64_t i = 0; i < kTile; i += 4)
        turn_pairs(weights_, kWide, 2 * i, turned_ + j * kTile + i * kWide);
    }
    const bool good = w.are_good(b.lanes());
    b.weights = w;
    return good;
  }

  RAMET_INLINE void soften_tile(const Block& b, Weights& w, int64_t j, float* scores, uint16_t* to) const {
    b.prepare(j, v_.args.cap, scores, w);
    w.make(scores, to);
  }

  // With the largest score of all for the queries whose first ones were no measure of the others.
  void soften_again(Block& b) {
    b.weights.forget_bad();
    keep_queries(b);
    for (int64_t j = b.begin; j < b.end; j += kTile) {
      if (!v_.is_own(j)) score<0>(b, j);
      store_scores<0>(b, j, scores_);
      if (v_.args.cap > 0) bend(scores_, {0, kTile * kTile}, v_.args.cap * Weights::kUnit);
      b.hide(j, scores_);
      b.weights.look_at_all(scores_);
    }
    if (!soften(b)) b.weights.spoil_bad();
  }

  // Weights times values to sums[query][dim], 64 dims at a time.
  void sum(const Block& b, float* sums) {
    int64_t d = 0;
    for (; d + 2 * kWide <= width_; d += 2 * kWide) sum_dims<4>(b, d, sums + d);
    for (; d < width_; d += kWide) sum_dims<2>(b, d, sums + d);
  }

  // N tiles of 16 dims.
  template <int N>
  void sum_dims(const Block& b, int64_t d, float* sums) {
    tiles_.zero<0>();
    tiles_.zero<1>();
    tiles_.zero<2>();
    tiles_.zero<3>();
    for (int64_t j = b.begin; j < b.end; j += kStep) {
      if (v_.is_own(j)) {
        add_own<N>(b, j, d);
      } else {
        add_step<N>(turned_ + j * kTile, j, d);
      }
    }
    tiles_.store<0>(sums, width_ * 4);
    tiles_.store<1>(sums + kTile, width_ * 4);
    if constexpr (N == 4) {
      tiles_.store<2>(sums + 2 * kTile, width_ * 4);
      tiles_.store<3>(sums + 3 * kTile, width_ * 4);
    }
  }
  template <int N>
  void add_step(const uint16_t* weights, int64_t j, int64_t d) const {
    const uint16_t* values = laid_ + j * width_ + d * kStep;
    tiles_.load<4>(weights, 64);
    add_products<0, 5>(values);
    add_products<1, 6>(values + kTileSize);
    if constexpr (N == 4) {
      add_products<2, 7>(values + 2 * kTileSize);
      add_products<3, 5>(values + 3 * kTileSize);
    }
  }
  // Where each row has values of its own, other rows' weights are zeros: sums stay as they are by them.
  template <int N>
  void add_own(const Block& b, int64_t j, int64_t d) {
    each_row(b, [&](int64_t first, int64_t last) {
      find_own(b, first, j);
      find_own(b, first, j + kTile);
      load_values(j);
      alignas(64) uint16_t own[kTileSize] = {};
      for (int64_t i = first * kWide; i < last * kWide; i += kWide)
        _mm512_store_si512(own + i, _mm512_load_si512(turned_ + j * kTile + i));
      add_step<N>(own, j, d);
    });
  }
  template <int Sum, int B>
  void add_products(const uint16_t* values) const {
    tiles_.load<B>(values, 64);
    tiles_.dot_bf16<Sum, 4, B>();
  }

  void finish(const Block& b, int64_t span) {
    sum(b, results_.sums_of(b, span));
    results_.finish(b, span);
  }

  const TaskView& v_;
  Tiles& tiles_;
  const int64_t width_;  // of a row of keys or values in whole tile rows
  TileQueries queries_;
  SpanRows found_;
  uint16_t *const laid_, *const weights_, *const turned_;
  float* const scores_;
  TileResults results_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
