// A span of attention by tiles for heads of 64 dims, all blocks of a task one after another without a pause.
//
// A unit is one block and 32 positions: scores, weights, weights turned, sums. Four units are under way at a
// time, each at another of these, for tile registers and vectors work side by side only where their
// instructions stand side by side: a tile instruction that has to wait soon holds up all that come after it.
// So a step of the flow has eight slots, and each has a product of tiles, two pairs of positions that become
// weights, and half of a turn. A tile of scores is stored some slots after its products and read some after.
//
// The arithmetic is that of TileWalk, bit for bit.
#pragma once
#include "ops/attention_results.h"
#include "ops/attention_rows.h"

namespace ramet {
namespace RAMET_ISA {

class TileFlow {
public:
  static constexpr int64_t kWidth = 2 * kWide;  // of the rows that it takes
  static constexpr int64_t kSpace = 6 * kTile * kWide;

  // `space`: numbers of 16 bits for what stands between the stages of a unit.
  TileFlow(const TaskView& view, Tiles& tiles, const TileQueries& queries, const TileResults& results,
           const SpanRows& found, const uint16_t* laid, uint16_t* space)
      : v_(view),
        tiles_(tiles),
        queries_(queries),
        results_(results),
        found_(found),
        laid_(laid),
        weights_(space),
        turned_(space + kTurns * kTileSize),
        scores_(reinterpret_cast<float*>(space + 2 * kTurns * kTileSize)) {}

  // bad(base) is called for each block whose references were not good ones; others are finished.
  template <class Bad>
  void run(int64_t begin, int64_t span, const Queries& queries, const Bad& bad) {
    Block blocks[kUnderWay];
    int64_t next_base = queries.first / kTile * kTile, num_blocks = 0;
    const auto after = [&](const Unit& unit) -> Unit {
      if (unit.block != nullptr && !unit.is_last()) return {unit.block, unit.j + kStep};
      if (next_base >= queries.last) return {};
      Block& block = blocks[num_blocks++ % kUnderWay];
      block = queries_.block_at(next_base, begin, queries);
      next_base += kTile;
      return {&block, block.begin};
    };
    Stages now;
    Weights weights;
    for (now.scored = after({}); now.is_busy(); now.move(after(now.scored))) {
      if (now.weighed.is_first()) weights.start();
      if (now.are_all()) {
        advance<true>(now, weights);
      } else {
        advance<false>(now, weights);
      }
      if (now.weighed.is_last()) now.weighed.block->weights = weights, weights = Weights();
      if (now.summed.is_last()) end(*now.summed.block, span, bad);
      ++turn_;
    }
  }

private:
  static constexpr int64_t kTurns = 2;     // weights of a unit wait while those of the next one are made
  static constexpr int64_t kUnderWay = 4;  // units, each perhaps of another block

  struct Unit {
    Block* block = nullptr;
    int64_t j = 0;  // in the span

    bool is_there() const { return block != nullptr; }
    bool is_first() const { return is_there() && j == block->begin; }
    bool is_last() const { return is_there() && j + kStep >= block->end; }
  };

  // The units under way.
  struct Stages {
    Unit scored, weighed, turned, summed;

    bool is_busy() const {
      return scored.is_there() || weighed.is_there() || turned.is_there() || summed.is_there();
    }
    bool are_all() const {
      return scored.is_there() && weighed.is_there() && turned.is_there() && summed.is_there();
    }
    void move(const Unit& next) {
      summed = turned;
      turned = weighed;
      weighed = scored;
      scored = next;
    }
  };

  template <class Bad>
  void end(const Block& b, int64_t span, const Bad& bad) const {
    Block copy = b;
    if (!copy.weights.are_good(copy.lanes())) return bad(b.base);
    store_sums(results_.sums_of(b, span));
    results_.finish(b, span);
  }

  void store_sums(float* sums) const {
    tiles_.store<0>(sums, kWidth * 4);
    tiles_.store<1>(sums + kTile, kWidth * 4);
    tiles_.store<2>(sums + 2 * kTile, kWidth * 4);
    tiles_.store<3>(sums + 3 * kTile, kWidth * 4);
  }
  void clear_sums() const {
    tiles_.zero<0>();
    tiles_.zero<1>();
    tiles_.zero<2>();
    tiles_.zero<3>();
  }

