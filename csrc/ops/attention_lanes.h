// Spans of attention by vectors. A step's keys are transposed once ([dim][position]), so that 16 positions
// are scored at a time and no sum runs across lanes; its values meet a query's weights one by one. Each score
// is one chain over dims, each sum one chain over positions.
#pragma once
#include "ops/attention_task.h"

namespace ramet {
namespace RAMET_ISA {

class LaneSpans {
public:
  LaneSpans(const TaskView& view, float* scratch)
      : v_(view),
        dims_(padded(view.args.head_dim)),
        block_(scratch),
        queries_(block_ + kStep * dims_),
        scores_(queries_ + view.num_queries * dims_),
        sums_(scores_ + view.num_queries * kSpan) {
    const f32x16 scale = v_.q_scale();
    for (int64_t i = 0; i < v_.num_queries; ++i) {
      for (int64_t d = 0; d < dims_; d += 16) {
        store(queries_ + i * dims_ + d, mul(load_some(v_.q(i) + d, v_.args.head_dim - d), scale));
      }
    }
  }

  // The span at `begin`, for queries that see any of it; finish(i, partial) takes each one's result.
  template <class Finish>
  void run(int64_t begin, const Queries& queries, const Finish& finish) {
    const int64_t from = step_floor(v_.seen(queries.first, begin).first);
    const int64_t num = v_.seen(queries.last - 1, begin).end;
    each_step(begin, queries, from, num, [&](int64_t pages, int64_t j, int64_t end, const Queries& some) {
      load_keys(pages, begin + j, end - j);
      each_tile(some, [&](auto tile, int64_t i) { score<decltype(tile)::value>(i, j); });
    });
    for (int64_t i = queries.first; i < queries.last; ++i) {
      float* scores = scores_ + i * kSpan;
      const Seen seen = v_.seen(i, begin);
      if (v_.args.cap > 0) bend(scores, seen, v_.args.cap);
      const float largest = largest_of(scores, seen);
      const float total = soften(scores, seen, step_floor(seen.first), step_ceil(seen.end), largest,
                                 [&](int64_t j, const f32x16& a, const f32x16& b) {
                                   store(scores + j, a);
                                   store(scores + j + 16, b);
                                 });
      const Partial sums = partial(i);
      for (int64_t d = 0; d < dims_; d += 16) store(sums.p + d, set(0.0f));
      sums.largest() = largest;
      sums.total() = total;
    }
    each_step(begin, queries, from, num, [&](int64_t pages, int64_t j, int64_t end, const Queries& some) {
      load_values(pages, begin + j, end - j);
      each_tile(some, [&](auto tile, int64_t i) { add_step<decltype(tile)::value>(i, begin, j); });
    });
    for (int64_t i = queries.first; i < queries.last; ++i) finish(i, partial(i));
  }

private:
  template <int N>
  struct Int {
    static constexpr int value = N;
  };

  Partial partial(int64_t i) const { return {sums_ + i * partial_floats(dims_), dims_}; }
  static int64_t step_of(int64_t n) { return n < kStep ? n : kStep; }

  // Calls work(page table, step of the span, end of what is seen, queries that see any of the step): all that
  // share its pages, or a row.
  template <class Work>
  void each_step(int64_t begin, const Queries& queries, int64_t from, int64_t end, const Work& work) const {
    for (int64_t j = from; j < end; j += kStep) {
      const Queries some = v_.seeing(queries, begin + j, begin + j + kStep);
      if (!v_.is_own(j)) {
        work(v_.task.first_page, j, end, some);
        continue;
      }
      for (int64_t i = some.first; i < some.last; i += v_.group)
        work(v_.pages_of(i), j, v_.seen(i, begin).end, {i, i + v_.group});
    }
  }

  template <class Work>
  void each_tile(const Queries& queries, const Work& work) const {
    int64_t i = queries.first;
    for (; i + kQueryTile <= queries.last; i += kQueryTile) work(Int<kQueryTile>{}, i);
    if constexpr (kQueryTile > 2) {
      for (; i + 2 <= queries.last; i += 2) work(Int<2>{}, i);
    }
    if constexpr (kQueryTile > 1) {
      for (; i < queries.last; ++i) work(Int<1>{}, i);
    }
  }

  // A step's values for Q queries: positions that only some of them see before and after those that all see.
  template <int Q>
  void add_step(int64_t i, int64_t begin, int64_t j) {
    const auto seen_of = [&](int64_t q) -> Seen {
      const Seen seen = v_.seen(q, begin);
      return {seen.first > j ? seen.first - j : 0, step_of(seen.end - j)};
    };
    const Seen all{seen_of(i + Q - 1).first, seen_of(i).end};
    if (all.first == 0 && all.end == kStep) return add_values<Q>(i, j, 0, kStep);
    for (int64_t q = i; q + 1 < i + Q; ++q) {
      const Seen seen = seen_of(q);
      add_values<1>(q, j, seen.first, all.first < seen.end ? all.first : seen.end);
    }
    if (all.first < all.end) add_values<Q>(i, j, all.first, all.end);
    const int64_t after = all.first > all.end ? all.first : all.end;
    for (int64_t q = i + 1; q < i + Q; ++q) add_values<1>(q, j, after, seen_of(q).end);
  }

