// A span of a row alone, where tile registers are a unit of their own. Vectors count as a tile does: of 32
// positions the even ones are a chain of fused products from zero on and the odd ones another, what is
// smaller than a normal number is zero, and the sum of the two is added to what was there.
//
// Scores are products of tiles. Each head's keys meet queries of which other heads' are zeros, one head's
// product on top of another's. Those of the next 32 positions stand between sums of the last ones, so that
// none waits for the one before it.
#pragma once
#include "ops/attention_results.h"
#include "ops/attention_rows.h"

namespace ramet {
namespace RAMET_ISA {

class LoneSpan {
public:
  // Rows of a task, and their queries of a KV head, that are sooner done one after another than as a block.
  static constexpr int64_t kMostRows = 1, kMostQueries = kTile;

  LoneSpan(const TaskView& view, Tiles& tiles, const TileQueries& queries, const SpanRows& found,
           uint16_t* space)
      : v_(view),
        tiles_(tiles),
        width_(tile_width(view.args.head_dim)),
        num_products_(2 * view.num_kv_heads * width_ / kWide),
        queries_(queries),
        found_(found),
        weights_(space),
        wide_weights_(reinterpret_cast<float*>(space + kStep * kTile)),
        scores_(wide_weights_ + kStep * kTile) {}

  float* end() const { return scores_ + kStep * kTile; }  // of the space

  void start() const { queries_.part_heads(); }

  // False where a score is odd.
  bool run(Block& b, float* sums) {
    Weights w = b.weights;  // in registers
    w.start();
    for (int64_t i = 0; i < v_.num_queries * width_; i += 16) store(sums + i, set(0.0f));
    begin_scores(b.begin);
    for (int64_t j = b.begin; j < b.end; j += kStep) {
      weigh(b, w, j);
      if (j + kStep < b.end) begin_scores(j + kStep);
      next_values_ = found_.values_of_step(j + kStep, b.end);
      next_keys_ = found_.keys_of_step(j + 2 * kStep, b.end);
      const TileArithmetic as_in_tiles;
      add_values(b, j, sums);
    }
    for (int64_t i = 0; i < v_.num_queries * width_; i += kWide) put_in_order(sums + i);
    const bool good = w.are_good(b.lanes());
    b.weights = w;
    return good;
  }

private:
  // Scores of 32 positions: products of 32 dims of a head, in turn for the first 16 positions and the others.
  void begin_scores(int64_t j) {
    keys_ = {{found_.keys(j), found_.keys(j + kTile)}};
    next_product_ = 0;
    tiles_.zero<0>();
    tiles_.zero<1>();
  }
  RAMET_INLINE void issue_product() {
    if (next_product_ >= num_products_) return;
    const int64_t part = next_product_ / 2;
    if (next_product_++ % 2 == 0) {
      tiles_.load<4>(queries_.tiles_of(0) + part * kTileSize, 64);
      tiles_.load<6>(keys_.halves[0].rows + part * kWide, keys_.halves[0].apart * 2);
      tiles_.dot_bf16<0, 6, 4>();
    } else {
      tiles_.load<7>(keys_.halves[1].rows + part * kWide, keys_.halves[1].apart * 2);
      tiles_.dot_bf16<1, 7, 4>();
    }
  }

  // Scores become weights, [32 positions][16 queries].
  RAMET_INLINE void weigh(const Block& b, Weights& w, int64_t j) {
    while (next_product_ < num_products_) issue_product();
    tiles_.store<0>(scores_, 64);
    tiles_.store<1>(scores_ + kTile * kTile, 64);
    for (int64_t half = 0; half < kStep && j + half < b.seen_end; half += kTile) {
      b.prepare(j + half, v_.args.cap, scores_ + half * kTile, w);
      w.make(scores_ + half * kTile, weights_);
      for (int64_t i = 0; i < kTile * kTile; i += kWide) {
        const __m512i pairs = _mm512_load_si512(weights_ + i);
        _mm512_store_ps(wide_weights_ + half * kTile + i, f_from_lower(pairs));
        _mm512_store_ps(wide_weights_ + half * kTile + i + 16, f_from_upper(pairs));
      }
    }
  }