  // What the slots of a step read and write.
  struct Places {
    const uint16_t *queries, *turned, *values, *last_weights;
    Rows16 keys[2];
    uint16_t *weights, *next_turned;
  };
  Places places_of(const Stages& now) const {
    Places p{};
    p.weights = weights_ + turn_ % kTurns * kTileSize;
    p.last_weights = weights_ + (turn_ + 1) % kTurns * kTileSize;
    p.next_turned = turned_ + turn_ % kTurns * kTileSize;
    p.turned = turned_ + (turn_ + 1) % kTurns * kTileSize;
    if (now.summed.is_there()) p.values = laid_ + now.summed.j * kWidth;
    if (now.scored.is_there()) {
      p.queries = queries_.tiles_of(now.scored.block->base);
      p.keys[0] = found_.keys(now.scored.j);
      p.keys[1] = found_.keys(now.scored.j + kTile);
    }
    return p;
  }

  // A step: each unit under way has its part done. `w` is that of the block that is weighed.
  template <bool kAll>
  RAMET_INLINE void advance(const Stages& now, Weights& w) const {
    const Places p = places_of(now);
    const bool scores = kAll || now.scored.is_there(), weighs = kAll || now.weighed.is_there(),
               turns = kAll || now.turned.is_there(), sums = kAll || now.summed.is_there();
    const auto weigh = [&](int64_t i) __attribute__((always_inline)) {  // two pairs
      if (!weighs) return;
      w.make_pair(scores_ + i * kTile, p.weights + i * kTile);
      w.make_pair(scores_ + (i + 2) * kTile, p.weights + (i + 2) * kTile);
    };
    const auto turn = [&](int64_t i) __attribute__((always_inline)) {
      if (turns) turn_pairs(p.last_weights, kWide, 2 * i, p.next_turned + i * kWide);
    };
    if (now.summed.is_first()) clear_sums();
    if (weighs) now.weighed.block->prepare(now.weighed.j, v_.args.cap, scores_, w);
    if (scores) score_first(p);
    weigh(0);
    if (scores) score<7>(p, 1, 0);
    weigh(4);
    turn(0);
    if (scores) score_rest(p);
    weigh(8);
    if (scores) score<7>(p, 1, kWide);
    weigh(12);
    turn(4);
    if (weighs) now.weighed.block->prepare(now.weighed.j + kTile, v_.args.cap, scores_ + kTile * kTile, w);
    if (sums) add_first(p);
    weigh(16);
    if (sums) add<1>(p);
    weigh(20);
    turn(8);
    if (scores) tiles_.store<6>(scores_, 64);
    if (sums) add<2>(p);
    weigh(24);
    if (sums) add<3>(p);
    weigh(28);
    turn(12);
    if (scores) tiles_.store<7>(scores_ + kTile * kTile, 64);
  }

  // Products of 16 positions' keys, 32 dims of them, and queries, which stay for both halves of the
  // positions.
  template <int T>
  RAMET_INLINE void score(const Places& p, int64_t half, int64_t d) const {
    tiles_.load<4>(p.keys[half].rows + d, p.keys[half].apart * 2);
    tiles_.dot_bf16<T, 4, 5>();
  }
  RAMET_INLINE void score_first(const Places& p) const {
    tiles_.zero<6>();
    tiles_.zero<7>();
    tiles_.load<5>(p.queries, 64);
    score<6>(p, 0, 0);
  }
  RAMET_INLINE void score_rest(const Places& p) const {
    tiles_.load<5>(p.queries + kTileSize, 64);
    score<6>(p, 0, kWide);
  }

  // Products of weights and values, 16 dims.
  template <int T>
  RAMET_INLINE void add(const Places& p) const {
    tiles_.load<5>(p.values + T * kTileSize, 64);
    tiles_.dot_bf16<T, 4, 5>();
  }
  RAMET_INLINE void add_first(const Places& p) const {
    tiles_.load<4>(p.turned, 64);
    add<0>(p);
  }

  const TaskView& v_;
  Tiles& tiles_;
  const TileQueries& queries_;
  const TileResults& results_;
  const SpanRows& found_;
  const uint16_t* const laid_;
  uint16_t *const weights_, *const turned_;  // of units, [kTurns]
  float* const scores_;                      // of a unit
  int64_t turn_ = 0;
};

}  // namespace RAMET_ISA
}  // namespace ramet
