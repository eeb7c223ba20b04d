// Attention of a row that has a task for itself. Its queries are few: of a tile of weights most rows would be
// zero, and values would be laid out for them alone. So its KV heads stand together in one block, a query is
// a lane where scores become weights, and a LoneSpan takes values as they are stored. The arithmetic is that
// of TileWalk, bit for bit.
#pragma once
#ifdef RAMET_TILE_UNIT
#include "ops/attention_lone_tiles.h"
#else
#include "ops/attention_lone_pairs.h"
#endif

namespace ramet {
namespace RAMET_ISA {

class LoneWalk {
public:
  static constexpr int64_t kMostQueries = 8;  // of a KV head: a tile is better at more

  LoneWalk(const TaskView& view, Tiles& tiles, float* scratch)
      : LoneWalk(view, tiles, reinterpret_cast<int32_t*>(scratch),
                 reinterpret_cast<uint16_t*>(scratch + TileQueries::num_ends(view))) {}

  // False, and to be done again head by head, where a score is odd (Weights).
  bool run() {
    queries_.load();
    span_.start();
    for (int64_t s = 0; s < v_.task.num_spans; ++s) {
      const int64_t span = v_.task.first_span + s, begin = span * kSpan;
      const Queries queries = v_.seeing({0, v_.num_queries}, begin, begin + kSpan);
      if (queries.first == queries.last) continue;
      Block b = queries_.block_at(0, begin, queries);
      for (int64_t j = b.begin; j < b.end; j += kTile) found_.find(begin, v_.seen(0, begin), j);
      if (!span_.run(b, results_.sums_of(b, span))) return false;
      results_.finish(b, span);
    }
    results_.write_out(0);
    return true;
  }

private:
  LoneWalk(const TaskView& view, Tiles& tiles, int32_t* ends, uint16_t* numbers)
      : v_(view),
        queries_(view, ends, numbers + 2 * SpanRows::space(view)),
        found_(view, numbers, numbers + SpanRows::space(view)),
        span_(view, tiles, queries_, found_,
              numbers + 2 * SpanRows::space(view) + TileQueries::num_tiled(view)),
        results_(view, queries_, span_.end()) {}

  const TaskView& v_;
  TileQueries queries_;
  SpanRows found_;
  LoneSpan span_;
  TileResults results_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
