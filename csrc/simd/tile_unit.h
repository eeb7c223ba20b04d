// Eight tile registers a thread, as AMX has them: by its instructions or, on demand, in memory.
#pragma once
#include "simd/avx512.h"

namespace ramet {
namespace RAMET_ISA {

// As `ldtilecfg` reads it: of each register its rows, at most 16, and the bytes of each, at most 64.
struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace RAMET_ISA
}  // namespace ramet

#ifdef RAMET_SOFTWARE_TILES
#include "simd/tile_unit_software.h"
#else
namespace ramet {
namespace RAMET_ISA {

static inline void tiles_begin(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" : : "m"(shapes));  // GCC's own wrapper forgets that memory is read
}
static inline void tiles_end() { _tile_release(); }

// Loads and stores of a register, rows `stride` bytes apart.
template <int T>
static inline void tile_load(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
static inline void tile_store(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
static inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
// sum += a * b: a has rows of 32 bfloat16 and b rows of 16 pairs.
template <int Sum, int A, int B>
static inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}
// a has rows of 64 bytes, signed or not, and b rows of 16 fours.
template <bool ASigned, bool BSigned, int Sum, int A, int B>
static inline void tile_dot_bytes() {
  if constexpr (ASigned && BSigned)
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
  else if constexpr (ASigned)
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
  else if constexpr (BSigned)
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
  else
    asm volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}

}  // namespace RAMET_ISA
}  // namespace ramet
#endif
