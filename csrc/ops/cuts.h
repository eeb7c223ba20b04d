// Where the largest of many values end, by number or by sum, without sorting them: the bits of floats are
// bisected. Part of sample.cpp, compiled once per instruction set.
#pragma once
#include "sampling.h"
#include "simd.h"

namespace ramet {
namespace RAMET_ISA {

constexpr float kInfinity = __builtin_inff(), kLargestFloat = 3.402823466e38f;

// Values in whole blocks. What the largest of a block rules out is not read.
struct Blocks {
  float* x;
  float* largest;  // [n / kScanBlock] at least the largest of each, or null
  int64_t n;

  bool is_below(int64_t start, float limit) const {
    return largest != nullptr && largest[start / kScanBlock] < limit;
  }
};

// A filter keeps all values above, and those that are equal but for the last `surplus` of them.
struct Cut {
  float value;
  int64_t surplus;
};

// How many values are at least a limit, and their sum.
struct Tally {
  double count, mass;
};

// Floats in their order as whole numbers; both zeros are one.
static uint32_t key_of(float x) {
  const uint32_t bits = x == 0 ? 0 : bits_of_float(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}
static float float_of(uint32_t key) { return float_of_bits(key >> 31 != 0 ? key & 0x7fffffff : ~key); }

template <bool kByMass>
static Tally tally(const Blocks& values, float limit) {
  const f32x16 at_least = set(limit), zero = set(0.0f), one = set(1.0f);
  Tally all{0, 0};
  for (int64_t start = 0; start < values.n; start += kScanBlock) {
    if (values.is_below(start, limit)) continue;
    f32x16 count = zero, mass = zero;
    for (int64_t i = start; i < start + kScanBlock; i += 16) {
      const f32x16 v = load(values.x + i);
      count = add(count, where_at_least(v, at_least, one, zero));
      if (kByMass) mass = add(mass, where_at_least(v, at_least, v, zero));
    }
    all.count += static_cast<double>(reduce_add(count));
    if (kByMass) all.mass += static_cast<double>(reduce_add(mass));
  }
  return all;
}

// Values of at least `low` are enough, those of at least `high` are not.
struct Bracket {
  uint32_t low, high;  // keys
  Tally at_low, at_high;
};

static double measure(bool by_mass, const Tally& tally) { return by_mass ? tally.mass : tally.count; }

// Halves the bracket until at most `num_few` values are in it, or all that are in it are equal. `above` is
// the tally of those that were left out.
template <bool kByMass>
static void narrow(Bracket& bracket, const Blocks& values, const Tally& above, double wanted,
                   double num_few) {
  while (bracket.high - bracket.low > 1 && bracket.at_low.count - bracket.at_high.count > num_few) {
    const uint32_t middle = bracket.low + (bracket.high - bracket.low) / 2;
    Tally found = tally<kByMass>(values, float_of(middle));
    found.count += above.count;
    found.mass += above.mass;
    if (measure(kByMass, found) >= wanted) {
      bracket.low = middle;
      bracket.at_low = found;
    } else {
      bracket.high = middle;
      bracket.at_high = found;
    }
  }
}

// Copies what is in the bracket, filled up with -inf; there is room for it in `few`.
static Blocks copy_few(const Blocks& values, const Bracket& bracket, float* few) {
  const float low = float_of(bracket.low);
  const f32x16 at_least = set(low), below = set(float_of(bracket.high));
  int64_t count = 0;
  for (int64_t start = 0; start < values.n; start += kScanBlock) {
    if (values.is_below(start, low)) continue;
    for (int64_t i = start; i < start + kScanBlock; i += 16) {
      const f32x16 v = load(values.x + i);
      uint32_t hits = at_least_bits(v, at_least) & ~at_least_bits(v, below);
      for (; hits != 0; hits &= hits - 1) few[count++] = values.x[i + __builtin_ctz(hits)];
    }
  }
  const int64_t n = whole_blocks(count);
  while (count < n) few[count++] = -kInfinity;
  return {few, nullptr, n};
}

// Where the fewest largest values end whose number (or sum) is `wanted`, from `low` (under the cut for
// certain) to `high` (the largest value). All of at least `low` are kept where they are not enough.
template <bool kByMass>
static Cut find_cut(const Blocks& values, float low, float high, double wanted, float* few) {
  Bracket bracket{key_of(low), key_of(high) + 1, tally<kByMass>(values, low), {0, 0}};
  if (!(measure(kByMass, bracket.at_low) > wanted)) return {low, 0};
  narrow<kByMass>(bracket, values, {0, 0}, wanted, kFewLogits);
  if (bracket.high - bracket.low > 1) {
    const Blocks left = copy_few(values, bracket, few);
    narrow<kByMass>(bracket, left, Tally{bracket.at_high}, wanted, 0);
  }
  const float value = float_of(bracket.low);
  const double equal = bracket.at_low.count - bracket.at_high.count;
  const double lacking = wanted - measure(kByMass, bracket.at_high);
  double kept = kByMass ? __builtin_ceil(lacking / static_cast<double>(value)) : lacking;
  kept = kept < 1 ? 1 : kept > equal ? equal : kept;
  return {value, static_cast<int64_t>(equal - kept)};
}

// What is below the cut becomes `out`.
static void keep(const Blocks& values, const Cut& cut, float out) {
  const f32x16 limit = set(cut.value), outs = set(out);
  for (int64_t start = 0; start < values.n; start += kScanBlock) {
    if (values.is_below(start, cut.value)) {
      for (int64_t i = start; i < start + kScanBlock; i += 16) store(values.x + i, outs);
      continue;
    }
    for (int64_t i = start; i < start + kScanBlock; i += 16) {
      const f32x16 v = load(values.x + i);
      store(values.x + i, where_at_least(v, limit, v, outs));
    }
  }
  int64_t surplus = cut.surplus;
  for (int64_t i = values.n; surplus > 0 && i > 0; --i) {
    if (values.x[i - 1] != cut.value) continue;
    values.x[i - 1] = out;
    --surplus;
  }
}

}  // namespace RAMET_ISA
}  // namespace ramet
