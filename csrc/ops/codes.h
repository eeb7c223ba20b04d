// Where `quantize` puts a row's codes and `linear` finds them.
//
// By rows: codes [row][k], groups [row][k/32]. For matrix tiles, from so many rows on that a tile is worth
// it: blocks of 16 rows, and in a block for each group of 32 inputs
//
//   codes   [2 halves][16 rows][32 bytes]: code = 256 * (first half, signed) + (second half, unsigned);
//           each 8 inputs in the order 0 4 1 5 2 6 3 7, which is that of the bytes in a panel of weights
//   groups  [16 rows] scales, [16 rows] offsets
#pragma once
#include "ops.h"
#include "simd.h"

namespace ramet {
namespace RAMET_ISA {

#ifdef RAMET_TILES
constexpr int64_t kFewestTileRows = 5;
constexpr int64_t kMostTileGroups = 512;  // K = 16,384
constexpr int64_t kGroupTileBytes = 2 * kRowTile * kGroup;
#endif

static inline bool in_tiles([[maybe_unused]] const Codes& codes) {
#ifdef RAMET_TILES
  return codes.rows >= kFewestTileRows && codes.k <= kMostTileGroups * kGroup;
#else
  return false;
#endif
}

// 32 whole numbers and what they stand for.
static inline void put_codes(const Codes& to, int64_t row, int64_t g, const f32x16& low, const f32x16& high,
                             const GroupScale& scale) {
  const int64_t num_groups = to.k / kGroup;
#ifdef RAMET_TILES
  if (in_tiles(to)) {
    // Byte 2 k is the lower half of code k, byte 2 k + 1 the upper one.
    alignas(64) static constexpr uint8_t kUpper[64] = {
        1,  9,  3,  11, 5,  13, 7,  15, 17, 25, 19, 27, 21, 29, 23, 31, 33, 41, 35, 43, 37, 45,
        39, 47, 49, 57, 51, 59, 53, 61, 55, 63, 0,  8,  2,  10, 4,  12, 6,  14, 16, 24, 18, 26,
        20, 28, 22, 30, 32, 40, 34, 42, 36, 44, 38, 46, 48, 56, 50, 58, 52, 60, 54, 62};
    const __m512i words =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_cvtps_epi32(low.r[0]))),
                           _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(high.r[0])), 1);
    const __m512i halves = _mm512_permutexvar_epi8(_mm512_load_si512(kUpper), words);
    const int64_t tile = row / kRowTile * num_groups + g, r = row % kRowTile;
    auto* codes = reinterpret_cast<uint8_t*>(to.codes) + tile * kGroupTileBytes + r * kGroup;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_castsi512_si256(halves));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + kGroupTileBytes / 2),
                        _mm512_extracti64x4_epi64(halves, 1));
    auto* scales = reinterpret_cast<float*>(to.groups) + tile * 2 * kRowTile + r;
    scales[0] = scale.scale;
    scales[kRowTile] = scale.offset;
    return;
  }
#endif
  store_int16(to.codes + row * to.k + g * kGroup, low);
  store_int16(to.codes + row * to.k + g * kGroup + 16, high);
  to.groups[row * num_groups + g] = scale;
}

}  // namespace RAMET_ISA
}  // namespace ramet
