// A span of a row alone, where tiles are made of dot products of pairs. Positions are lanes for scores, of
// which a key's pairs are turned into vectors as they are read, and dims are lanes for sums: so no lane is
// spent on another head's keys, and each sum is the chain of pairs that a tile would make of it.
#pragma once
#include "ops/attention_results.h"
#include "ops/attention_rows.h"

namespace ramet {
namespace RAMET_ISA {

class LoneSpan {
public:
  // Rows of a task, and their queries of a KV head, that are sooner done one after another than as a block.
  static constexpr int64_t kMostRows = 4, kMostQueries = 12;

  LoneSpan(const TaskView& view, Tiles&, const TileQueries& queries, const SpanRows& found, uint16_t* space)
      : v_(view),
        width_(tile_width(view.args.head_dim)),
        queries_(queries),
        found_(found),
        weights_(space),
        scores_(reinterpret_cast<float*>(space + kStep * kTile)),
        by_query_(scores_ + kStep * kTile) {}

  float* end() const { return by_query_ + kStep * kTile; }  // of the space

  void start() const {}

  // False where a score is odd.
  bool run(Block& b, float* sums) {
    Weights w = b.weights;  // in registers
    w.start();
    for (int64_t i = 0; i < v_.num_queries * width_; i += 16) store(sums + i, set(0.0f));
    for (int64_t j = b.begin; j < b.end; j += kStep) {
      const Rows32 values = found_.values_of_step(j, b.end);
      score(found_.keys_of_step(j, b.end), values);
      weigh(b, w, j);
      add_values(b, j, values, found_.keys_of_step(j + kStep, b.end), sums);
    }
    const bool good = w.are_good(b.lanes());
    b.weights = w;
    return good;
  }

private:
  // Some numbers of 16 rows that come next, asked for a few lines at a time: many at once are not heard.
  struct Lines {
    const uint16_t* row;
    int64_t apart, num, d = 0;

    RAMET_INLINE void ask(int lines) {
      RAMET_UNROLL for (int i = 0; i < lines; ++i) {
        _mm_prefetch(row + d, _MM_HINT_T1);
        d += kWide;
        if (d >= num) d = 0, row += apart;
      }
    }
  };

  // Calls work(Few<Q>, k, query) for all queries, Q neighbours of KV head k at a time, four at most.
  template <int Q>
  struct Few {};
  template <class Work>
  RAMET_INLINE void each_few(const Work& work) const {
    for (int64_t k = 0; k < v_.num_kv_heads; ++k) {
      const int64_t end = (k + 1) * v_.per_kv_head;
      for (int64_t query = k * v_.per_kv_head; query < end;) {
        const int64_t left = end - query, num = left > 4 ? (left + 1) / 2 : left;
        if (num == 1) work(Few<1>(), k, query);
        if (num == 2) work(Few<2>(), k, query);
        if (num == 3) work(Few<3>(), k, query);
        if (num == 4) work(Few<4>(), k, query);
        query += num;
      }
    }
  }

  // Scores of 32 positions, [32 positions][16 queries].
  void score(const Rows32& keys, const Rows32& next) const {
    each_few([&](auto few, int64_t k, int64_t query) { score_queries(few, keys, next, k, query); });
    for (int64_t half = 0; half < kStep; half += kTile) {
      f32x16 x[kTile];
      for (int64_t q = 0; q < kTile; ++q)
        x[q] = q < v_.num_queries ? load(by_query_ + q * kStep + half) : set(0.0f);
      transpose(x);
      for (int64_t p = 0; p < kTile; ++p) store(scores_ + (half + p) * kTile, x[p]);
    }
  }
  // Those of Q queries of a head, [16 queries][32 positions].
  template <int Q>
  RAMET_INLINE void score_queries(Few<Q>, const Rows32& keys, const Rows32& next, int64_t k,
                                  int64_t query) const {
    __m512 sums[2][Q];
    RAMET_UNROLL for (int q = 0; q < Q; ++q) sums[0][q] = sums[1][q] = _mm512_setzero_ps();
    const uint16_t* pairs = queries_.tiles_of(0) + 2 * query;
    Lines ahead[2] = {{next.halves[0].rows + k * width_, next.halves[0].apart, width_},
                      {next.halves[1].rows + k * width_, next.halves[1].apart, width_}};
    for (int64_t d = 0; d < width_; d += 8, pairs += 4 * kWide) {
      RAMET_UNROLL for (int half = 0; half < 2; ++half) {
        ahead[half].ask(4);
        __m512i x[4];
        turn_pairs(keys.halves[half].rows + k * width_, keys.halves[half].apart, d, x);
        RAMET_UNROLL for (int i = 0; i < 4; ++i) {
          RAMET_UNROLL for (int q = 0; q < Q; ++q) sums[half][q] =
              dot_pairs(sums[half][q], x[i], pairs + i * kWide + 2 * q);
        }
      }
    }
    RAMET_UNROLL for (int half = 0; half < 2; ++half) {
      RAMET_UNROLL for (int q = 0; q < Q; ++q)
          _mm512_store_ps(by_query_ + (query + q) * kStep + half * kTile, sums[half][q]);
    }
  }

