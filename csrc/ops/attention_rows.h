// Where the rows of a span lie, for tiles: 16 positions' rows as they are stored, or copies.
#pragma once
#include "ops/attention_layout.h"

namespace ramet {
namespace RAMET_ISA {

// The rows of 16 positions, of a unit's first head; the next head's begin `width` numbers further.
struct Rows16 {
  const uint16_t* rows;
  int64_t apart;  // numbers from row to row
};

// Those of a step's 32 positions.
struct Rows32 {
  Rows16 halves[2];

  Rows16 from(int64_t p) const {
    const Rows16& half = halves[p / kTile];
    return {half.rows + p % kTile * half.apart, half.apart};
  }
};

class SpanRows {
public:
  // Numbers that copies of a span take, for keys and for values.
  static int64_t space(const TaskView& view) {
    return kSpan * view.num_kv_heads * tile_width(view.args.head_dim);
  }
  SpanRows(const TaskView& view, uint16_t* keys, uint16_t* values)
      : v_(view),
        width_(tile_width(view.args.head_dim)),
        is_plain_(view.args.format == KVFormat::bf16 && width_ == view.args.head_dim),
        copied_keys_(keys),
        copied_values_(values) {}

  const Rows16& keys(int64_t j) const { return keys_[j / kTile]; }
  const Rows16& values(int64_t j) const { return values_[j / kTile]; }
  // Of the step at j; behind the last one, before `end`, rows that may be asked for in vain.
  Rows32 keys_of_step(int64_t j, int64_t end) const { return step_of(keys_, j, end); }
  Rows32 values_of_step(int64_t j, int64_t end) const { return step_of(values_, j, end); }

  // Of the positions from j on of the span at `begin`. Values that nobody sees are zero, for a weight of zero
  // hides no NaN; keys may be anything, for scores are hidden.
  void find(int64_t begin, const Seen& seen, int64_t j) { find(v_.task.first_page, begin, seen, j); }
  // In the page table at `first_page`.
  void find(int64_t first_page, int64_t begin, const Seen& seen, int64_t j) {
    Rows16 &keys = keys_[j / kTile], &values = values_[j / kTile];
    const Seen part{j > seen.first ? j : seen.first, j + kTile < seen.end ? j + kTile : seen.end};
    keys = values = {kNoRows, 0};
    if (part.first >= part.end) return;
    const bool is_whole = part.end - part.first == kTile;
    int64_t at[kTile];
    if (is_plain_ && v_.args.page_size % kTile == 0) {  // neighbours, whoever sees them
      v_.find(first_page, begin + j, 1, at);
      for (int64_t i = 1; i < kTile; ++i) at[i] = at[i - 1] + apart();
      keys = stored(v_.args.keys, at[0]);
      values = is_whole ? stored(v_.args.values, at[0]) : copies(v_.args.values, at, part, j, copied_values_);
      return;
    }
    v_.find(first_page, begin + part.first, part.end - part.first, at + (part.first - j));
    if (is_plain_ && is_whole && are_neighbours(at)) {
      keys = stored(v_.args.keys, at[0]);
      values = stored(v_.args.values, at[0]);
      return;
    }
    keys = copies(v_.args.keys, at, part, j, copied_keys_);
    values = copies(v_.args.values, at, part, j, copied_values_);
  }

private:
  alignas(64) static constexpr uint16_t kNoRows[kTogetherWidth] = {};

  static Rows32 step_of(const Rows16* rows, int64_t j, int64_t end) {
    if (j >= end) return {{{kNoRows, 0}, {kNoRows, 0}}};
    return {{rows[j / kTile], rows[j / kTile + 1]}};
  }
  bool are_neighbours(const int64_t* at) const {  // page after page: any of them may lie elsewhere
    bool all = true;
    for (int64_t i = 1; i < kTile; ++i) all &= at[i] - at[0] == i * apart();
    return all;
  }
  int64_t apart() const { return v_.args.num_kv_heads * v_.args.head_dim; }
  Rows16 stored(const void* numbers, int64_t at) const {
    return {static_cast<const uint16_t*>(numbers) + at, apart()};
  }

  Rows16 copies(const void* numbers, const int64_t* at, const Seen& part, int64_t j, uint16_t* space) const {
    const int64_t apart = v_.num_kv_heads * width_;
    for (int64_t i = j; i < j + kTile; ++i) {
      const bool is_seen = i >= part.first && i < part.end;
      copy(is_seen ? numbers : nullptr, at[i - j], space + i * apart);
    }
    return {space + j * apart, apart};
  }

  // The rows of a position's heads in whole tile rows; zeros of no numbers.
  void copy(const void* numbers, int64_t at, uint16_t* to) const {
    const int64_t dim = v_.args.head_dim, num = v_.num_kv_heads * width_;
    if (numbers == nullptr || is_plain_) {
      for (int64_t d = 0; d < num; d += kWide) {
        const __m512i row = numbers == nullptr
                                ? _mm512_setzero_si512()
                                : _mm512_loadu_si512(static_cast<const uint16_t*>(numbers) + at + d);
        _mm512_store_si512(to + d, row);
      }
      return;
    }
    for (int64_t k = 0; k < v_.num_kv_heads; ++k, to += width_, at += kv_row_items(v_.args.format, dim)) {
      if (v_.args.format == KVFormat::int8) {
        copy_row(static_cast<const int8_t*>(numbers) + at, v_.code_scale(numbers, at), dim, width_, to);
      } else {
        copy_row(static_cast<const uint16_t*>(numbers) + at, dim, width_, to);
      }
    }
  }

  const TaskView& v_;
  const int64_t width_;
  const bool is_plain_;  // rows are tile rows as they are
  uint16_t *const copied_keys_, *const copied_values_;
  Rows16 keys_[kSpan / kTile], values_[kSpan / kTile];
};

}  // namespace RAMET_ISA
}  // namespace ramet
