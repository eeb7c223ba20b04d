// Queries by blocks of 16, each query a lane of every vector.
#pragma once
#include "ops/attention_layout.h"
#include "ops/attention_weights.h"

namespace ramet {
namespace RAMET_ISA {

// Up to 16 queries in a span.
struct Block {
  int64_t base, first_row, num_rows;  // queries base + first_row to base + num_rows
  int64_t span_begin;
  int64_t begin, end;          // of the span's positions that any of them sees, in whole steps
  int64_t seen_end;            // of the positions themselves
  int64_t all_first, all_end;  // what all lanes see
  int64_t last_first;          // where the last query begins to see
  __m512i first, ends;         // what each lane sees
  Weights weights;

  __mmask16 lanes() const {
    return static_cast<__mmask16>((int64_t{1} << num_rows) - (int64_t{1} << first_row));
  }

  // The scores of 16 positions from j on, as they come from tiles, made ready to become weights: bent, those
  // of what a query does not see hidden, and references taken of them.
  RAMET_INLINE void prepare(int64_t j, float cap, float* scores, Weights& w) const {
    if (cap > 0) bend(scores, {0, kTile * kTile}, cap * Weights::kUnit);
    if (j < all_first || j + kTile > all_end) hide(j, scores);
    if (j <= last_first) w.look_at(scores, beginning_in(j));
  }

  // The queries whose first position is in the tile at j: it alone gives their references, whoever is beside
  // them and begins later.
  __mmask16 beginning_in(int64_t j) const {
    const __m512i after = _mm512_sub_epi32(first, _mm512_set1_epi32(static_cast<int32_t>(j)));
    return _mm512_cmplt_epu32_mask(after, _mm512_set1_epi32(kTile));
  }

  // Scores of what a query does not see become those of weight zero.
  void hide(int64_t j, float* scores) const {
    for (int64_t i = 0; i < kTile; ++i) {
      const __m512i position = _mm512_set1_epi32(static_cast<int32_t>(j + i));
      const __mmask16 is_seen =
          _mm512_mask_cmplt_epi32_mask(_mm512_cmpge_epi32_mask(position, first), position, ends);
      const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
      _mm512_store_ps(scores + i * kTile, _mm512_mask_load_ps(hidden, is_seen, scores + i * kTile));
    }
  }
};

// The queries of a unit, and what each one sees. KV heads that stand together have one block, which meets
// each head's keys in lanes of their own.
class TileQueries {
public:
  TileQueries(const TaskView& view, int32_t* ends, uint16_t* tiles)
      : v_(view),
        width_(tile_width(view.args.head_dim)),
        ends_(ends),
        rows_(ends + padded(view.num_queries)),
        heads_(rows_ + padded(view.num_queries)),
        tiles_(tiles) {}

  // Numbers that `ends` and `tiles` take.
  static int64_t num_ends(const TaskView& view) { return 3 * padded(view.num_queries); }
  static int64_t num_tiled(const TaskView& view) {
    return view.num_kv_heads * padded(view.num_queries) * tile_width(view.args.head_dim);
  }

  void load() const {
    find();
    for (int64_t base = 0; base < v_.num_queries; base += kTile) load_block(base);
  }

  // The one block of heads that stand together once for each of them, other heads' queries being zero.
  void part_heads() const {
    if (v_.num_kv_heads == 1) return;
    for (int64_t k = v_.num_kv_heads; k-- > 0;) {  // the first is where all of them are, so it comes last
      const auto own = static_cast<__mmask16>(((1 << v_.per_kv_head) - 1) << k * v_.per_kv_head);
      for (int64_t i = 0; i < kTile * width_; i += kWide)
        _mm512_store_si512(tiles_ + k * kTile * width_ + i, _mm512_maskz_loadu_epi32(own, tiles_ + i));
    }
  }

  int64_t end_of(int64_t query) const { return ends_[query]; }
  int64_t row_of(int64_t query) const { return rows_[query]; }
  int64_t head_of(int64_t query) const { return heads_[query]; }
  // Tiles of 32 dims of a block; of heads that stand together one head's after the other's.
  const uint16_t* tiles_of(int64_t base) const { return tiles_ + base * width_; }

  Block block_at(int64_t base, int64_t begin, const Queries& queries) const {
    Block b;
    b.base = base;
    b.span_begin = begin;
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

private:
  static __m512i all_lanes(int64_t x) {  // beyond any position, as far as positions go
    return _mm512_set1_epi32(static_cast<int32_t>(x < 0x3fffffff ? x : 0x3fffffff));
  }

  // Rows, heads and ends of what is seen, query by query. The last one's fill up a block.
  void find() const {
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

  // To tiles of pairs of dims.
  void load_block(int64_t base) const {
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
    uint16_t* to = tiles_ + base * width_;
    for (int64_t d = 0; d < width_; d += 8) turn_pairs(rows[0], kMaxWidth, d, to + d * kTile);
  }

  const TaskView& v_;
  const int64_t width_;                               // of a query in whole tile rows
  int32_t *const ends_, *const rows_, *const heads_;  // of each query
  uint16_t* const tiles_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
