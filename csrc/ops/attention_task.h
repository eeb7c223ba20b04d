// What one task of attention works on, whichever way it computes: its queries, where keys lie, partial
// results of spans, and the softmax in a span.
//
// For one query the arithmetic is fixed: spans of 256 positions from absolute multiples of 256, each reduced
// alone (its largest score first, then weights, then sums over positions in order), and merged left to right.
// Scores are logarithms to base 2: the scale of a query has log2(e) in it.
#pragma once
#include "ops/ops_isa.h"
#include "simd.h"

namespace ramet {
namespace RAMET_ISA {

constexpr int64_t kStep = 32;  // positions whose keys or values are laid out together
static_assert(kShareable % kStep == 0, "one page table has all of a step");

// The result of some spans for one query: sums (values times weights), largest score, total of weights.
struct Partial {
  float* p;
  int64_t dims;  // padded to whole vectors

  float& largest() const { return p[partial_floats(dims) - 16]; }
  float& total() const { return p[partial_floats(dims) - 15]; }
  void copy_from(const Partial& other) const {
    std::memcpy(p, other.p, static_cast<size_t>(partial_floats(dims) - 14) * sizeof(float));
  }
};

// 2^x for x <= 0, within 2e-7 of itself; 2^-126 below that: n = round(x), a polynomial of degree 5 for
// 2^(x - n), and n is added to the exponent. NaN stays NaN.
static inline f32x16 pow2_of(const f32x16& x) {
  const f32x16 magic = set(12582912.0f);  // 1.5 * 2^23: a sum with it has no room for a fraction
  const f32x16 above = max(set(-126.0f), x), shifted = add(above, magic);
  const f32x16 r = sub(above, sub(shifted, magic));
  f32x16 p = set(0.001327647129073739f);
  p = fma(p, r, set(0.009675541892647743f));
  p = fma(p, r, set(0.05550713092088699f));
  p = fma(p, r, set(0.24022120237350464f));
  p = fma(p, r, set(0.6931469440460205f));
  p = fma(p, r, set(1.0f));
  return add_exponent(p, shifted);
}

// into = into, then the next span.
static inline void merge_span(const Partial& into, const Partial& next) {
  const float largest = into.largest() > next.largest() ? into.largest() : next.largest();
  const f32x16 a = pow2_of(set(into.largest() - largest)), b = pow2_of(set(next.largest() - largest));
  for (int64_t d = 0; d < into.dims; d += 16) {
    store(into.p + d, fma(load(next.p + d), b, mul(load(into.p + d), a)));
  }
  float lanes[16];
  store(lanes, fma(set(next.total()), b, mul(set(into.total()), a)));
  into.total() = lanes[0];
  into.largest() = largest;
}

// One NaN, and one zero: a sum of what is too small may be -0, and stays so unless another zero is added, for
// a position that a row in company does not see.
static inline f32x16 as_written(const f32x16& x) { return one_nan(add(x, set(0.0f))); }

static inline void write_out(const Partial& done, float* out, int64_t head_dim) {
  const f32x16 factor = div(set(1.0f), set(done.total()));
  for (int64_t d = 0; d < head_dim; d += 16)
    store_some(out + d, as_written(mul(load(done.p + d), factor)), head_dim - d);
}

static inline f32x16 first_lanes(const f32x16& x, int64_t n) {  // of 16; the others become zero
  if (n >= 16) return x;
  float lanes[16];
  store(lanes, x);
  return load_some(lanes, n > 0 ? n : 0);
}
static inline f32x16 last_lanes(const f32x16& x, int64_t n) {  // likewise, 0 < n <= 16
  float lanes[16];
  store(lanes, x);
  for (int64_t i = 0; i < 16 - n; ++i) lanes[i] = 0;
  return load(lanes);
}

static inline int64_t step_floor(int64_t n) { return n / kStep * kStep; }
static inline int64_t step_ceil(int64_t n) { return (n + kStep - 1) / kStep * kStep; }

// Positions of a span, from `first` to before `end`.
struct Seen {
  int64_t first, end;
};

// Scores over a cap become what cap * tanh(score / cap) is to base 2. Those of a step are there together.
static inline void bend(float* scores, const Seen& seen, float cap) {
  const f32x16 unit = set(cap * 1.44269504f);
  for (int64_t j = seen.first / 16 * 16; j < seen.end; j += 16)
    store(scores + j, mul(tanh(load(scores + j)), unit));
}

// Of the seen scores of a span. Others in the same 16 are there to be overwritten.
static inline float largest_of(float* scores, const Seen& seen) {
  const int64_t begin = seen.first / 16 * 16;
  for (int64_t j = begin; j < seen.first; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = seen.end; j % 16 != 0; ++j) scores[j] = -__builtin_inff();
  f32x16 highest = load(scores + begin), other = highest;  // two chains, for a long latency
  int64_t j = begin + 16;
  for (; j + 16 < seen.end; j += 32) {
    highest = max(load(scores + j), highest);
    other = max(load(scores + j + 16), other);
  }
  if (j < seen.end) highest = max(load(scores + j), highest);
  return reduce_max(max(highest, other));
}

// The seen scores of a span become weights, 2 to the power of their distance from the largest; the others
// from `begin` to `end`, multiples of 32, become zero. put(j, a, b) takes the weights of positions j to j +
// 15 and j + 16 to j + 31, after the scores there have been read. Returns the weights' total.
template <class Put>
static inline float soften(const float* scores, const Seen& seen, int64_t begin, int64_t end, float largest,
                           const Put& put) {
  const f32x16 shift = set(largest);
  const auto weights = [&](int64_t j) { return pow2_of(sub(load(scores + j), shift)); };
  const auto some_weights = [&](int64_t j) {  // zero where they are not seen
    if (j + 16 <= seen.first || j >= seen.end) return set(0.0f);
    const f32x16 x = first_lanes(weights(j), seen.end - j);
    return j >= seen.first ? x : last_lanes(x, j + 16 - seen.first);
  };
  f32x16 total = set(0.0f);
  const auto take = [&](int64_t j, const f32x16& a, const f32x16& b) {
    total = add(add(total, a), b);
    put(j, a, b);
  };
  int64_t j = begin;
  for (; j < seen.first && j < end; j += kStep) take(j, some_weights(j), some_weights(j + 16));
  for (; j + kStep <= seen.end; j += kStep) take(j, weights(j), weights(j + 16));
  for (; j < end; j += kStep) take(j, some_weights(j), some_weights(j + 16));
  return reduce_add(total);
}

// Queries of a task, from `first` to before `last`.
struct Queries {
  int64_t first, last;
};

// The queries of one task and its KV heads from `kv_head` on, `group` heads of each row; rows rise in
// position.
struct TaskView {
  const AttentionArgs& args;
  const AttentionTask& task;
  const int64_t kv_head, num_kv_heads;
  const int64_t per_kv_head, group, num_queries;

