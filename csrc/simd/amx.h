// AVX-512 as in avx512.h, with its byte permutes (VBMI), and tile registers of 16 rows of 64 bytes: AMX INT8
// and BF16.
#pragma once
#include "simd/avx512.h"

#define RAMET_TILES      // of bfloat16, for attention
#define RAMET_TILE_UNIT  // and of bytes, for products

namespace ramet {
namespace RAMET_ISA {

// Vectors count as tiles do from construction to destruction: denormal operands and results are zero.
class TileArithmetic {
public:
  TileArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushResults | kZeroOperands); }
  ~TileArithmetic() { _mm_setcsr(before_); }
  TileArithmetic(const TileArithmetic&) = delete;
  TileArithmetic& operator=(const TileArithmetic&) = delete;

private:
  static constexpr unsigned kFlushResults = 0x8000, kZeroOperands = 0x0040;
  const unsigned before_;
};

// Loads and stores of a tile register, rows `stride` bytes apart, and sum += a * b: a has rows of 32 bfloat16
// and b rows of 16 pairs, or a rows of 64 bytes, signed or not, and b rows of 16 fours.
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
template <int Sum, int A, int B>
static inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}
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

// What the eight tile registers of this thread hold, from construction to destruction: rows and bytes a row.
class Tiles {
public:
  struct Shape {
    uint8_t rows;
    uint16_t row_bytes;
  };

  explicit Tiles(const Shape (&shapes)[8]) {
    for (int i = 0; i < 8; ++i) {
      config_.rows[i] = shapes[i].rows;
      config_.row_bytes[i] = shapes[i].row_bytes;
    }
    asm volatile("ldtilecfg %0" : : "m"(config_));  // GCC's own wrapper forgets that memory is read
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int T>
  void load(const void* p, int64_t stride) const {
    tile_load<T>(p, stride);
  }
  template <int T>
  void store(void* p, int64_t stride) const {
    tile_store<T>(p, stride);
  }
  template <int T>
  void zero() const {
    tile_zero<T>();
  }
  template <int Sum, int A, int B>
  void dot_bf16() const {
    tile_dot_bf16<Sum, A, B>();
  }

private:
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
