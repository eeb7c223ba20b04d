// Paged attention for the queries of one task and one KV head.
//
// For one query the arithmetic is fixed: key positions in blocks of 32 from absolute multiples of 32; inside
// a span of 256 positions an online softmax over its blocks; spans merged left to right. Which queries stand
// beside it, and whether one task walks all spans or each span has its own, changes nothing. A block's keys
// are transposed once ([dim][position]), so that 16 positions are scored at a time and no sum runs across
// lanes.
#include "ops/ops_isa.h"
#include "simd.h"

namespace ramet {
namespace RAMET_ISA {
namespace {

constexpr float kNone = -__builtin_inff();

// The result of some spans for one query: sums[padded dims] (values times weights), largest score, total of
// weights.
struct Partial {
  float* p;
  int64_t dims;  // padded

  float& largest() const { return p[dims]; }
  float& total() const { return p[dims + 1]; }
  void clear() const {
    for (int64_t d = 0; d < dims; d += 16) store(p + d, set(0.0f));
    largest() = kNone;
    total() = 0.0f;
  }
  void copy_from(const Partial& other) const {
    std::memcpy(p, other.p, static_cast<size_t>(dims + 2) * sizeof(float));
  }
};

float exp_of(float x) {
  float lanes[16];
  store(lanes, exp(set(x)));
  return lanes[0];
}

// into = into, then the next span.
void merge_span(const Partial& into, const Partial& next) {
  const float largest = into.largest() > next.largest() ? into.largest() : next.largest();
  const float a = exp_of(into.largest() - largest), b = exp_of(next.largest() - largest);
  for (int64_t d = 0; d < into.dims; d += 16) {
    store(into.p + d, fma(load(next.p + d), set(b), mul(load(into.p + d), set(a))));
  }
  into.total() = into.total() * a + next.total() * b;
  into.largest() = largest;
}

void write_out(const Partial& done, float* out, int64_t head_dim) {
  const f32x16 total = set(done.total());
  for (int64_t d = 0; d < head_dim; d += 16) store_some(out + d, div(load(done.p + d), total), head_dim - d);
}

f32x16 load_kv(const float* p, int64_t n) { return load_some(p, n); }
f32x16 load_kv(const uint16_t* p, int64_t n) { return load_bf16_some(p, n); }

class Walk {
public:
  Walk(const AttentionArgs& args, const AttentionTask& task, int64_t kv_head, float* scratch)
      : a_(args),
        task_(task),
        kv_head_(kv_head),
        group_(args.num_heads / args.num_kv_heads),
        num_queries_(group_ * task.num_rows),
        dims_(padded(args.head_dim)),
        keys_(scratch),
        values_(keys_ + kBlock * dims_),
        queries_(values_ + kBlock * dims_),
        scores_(queries_ + num_queries_ * dims_),
        spans_(scores_ + num_queries_ * kBlock),
        totals_(spans_ + num_queries_ * partial_floats(args.head_dim)) {}

  void run() {
    load_queries();
    for (int64_t s = 0; s < task_.num_spans; ++s) {
      const int64_t span = task_.first_span + s, begin = span * kSpan;
      const int64_t first = first_query_at(begin);
      for (int64_t i = first; i < num_queries_; ++i) partial(spans_, i).clear();
      const int64_t end = begin + kSpan < last_position() + 1 ? begin + kSpan : last_position() + 1;
      for (int64_t start = begin; start < end; start += kBlock) do_block(start);
      for (int64_t i = first; i < num_queries_; ++i) finish_span(i, span);
    }
    for (int64_t i = 0; i < num_queries_; ++i) {
      if (first_partial(i) < 0)
        write_out(partial(totals_, i), a_.out + (row(i) * a_.num_heads + head(i)) * a_.head_dim, a_.head_dim);
    }
  }

private:
  int64_t row(int64_t query) const { return a_.task_rows[task_.first_row + query / group_]; }
  int64_t position(int64_t query) const { return a_.positions[row(query)]; }
  int64_t last_position() const { return position(num_queries_ - 1); }
  int64_t head(int64_t query) const { return kv_head_ * group_ + query % group_; }
  int64_t first_partial(int64_t query) const { return a_.partial_of_row[row(query)]; }
  Partial partial(float* base, int64_t i) const { return {base + i * partial_floats(a_.head_dim), dims_}; }