  // Scores become weights, [16 pairs of positions][16 queries][2].
  void weigh(const Block& b, Weights& w, int64_t j) const {
    for (int64_t half = 0; half < kStep && j + half < b.seen_end; half += kTile) {
      b.prepare(j + half, v_.args.cap, scores_ + half * kTile, w);
      w.make(scores_ + half * kTile, weights_ + half * kTile);
    }
  }

  // Weights times values of 32 positions.
  void add_values(const Block& b, int64_t j, const Rows32& values, const Rows32& next, float* sums) const {
    const int64_t num = b.seen_end - j < kStep ? b.seen_end - j : kStep;
    each_few([&](auto few, int64_t k, int64_t query) {
      for (int64_t half = 0; half < 2 && half * kTile < num; ++half) {
        add_queries(few, values.halves[half], next.halves[half], k, query, num - half * kTile,
                    weights_ + half * kTile * kTile, sums + query * width_);
      }
    });
  }
  // Of 16 positions or fewer, 64 dims at a time.
  template <int Q>
  RAMET_INLINE void add_queries(Few<Q>, const Rows16& values, const Rows16& next, int64_t k, int64_t query,
                                int64_t num, const uint16_t* weights, float* sums) const {
    int64_t d = 0;
    for (; d + 2 * kWide <= width_; d += 2 * kWide)
      add_dims<Q, 2>(values, next, k * width_ + d, num, weights + 2 * query, sums + d);
    for (; d < width_; d += kWide)
      add_dims<Q, 1>(values, next, k * width_ + d, num, weights + 2 * query, sums + d);
  }
  // Numbers from `at` on of each position, V times 32. Behind an odd last position stands a row of zeros.
  template <int Q, int V>
  RAMET_INLINE void add_dims(const Rows16& values, const Rows16& next, int64_t at, int64_t num,
                             const uint16_t* weights, float* sums) const {
    __m512 sum[Q][2 * V];
    RAMET_UNROLL for (int q = 0; q < Q; ++q) {
      RAMET_UNROLL for (int v = 0; v < 2 * V; ++v) sum[q][v] = _mm512_load_ps(sums + q * width_ + v * kTile);
    }
    const uint16_t* row = values.rows + at;
    Lines ahead{next.rows + at, next.apart, V * kWide};
    for (int64_t p = 0; p < kTile && p < num; p += 2, row += 2 * values.apart, weights += kWide) {
      ahead.ask(2 * V);
      __m512i x[2 * V];
      RAMET_UNROLL for (int v = 0; v < V; ++v) {
        const __m512i a = _mm512_loadu_si512(row + v * kWide);
        const __m512i c = _mm512_loadu_si512(row + values.apart + v * kWide);
        x[2 * v] = _mm512_unpacklo_epi16(a, c);
        x[2 * v + 1] = _mm512_unpackhi_epi16(a, c);
      }
      RAMET_UNROLL for (int q = 0; q < Q; ++q) {
        RAMET_UNROLL for (int v = 0; v < 2 * V; ++v) sum[q][v] = dot_pairs(sum[q][v], x[v], weights + 2 * q);
      }
    }
    RAMET_UNROLL for (int q = 0; q < Q; ++q) {
      RAMET_UNROLL for (int v = 0; v < 2 * V; ++v) _mm512_store_ps(sums + q * width_ + v * kTile, sum[q][v]);
    }
  }

  const TaskView& v_;
  const int64_t width_;  // of a row of keys or values in whole tile rows
  const TileQueries& queries_;
  const SpanRows& found_;
  uint16_t* const weights_;
  float *const scores_, *const by_query_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
