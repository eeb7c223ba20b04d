// Where `split` puts a row's two halves and `linear` finds them: blocks of 16 rows, and in a block for each
// 32 inputs [2 halves][16 rows][32].
#pragma once
#include "ops.h"

namespace ramet {
namespace RAMET_ISA {

constexpr int64_t kHalfStep = 32;  // inputs that a tile holds of a row
constexpr int64_t kHalfTile = kRowTile * kHalfStep;

struct Place {
  uint16_t *first, *second;
};

inline int64_t num_half_steps(int64_t k) { return (k + kHalfStep - 1) / kHalfStep; }

static inline Place place_of(const Halves& h, int64_t row, int64_t k) {
  const int64_t step = row / kRowTile * num_half_steps(h.k) + k / kHalfStep;
  uint16_t* first = h.data + step * 2 * kHalfTile + row % kRowTile * kHalfStep + k % kHalfStep;
  return {first, first + kHalfTile};
}

}  // namespace RAMET_ISA
}  // namespace ramet