  // Rows of a task rise in position, so the queries that see position `start` are the last ones.
  int64_t first_query_at(int64_t start) const {
    int64_t i = 0;
    while (position(i) < start) i += group_;
    return i;
  }
  int64_t num_seen(int64_t query, int64_t start) const {  // positions of the block at `start`
    const int64_t n = position(query) + 1 - start;
    return n < kBlock ? n : kBlock;
  }

  void load_queries() {
    const f32x16 scale = set(a_.scale);
    for (int64_t i = 0; i < num_queries_; ++i) {
      const float* q = a_.q + row(i) * a_.ldq + head(i) * a_.head_dim;
      for (int64_t d = 0; d < dims_; d += 16) {
        store(queries_ + i * dims_ + d, mul(load_some(q + d, a_.head_dim - d), scale));
      }
    }
  }

  void finish_span(int64_t i, int64_t span) {
    const Partial done = partial(spans_, i);
    if (first_partial(i) >= 0) {
      const int64_t at = (first_partial(i) + span) * a_.num_heads + head(i);
      partial(a_.partials, at).copy_from(done);
    } else if (span == 0) {
      partial(totals_, i).copy_from(done);
    } else {
      merge_span(partial(totals_, i), done);
    }
  }

  // Where the key of each of `num` positions from `start` on lies.
  void find_block(int64_t start, int64_t num, int64_t (&offsets)[kBlock]) const {
    const int32_t* page = a_.page_ids + task_.first_page + start / a_.page_size;
    int64_t within = start % a_.page_size;
    for (int64_t j = 0; j < num; ++j) {
      const int64_t slot = *page * a_.page_size + within;
      offsets[j] = (slot * a_.num_kv_heads + kv_head_) * a_.head_dim;
      if (++within == a_.page_size) {
        within = 0;
        ++page;
      }
    }
  }

  // Keys to keys_[dim][32 positions], values to values_[position][dim]; what is not seen is never read.
  template <class T>
  void load_block(int64_t start, int64_t num) {
    const auto *keys = static_cast<const T*>(a_.keys), *values = static_cast<const T*>(a_.values);
    int64_t at[kBlock];
    find_block(start, num, at);
    for (int64_t d = 0; d < a_.head_dim; d += 16) {
      const int64_t n = a_.head_dim - d;
      for (int64_t half = 0; half < kBlock; half += 16) {
        f32x16 tile[16];
        for (int64_t j = 0; j < 16; ++j) {
          tile[j] = half + j < num ? load_kv(keys + at[half + j] + d, n) : set(0.0f);
        }
        transpose(tile);
        for (int64_t j = 0; j < 16; ++j) store(keys_ + (d + j) * kBlock + half, tile[j]);
      }
      for (int64_t j = 0; j < num; ++j) store(values_ + j * dims_ + d, load_kv(values + at[j] + d, n));
    }
  }

  void do_block(int64_t start) {
    const int64_t first = first_query_at(start);
    const int64_t num = num_seen(num_queries_ - 1, start);
    a_.is_bf16 ? load_block<uint16_t>(start, num) : load_block<float>(start, num);
    for (int64_t i = first; i < num_queries_; i += kQueryTile) {
      const int64_t n = num_queries_ - i < kQueryTile ? num_queries_ - i : kQueryTile;
      by_tile(n, [&](auto tile) { score<decltype(tile)::value>(i); });
      for (int64_t j = i; j < i + n; ++j) soften(j, num_seen(j, start));
      const int64_t common = num_seen(i, start);
      by_tile(n, [&](auto tile) { add_values<decltype(tile)::value>(i, 0, common); });
      for (int64_t j = i + 1; j < i + n; ++j) {
        if (num_seen(j, start) > common) add_values<1>(j, common, num_seen(j, start));
      }
    }
  }

  template <int N>
  struct Int {
    static constexpr int value = N;
  };

  template <class Work>
  static void by_tile(int64_t n, Work work) {
    if constexpr (kQueryTile > 3) {
      if (n == 4) return work(Int<4>{});
      if (n == 3) return work(Int<3>{});
    }
    if constexpr (kQueryTile > 1) {
      if (n == 2) return work(Int<2>{});
    }
    work(Int<1>{});
  }

