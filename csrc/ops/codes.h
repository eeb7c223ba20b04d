// Where `quantize` puts a row's codes and `linear` finds them. A group's codes take 64 bytes.
//
//   rows     codes [row][group][32] of 16 bits; groups [row][group]
//   planes   12 bits, where the set multiplies bytes: code = 16 * (first plane, signed) + (second, 0 to 15).
//            Blocks of 16 rows, the last one of as many as are left, each [group][row][2 planes][32 bytes]
//   halves   16 bits, from so many rows on that matrix tiles are worth it: code = 256 * (first half, signed)
//            + (second one, unsigned). Blocks of 16 rows, each [group][2 halves][16 rows][32 bytes]
//
// In planes and halves each 8 inputs are in the order 0 4 1 5 2 6 3 7, which is that of the bytes in a panel
// of weights, and a block's groups are [group][16 scales, 16 offsets].
#pragma once
#include "ops.h"
#include "simd.h"

namespace ramet {
namespace RAMET_ISA {

#ifdef RAMET_BYTES
constexpr bool kHasPlanes = true;
#else
constexpr bool kHasPlanes = false;
#endif

#ifdef RAMET_TILE_UNIT
constexpr int64_t kFewestTileRows = 5;
constexpr int64_t kMostTileGroups = 512;  // K = 16,384
constexpr int64_t kGroupTileBytes = 2 * kRowTile * kGroup;

static inline bool fits_tiles(const Codes& codes) {
  return codes.rows >= kFewestTileRows && codes.k <= kMostTileGroups * kGroup;
}
#endif

enum class Layout : uint8_t { rows, planes, halves };

static inline Layout layout_of(const Codes& codes) {
  if (kHasPlanes && codes.kind == Input::codes12) return Layout::planes;
#ifdef RAMET_TILE_UNIT
  if (fits_tiles(codes)) return Layout::halves;
#endif
  return Layout::rows;
}

static inline int64_t rows_of_block(const Codes& codes, int64_t block) {
  const int64_t left = codes.rows - block * kRowTile;
  return left < kRowTile ? left : kRowTile;
}

// Where the codes, the scale and the offset of a row's first group are, and how far those of the next row of
// the block and of the next group.
struct CodePlace {
  int16_t* codes;
  int64_t next_row, next_group;
  float* scale;
  int64_t next_row_scale, next_group_scale, offset;

  float* scales_of(int64_t row, int64_t g) const {
    return scale + row * next_row_scale + g * next_group_scale;
  }
};

// Not for halves.
static inline CodePlace place_of(const Codes& codes, int64_t row) {
  const int64_t num_groups = codes.k / kGroup;
  auto* const scales = reinterpret_cast<float*>(codes.groups);
  if (layout_of(codes) == Layout::rows) {
    const int64_t at = row * num_groups;
    return {codes.codes + at * kGroup, codes.k, kGroup, scales + 2 * at, 2 * num_groups, 2, 1};
  }
  const int64_t block = row / kRowTile, at = row % kRowTile;
  return {codes.codes + block * kRowTile * codes.k + at * kGroup,
          kGroup,
          rows_of_block(codes, block) * kGroup,
          scales + block * num_groups * 2 * kRowTile + at,
          1,
          2 * kRowTile,
          kRowTile};
}

// In a block. Blocks are done four rows at a time, and what happens to lie where the last row has no
// neighbour would be multiplied: some numbers take a hundred times as long.
static inline void put_scale(const Codes& to, int64_t row, float* scales, const GroupScale& scale) {
  scales[0] = scale.scale;
  scales[kRowTile] = scale.offset;
  if (row + 1 < to.rows) return;
  for (int64_t i = 1; (row + i) % 4 != 0; ++i) scales[i] = scales[kRowTile + i] = 0;
}

// 32 whole numbers and what they stand for.
static inline void put_codes(const Codes& to, int64_t row, int64_t g, const f32x16& low, const f32x16& high,
                             const GroupScale& scale) {
#ifdef RAMET_TILE_UNIT
  if (layout_of(to) == Layout::halves) {
    const int64_t tile = row / kRowTile * (to.k / kGroup) + g, r = row % kRowTile;
    auto* codes = reinterpret_cast<uint8_t*>(to.codes) + tile * kGroupTileBytes + r * kGroup;
    c_store_split<8>(codes, codes + kGroupTileBytes / 2, low.r[0], high.r[0]);
    auto* scales = reinterpret_cast<float*>(to.groups) + tile * 2 * kRowTile + r;
    put_scale(to, row, scales, scale);
    return;
  }
#endif
  const CodePlace place = place_of(to, row);
  int16_t* codes = place.codes + g * place.next_group;
  float* scales = place.scales_of(0, g);
#ifdef RAMET_BYTES
  if (layout_of(to) == Layout::planes) {
    put_scale(to, row, scales, scale);
    auto* planes = reinterpret_cast<uint8_t*>(codes);
    return c_store_split<4>(planes, planes + kGroup, low.r[0], high.r[0]);
  }
#endif
  scales[0] = scale.scale;
  scales[place.offset] = scale.offset;
  store_int16(codes, low);
  store_int16(codes + 16, high);
}

}  // namespace RAMET_ISA
}  // namespace ramet