  // Calls put(j, d, row) for 16 dims of each of `num` positions; what is not seen is never read.
  template <class Put>
  void each_row(const void* stored, const int64_t* at, int64_t num, int64_t d, const Put& put) const {
    const int64_t n = v_.args.head_dim - d;
    switch (v_.args.format) {
      case KVFormat::f32:
        for (int64_t j = 0; j < num; ++j) put(j, load_some(static_cast<const float*>(stored) + at[j] + d, n));
        break;
      case KVFormat::bf16:
        for (int64_t j = 0; j < num; ++j)
          put(j, load_bf16_some(static_cast<const uint16_t*>(stored) + at[j] + d, n));
        break;
      case KVFormat::int8:
        for (int64_t j = 0; j < num; ++j) {
          const f32x16 codes = load_int8_some(static_cast<const int8_t*>(stored) + at[j] + d, n);
          put(j, mul(codes, set(v_.code_scale(stored, at[j]))));
        }
        break;
    }
  }

  void load_keys(int64_t pages, int64_t start, int64_t num) {  // to block_[dim][32 positions]
    int64_t at[kStep];
    num = step_of(num);
    v_.find(pages, start, num, at);
    for (int64_t d = 0; d < dims_; d += 16) {
      for (int64_t half = 0; half < num; half += 16) {
        f32x16 tile[16];
        const int64_t n = num - half < 16 ? num - half : 16;
        for (int64_t j = n; j < 16; ++j) tile[j] = set(0.0f);
        each_row(v_.args.keys, at + half, n, d, [&](int64_t j, const f32x16& row) { tile[j] = row; });
        transpose(tile);
        for (int64_t j = 0; j < 16; ++j) store(block_ + (d + j) * kStep + half, tile[j]);
      }
    }
  }

  void load_values(int64_t pages, int64_t start, int64_t num) {  // to block_[position][dim]
    int64_t at[kStep];
    num = step_of(num);
    v_.find(pages, start, num, at);
    for (int64_t d = 0; d < dims_; d += 16) {
      each_row(v_.args.values, at, num, d,
               [&](int64_t j, const f32x16& row) { store(block_ + j * dims_ + d, row); });
    }
  }

  template <int Q>
  void score(int64_t i, int64_t j) {
    f32x16 sums[Q][2];
    for (int q = 0; q < Q; ++q) sums[q][0] = sums[q][1] = set(0.0f);
    const float* x = queries_ + i * dims_;
    for (int64_t d = 0; d < v_.args.head_dim; ++d) {
      const f32x16 low = load(block_ + d * kStep), high = load(block_ + d * kStep + 16);
      for (int q = 0; q < Q; ++q) {
        const f32x16 xd = set(x[q * dims_ + d]);
        sums[q][0] = fma(xd, low, sums[q][0]);
        sums[q][1] = fma(xd, high, sums[q][1]);
      }
    }
    for (int q = 0; q < Q; ++q) {
      store(scores_ + (i + q) * kSpan + j, sums[q][0]);
      store(scores_ + (i + q) * kSpan + j + 16, sums[q][1]);
    }
  }

  template <int Q>
  void add_values(int64_t i, int64_t j, int64_t begin, int64_t end) {
    int64_t d = 0;
    for (; d + kDimTile * 16 <= dims_; d += kDimTile * 16) add_dims<Q, kDimTile>(i, j, d, begin, end);
    if constexpr (kDimTile > 1) {
      for (; d < dims_; d += 16) add_dims<Q, 1>(i, j, d, begin, end);
    }
  }

  template <int Q, int D>
  void add_dims(int64_t i, int64_t j, int64_t d, int64_t begin, int64_t end) {
    f32x16 sums[Q][D];
    for (int q = 0; q < Q; ++q) {
      for (int c = 0; c < D; ++c) sums[q][c] = load(partial(i + q).p + d + 16 * c);
    }
    const float* weights = scores_ + i * kSpan + j;
    for (int64_t p = begin; p < end; ++p) {
      f32x16 values[D];
      for (int c = 0; c < D; ++c) values[c] = load(block_ + p * dims_ + d + 16 * c);
      for (int q = 0; q < Q; ++q) {
        const f32x16 weight = set(weights[q * kSpan + p]);
        for (int c = 0; c < D; ++c) sums[q][c] = fma(weight, values[c], sums[q][c]);
      }
    }
    for (int q = 0; q < Q; ++q) {
      for (int c = 0; c < D; ++c) store(partial(i + q).p + d + 16 * c, sums[q][c]);
    }
  }

  const TaskView& v_;
  const int64_t dims_;
  float *block_, *queries_, *scores_, *sums_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