  // Scores of queries i to i + Q against the block: one chain over the dims for each.
  template <int Q>
  void score(int64_t i) {
    f32x16 sums[Q][2];
    for (int q = 0; q < Q; ++q) sums[q][0] = sums[q][1] = set(0.0f);
    const float* x = queries_ + i * dims_;
    for (int64_t d = 0; d < a_.head_dim; ++d) {
      const f32x16 low = load(keys_ + d * kBlock), high = load(keys_ + d * kBlock + 16);
      for (int q = 0; q < Q; ++q) {
        const f32x16 xd = set(x[q * dims_ + d]);
        sums[q][0] = fma(xd, low, sums[q][0]);
        sums[q][1] = fma(xd, high, sums[q][1]);
      }
    }
    for (int q = 0; q < Q; ++q) {
      store(scores_ + (i + q) * kBlock, sums[q][0]);
      store(scores_ + (i + q) * kBlock + 16, sums[q][1]);
    }
  }

  // Scores become weights; what was summed before shrinks where the largest score grew.
  void soften(int64_t i, int64_t num) {
    float* scores = scores_ + i * kBlock;
    for (int64_t j = num; j < kBlock; ++j) scores[j] = kNone;
    const Partial span = partial(spans_, i);
    const f32x16 low = load(scores), high = load(scores + 16);
    const float highest = reduce_max(max(low, high)), before = span.largest();
    const float largest = highest > before ? highest : before;
    const f32x16 shift = set(largest);
    const f32x16 low_weights = exp(sub(low, shift)), high_weights = exp(sub(high, shift));
    store(scores, low_weights);
    store(scores + 16, high_weights);
    float total = span.total();
    if (largest > before) {
      const f32x16 shrink = exp(set(before - largest));
      for (int64_t d = 0; d < dims_; d += 16) store(span.p + d, mul(load(span.p + d), shrink));
      float lanes[16];
      store(lanes, shrink);
      total *= lanes[0];
    }
    span.largest() = largest;
    span.total() = total + reduce_add(add(low_weights, high_weights));
  }

  template <int Q>
  void add_values(int64_t i, int64_t begin, int64_t end) {
    int64_t d = 0;
    for (; d + kDimTile * 16 <= dims_; d += kDimTile * 16) add_dims<Q, kDimTile>(i, d, begin, end);
    if constexpr (kDimTile > 1) {
      for (; d < dims_; d += 16) add_dims<Q, 1>(i, d, begin, end);
    }
  }

  // One chain over the positions for each dim.
  template <int Q, int D>
  void add_dims(int64_t i, int64_t d, int64_t begin, int64_t end) {
    f32x16 sums[Q][D];
    for (int q = 0; q < Q; ++q) {
      for (int c = 0; c < D; ++c) sums[q][c] = load(partial(spans_, i + q).p + d + 16 * c);
    }
    for (int64_t j = begin; j < end; ++j) {
      f32x16 values[D];
      for (int c = 0; c < D; ++c) values[c] = load(values_ + j * dims_ + d + 16 * c);
      for (int q = 0; q < Q; ++q) {
        const f32x16 weight = set(scores_[(i + q) * kBlock + j]);
        for (int c = 0; c < D; ++c) sums[q][c] = fma(weight, values[c], sums[q][c]);
      }
    }
    for (int q = 0; q < Q; ++q) {
      for (int c = 0; c < D; ++c) store(partial(spans_, i + q).p + d + 16 * c, sums[q][c]);
    }
  }

  const AttentionArgs& a_;
  const AttentionTask& task_;
  const int64_t kv_head_, group_, num_queries_, dims_;
  float *keys_, *values_, *queries_, *scores_, *spans_, *totals_;
};

}  // namespace

void attend(const AttentionArgs& args, const AttentionTask& task, int64_t kv_head, float* scratch) {
  Walk(args, task, kv_head, scratch).run();
}

void merge(const AttentionArgs& args, const SplitRow& row, int64_t head) {
  const auto partial = [&](int64_t span) {
    const int64_t at = (row.first_partial + span) * args.num_heads + head;
    return Partial{args.partials + at * partial_floats(args.head_dim), padded(args.head_dim)};
  };
  for (int64_t span = 1; span < row.num_spans; ++span) merge_span(partial(0), partial(span));
  write_out(partial(0), args.out + (row.row * args.num_heads + head) * args.head_dim, args.head_dim);
}

}  // namespace RAMET_ISA
}  // namespace ramet
