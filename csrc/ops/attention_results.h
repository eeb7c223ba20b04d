// What blocks of queries have of spans: merged as a task walks on, or kept for a merge by row.
#pragma once
#include "ops/attention_blocks.h"

namespace ramet {
namespace RAMET_ISA {

class TileResults {
public:
  // Of one span or several: sums[query][dim], in the order of lay_values.
  struct Result {
    float *sums, *largest, *total;
  };

  TileResults(const TaskView& view, const TileQueries& queries, float* space)
      : v_(view), width_(tile_width(view.args.head_dim)), queries_(queries), next_(space) {}

  // Where the sums of a block in a span go.
  float* sums_of(const Block& b, int64_t span) const { return place_of(b, span).sums; }

  // Once they are there.
  void finish(const Block& b, int64_t span) const {
    const Result result = place_of(b, span);
    store(result.largest, b.weights.largest());
    store(result.total, b.weights.total());
    keep_partials(b, span, result);
    if (!is_first(b, span)) merge(b, total_of(b.base), result);
  }

  void write_out(int64_t base) const {
    const int64_t dim = v_.args.head_dim;
    const Result result = total_of(base);
    alignas(64) float factors[kTile];
    store(factors, div(set(1.0f), load(result.total)));
    for (int64_t r = 0; r < kTile && base + r < v_.num_queries; ++r) {
      const int64_t row = queries_.row_of(base + r), head = queries_.head_of(base + r);
      if (v_.args.partial_of_row[row] >= 0) continue;
      put_row(result.sums + r * width_, set(factors[r]), v_.args.out + (row * v_.args.num_heads + head) * dim,
              dim);
    }
  }

private:
  Result result_at(float* sums) const {
    float* last = sums + kTile * width_;
    return {sums, last, last + kTile};
  }
  // Where its first span puts it, and later ones are merged.
  Result total_of(int64_t base) const { return result_at(next_ + (base / kTile + 1) * kTile * (width_ + 2)); }
  bool is_first(const Block& b, int64_t span) const {
    return span == v_.task.first_span || queries_.end_of(b.base) - v_.args.window >= span * kSpan;
  }
  Result place_of(const Block& b, int64_t span) const {
    return is_first(b, span) ? total_of(b.base) : result_at(next_);
  }

  // As merge_span does for one query.
  void merge(const Block& b, const Result& into, const Result& next) const {
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
      const int64_t first = v_.args.partial_of_row[queries_.row_of(b.base + r)];
      if (first < 0) continue;
      const int64_t at = (first + span) * v_.args.num_heads + queries_.head_of(b.base + r);
      const Partial partial{v_.args.partials + at * partial_floats(dims), dims};
      put_row(result.sums + r * width_, set(1.0f), partial.p, dims);
      partial.largest() = result.largest[r];
      partial.total() = result.total[r];
    }
  }

  // A query's sums times a factor, in order.
  static void put_row(const float* sums, const f32x16& factor, float* to, int64_t num) {
    for (int64_t d = 0; d < num; d += kWide) {
      const Sums32 x = in_order(load(sums + d), load(sums + d + 16));
      store_some(to + d, as_written(mul(x.first, factor)), num - d);
      if (num - d > 16) store_some(to + d + 16, as_written(mul(x.second, factor)), num - d - 16);
    }
  }

  const TaskView& v_;
  const int64_t width_;
  const TileQueries& queries_;
  float* const next_;  // a result that is merged at once, and then each block's
};

}  // namespace RAMET_ISA
}  // namespace ramet