  // Weights times values of 32 positions. The sums of three queries and 64 dims, or of four and 32, fit
  // registers.
  __attribute__((noinline)) void add_values(const Block& b, int64_t j, float* sums) {
    values_ = found_.values_of_step(j, b.end);
    num_values_ = b.seen_end - j < kStep ? b.seen_end - j : kStep;
    for (int64_t k = 0; k < v_.num_kv_heads; ++k) {
      const int64_t end = (k + 1) * v_.per_kv_head;
      for (int64_t query = k * v_.per_kv_head; query < end;) {
        const int64_t left = end - query, num = left > 4 ? (left + 1) / 2 : left;
        if (num == 1) add_queries<1, 2>(k, query, sums);
        if (num == 2) add_queries<2, 2>(k, query, sums);
        if (num == 3) add_queries<3, 2>(k, query, sums);
        if (num == 4) add_queries<4, 1>(k, query, sums);
        query += num;
      }
    }
  }
  // Q queries of a head, V times 32 dims at a time.
  template <int Q, int V>
  RAMET_INLINE void add_queries(int64_t k, int64_t query, float* sums) {
    int64_t d = 0;
    for (; d + V * kWide <= width_; d += V * kWide)
      add_dims<Q, V>(k * width_ + d, query, sums + query * width_ + d);
    for (; d < width_; d += kWide) add_dims<Q, 1>(k * width_ + d, query, sums + query * width_ + d);
  }
  // Numbers from `at` on of each position. Sums of even dims stand before those of odd ones.
  template <int Q, int V>
  RAMET_INLINE void add_dims(int64_t at, int64_t query, float* sums) {
    __m512 even[Q][2 * V], odd[Q][2 * V];  // positions
    RAMET_UNROLL for (int q = 0; q < Q; ++q) {
      RAMET_UNROLL for (int v = 0; v < 2 * V; ++v) even[q][v] = odd[q][v] = _mm512_setzero_ps();
    }
    for (int64_t p = 0; p < kStep; p += 8) {
      issue_product();
      ask<V>(next_values_.from(p), at);
      ask<V>(next_keys_.from(p), at);
      const Rows16 values = values_.from(p);
      const uint16_t* row = values.rows + at;
      const float* weights = wide_weights_ + p * kTile + query;
      for (int64_t i = p; i < p + 8 && i < num_values_;
           i += 2) {  // behind an odd last one stands a row of zeros
        add_position<Q, V>(row, weights, even);
        add_position<Q, V>(row + values.apart, weights + kTile, odd);
        row += 2 * values.apart;
        weights += 2 * kTile;
      }
    }
    RAMET_UNROLL for (int q = 0; q < Q; ++q) {
      RAMET_UNROLL for (int v = 0; v < 2 * V; ++v) {
        float* to = sums + q * width_ + v * 16;
        _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(even[q][v], odd[q][v])));
      }
    }
  }
  // For numbers of 8 positions, which are in the second cache by the time they are needed.
  template <int V>
  RAMET_INLINE static void ask(const Rows16& rows, int64_t at) {
    const uint16_t* row = rows.rows + at;
    for (int64_t i = 0; i < 8; ++i, row += rows.apart) {
      RAMET_UNROLL for (int v = 0; v < V; ++v) _mm_prefetch(row + v * kWide, _MM_HINT_T1);
    }
  }
  template <int Q, int V>
  RAMET_INLINE static void add_position(const uint16_t* row, const float* weights, __m512 (&sums)[Q][2 * V]) {
    __m512 x[2 * V];
    RAMET_UNROLL for (int v = 0; v < V; ++v) {
      const __m512i pairs = _mm512_loadu_si512(row + v * kWide);
      x[2 * v] = f_from_lower(pairs);
      x[2 * v + 1] = f_from_upper(pairs);
    }
    RAMET_UNROLL for (int q = 0; q < Q; ++q) {
      const __m512 weight = _mm512_set1_ps(weights[q]);
      RAMET_UNROLL for (int v = 0; v < 2 * V; ++v) sums[q][v] = _mm512_fmadd_ps(weight, x[v], sums[q][v]);
    }
  }

  // 32 sums as lay_values would leave them.
  static void put_in_order(float* sums) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    const __m512i second = _mm512_setr_epi32(2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    const __m512 even = _mm512_load_ps(sums), odd = _mm512_load_ps(sums + 16);
    _mm512_store_ps(sums, _mm512_permutex2var_ps(even, first, odd));
    _mm512_store_ps(sums + 16, _mm512_permutex2var_ps(even, second, odd));
  }

  const TaskView& v_;
  Tiles& tiles_;
  const int64_t width_;  // of a row of keys or values in whole tile rows
  const int64_t num_products_;
  int64_t next_product_ = 0, num_values_ = 0;
  const TileQueries& queries_;
  const SpanRows& found_;
  Rows32 keys_, values_, next_keys_, next_values_;
  uint16_t* const weights_;              // of 16 positions, in pairs
  float *const wide_weights_, *scores_;  // [32 positions][16 queries]
};

}  // namespace RAMET_ISA
}  // namespace ramet