  TaskView(const AttentionArgs& a, const AttentionUnit& unit)
      : TaskView(a, *unit.task, unit.first_head, unit.num_heads) {}
  TaskView(const AttentionArgs& a, const AttentionTask& t, int64_t head, int64_t num)
      : args(a),
        task(t),
        kv_head(head),
        num_kv_heads(num),
        per_kv_head(a.num_heads / a.num_kv_heads),
        group(per_kv_head * num),
        num_queries(group * t.num_rows) {}

  int64_t row(int64_t query) const { return args.task_rows[task.first_row + query / group]; }
  int64_t head(int64_t query) const { return kv_head * per_kv_head + query % group; }
  const float* q(int64_t query) const { return args.q + row(query) * args.ldq + head(query) * args.head_dim; }
  float* out(int64_t query) const {
    return args.out + (row(query) * args.num_heads + head(query)) * args.head_dim;
  }
  // With a cap, what tanh is of; else scores to base 2.
  f32x16 q_scale() const { return set(args.cap > 0 ? args.scale / args.cap : args.scale * 1.44269504f); }

  // The position after the last one that a query sees, and the first one.
  int64_t end_of(int64_t query) const { return int64_t{args.positions[row(query)]} + 1; }
  int64_t first_of(int64_t query) const {
    const int64_t first = end_of(query) - args.window;
    return first > 0 ? first : 0;
  }
  // What a query sees of the span at `begin`. Both ends rise from query to query.
  Seen seen(int64_t query, int64_t begin) const {
    const int64_t first = first_of(query) - begin, end = end_of(query) - begin;
    return {first > 0 ? first : 0, end < kSpan ? end : kSpan};
  }
  // Those among `some` that see any position from `from` to before `to`: all of a row, or none.
  Queries seeing(Queries some, int64_t from, int64_t to) const {
    while (some.first < some.last && end_of(some.first) <= from) some.first += group;
    while (some.first < some.last && first_of(some.last - 1) >= to) some.last -= group;
    return some;
  }

  // Whether the positions of a span from j on lie in pages of each row's own; and where its page table
  // begins.
  bool is_own(int64_t j) const { return j >= task.num_shared; }
  bool parts() const { return is_own(kSpan - 1); }
  int64_t pages_of(int64_t query) const { return args.page_of_row[row(query)]; }

  // Where the first head's keys of `num` positions from `start` on lie, in the page table at `first_page`.
  void find(int64_t first_page, int64_t start, int64_t num, int64_t* offsets) const {
    const auto at_page = static_cast<uint32_t>(start) / static_cast<uint32_t>(args.page_size);  // soon done
    const int32_t* page = args.page_ids + first_page + at_page;
    const int64_t row = kv_row_items(args.format, args.head_dim), slot_size = args.num_kv_heads * row;
    int64_t within = start - at_page * args.page_size;
    for (int64_t j = 0; j < num; ++page, within = 0) {
      const int64_t left = num - j, n = args.page_size - within < left ? args.page_size - within : left;
      int64_t at = (*page * args.page_size + within) * slot_size + kv_head * row;
      for (const int64_t next = j + n; j < next; ++j, at += slot_size) offsets[j] = at;
    }
  }

  // What the codes of a row of KVFormat::int8 are multiplied with.
  float code_scale(const void* stored, int64_t offset) const {
    float scale;
    std::memcpy(&scale, static_cast<const int8_t*>(stored) + offset + args.head_dim, sizeof scale);
    return scale;
  }
};

}  // namespace RAMET_ISA
}  // namespace ramet
