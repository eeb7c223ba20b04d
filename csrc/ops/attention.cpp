// Paged attention for the queries of a task and one KV head, or of a row and several: a walk over spans.
// Which queries stand beside one, and whether one task walks all spans or each span has its own, changes none
// of its bits.
#include "ops/attention_lanes.h"
#ifdef RAMET_TILES
#include "ops/attention_lone.h"
#include "ops/attention_tiles.h"
#endif

namespace ramet {
namespace RAMET_ISA {
namespace {

void walk(const TaskView& view, float* scratch) {
  const AttentionArgs& args = view.args;
  const int64_t dims = padded(args.head_dim), stride = partial_floats(dims);
  float* totals = scratch;
  LaneSpans spans(view, scratch + view.num_queries * stride);
  for (int64_t s = 0; s < view.task.num_spans; ++s) {
    const int64_t span = view.task.first_span + s, begin = span * kSpan;
    const Queries queries = view.seeing({0, view.num_queries}, begin, begin + kSpan);
    if (queries.first == queries.last) continue;
    spans.run(begin, queries, [&](int64_t i, const Partial& done) {
      const int64_t first_partial = args.partial_of_row[view.row(i)];
      const Partial total{totals + i * stride, dims};
      if (first_partial >= 0) {
        const int64_t at = (first_partial + span) * args.num_heads + view.head(i);
        Partial{args.partials + at * stride, dims}.copy_from(done);
      } else if (view.first_of(i) >= begin) {
        total.copy_from(done);
      } else {
        merge_span(total, done);
      }
    });
  }
  for (int64_t i = 0; i < view.num_queries; ++i) {
    if (args.partial_of_row[view.row(i)] < 0)
      write_out({totals + i * stride, dims}, view.out(i), args.head_dim);
  }
}

#ifdef RAMET_TILES
bool is_finite(const TaskView& view, int64_t offset) {  // of a value
  if (view.args.format == KVFormat::int8)
    return __builtin_isfinite(128.0f * view.code_scale(view.args.values, offset));
  const uint16_t* value = static_cast<const uint16_t*>(view.args.values) + offset;
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 is_odd = 0;
  for (int64_t d = 0; d < view.args.head_dim; d += kWide) {
    const int64_t left = view.args.head_dim - d;
    const __mmask32 some = left < kWide ? (__mmask32{1} << left) - 1 : ~__mmask32{0};
    const __m512i x = _mm512_maskz_loadu_epi16(some, value + d);
    is_odd |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
  }
  return is_odd == 0;
}

bool has_infinities(const TaskView& view, int64_t pages, int64_t first, int64_t last) {
  int64_t at[kStep];
  for (int64_t p = first; p < last; p += kStep) {
    const int64_t num = last - p < kStep ? last - p : kStep;
    view.find(pages, p, num, at);
    for (int64_t j = 0; j < num; ++j) {
      if (!is_finite(view, at[j])) return true;
    }
  }
  return false;
}

// Whether some rows of the task do not see a value that is not finite and others do. A tile multiplies what a
// row does not see by zero, which such a value survives.
bool hides_infinities(const TaskView& view) {
  const int64_t begin = view.task.first_span * kSpan, end = begin + view.task.num_spans * kSpan;
  const auto inside = [&](int64_t p) { return p < begin ? begin : p > end ? end : p; };
  const int64_t last = view.num_queries - 1;
  int64_t shared_end = end;
  if (view.parts()) {  // of a row's own nobody else sees any
    shared_end = begin + view.task.num_shared;
    for (int64_t i = 0; i <= last; i += view.group) {
      if (has_infinities(view, view.pages_of(i), shared_end, inside(view.end_of(i)))) return true;
    }
  }
  const auto shared = [&](int64_t p) { return p < shared_end ? inside(p) : shared_end; };
  const int64_t pages = view.task.first_page;
  return has_infinities(view, pages, shared(view.first_of(0)), shared(view.first_of(last))) ||
         has_infinities(view, pages, shared(view.end_of(0)), shared(view.end_of(last)));
}

// Of one row, all that is read is seen.
void walk_row(const TaskView& view, Tiles& tiles, float* scratch) {
  if (view.per_kv_head <= LoneWalk::kMostQueries && LoneWalk(view, tiles, scratch).run()) return;
  for (int64_t head = view.kv_head; head < view.kv_head + view.num_kv_heads; ++head)
    TileWalk(TaskView(view.args, view.task, head, 1), tiles, scratch).run();
}

void walk_rows_apart(const TaskView& view, Tiles& tiles, float* scratch) {
  for (int32_t r = 0; r < view.task.num_rows; ++r) {
    AttentionTask alone = view.task;
    alone.first_row += r;
    alone.num_rows = 1;
    alone.first_page = view.args.page_of_row[view.args.task_rows[alone.first_row]];
    alone.num_shared = static_cast<int32_t>(kSpan);
    const int32_t span =
        view.args.positions[view.args.task_rows[alone.first_row]] / static_cast<int32_t>(kSpan);
    if (span < alone.first_span + alone.num_spans) alone.num_spans = span - alone.first_span + 1;
    walk_row(TaskView(view.args, alone, view.kv_head, view.num_kv_heads), tiles, scratch);
  }
}

// Whether rows are sooner done one after another than as a block that they do not fill: the bits are the
// same.
bool are_apart(const AttentionTask& task, int64_t per_kv_head) {
  return task.num_rows == 1 ||
         (task.num_rows <= LoneSpan::kMostRows && task.num_rows * per_kv_head <= LoneSpan::kMostQueries);
}

void walk_tiles(const TaskView& view, Tiles& tiles, float* scratch) {
  if (view.task.num_rows == 1) return walk_row(view, tiles, scratch);
  if (are_apart(view.task, view.per_kv_head) || hides_infinities(view))
    return walk_rows_apart(view, tiles, scratch);
  TileWalk(view, tiles, scratch).run();
}
#endif

}  // namespace

#ifdef RAMET_TILES
int64_t heads_together(const AttentionArgs& args, const AttentionTask& task) {
  if (args.format == KVFormat::f32 || !are_apart(task, args.num_heads / args.num_kv_heads)) return 1;
  const int64_t lanes = kTile / (args.num_heads / args.num_kv_heads);
  const int64_t heads = kTogetherWidth / tile_width(args.head_dim);
  return lanes > heads ? heads : lanes > 1 ? lanes : 1;
}

void attend(const AttentionArgs& args, const AttentionUnit* begin, const AttentionUnit* end, float* scratch) {
  if (args.format == KVFormat::f32) {
    for (const AttentionUnit* unit = begin; unit < end; ++unit) walk(TaskView(args, *unit), scratch);
    return;
  }
  Tiles tiles(kWholeTiles);
  for (const AttentionUnit* unit = begin; unit < end; ++unit)
    walk_tiles(TaskView(args, *unit), tiles, scratch);
}
#else
int64_t heads_together(const AttentionArgs&, const AttentionTask&) { return 1; }

void attend(const AttentionArgs& args, const AttentionUnit* begin, const AttentionUnit* end, float* scratch) {
  for (const AttentionUnit* unit = begin; unit < end; ++unit) walk(TaskView(args, *unit), scratch);
}
#endif

void merge(const AttentionArgs& args, const SplitRow& row, int64_t head) {
  const int64_t dims = padded(args.head_dim);
  const auto partial = [&](int64_t span) {
    const int64_t at = (row.first_partial + span) * args.num_heads + head;
    return Partial{args.partials + at * partial_floats(dims), dims};
  };
  const int64_t seen_from = args.positions[row.row] + 1 - args.window;
  const Partial total = partial(seen_from > 0 ? seen_from / kSpan : 0);
  for (int64_t span = seen_from > 0 ? seen_from / kSpan + 1 : 1; span < row.num_spans; ++span)
    merge_span(total, partial(span));
  write_out(total, args.out + (row.row * args.num_heads + head) * args.head_dim, args.head_dim);
}

}  // namespace RAMET_ISA
}  // namespace ramet
