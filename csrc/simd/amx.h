// AVX-512 as in avx512.h, with its byte permutes (VBMI), and tile registers of 16 rows of 64 bytes: AMX INT8
// and BF16.
#pragma once
#include "simd/tile_unit.h"

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

// What the eight tile registers of this thread hold, from construction to destruction: rows and bytes a row.
class Tiles {
public:
  struct Shape {
    uint8_t rows;
    uint16_t row_bytes;
  };

  explicit Tiles(const Shape (&shapes)[8]) {
    for (int i = 0; i < 8; ++i) {
      shapes_.rows[i] = shapes[i].rows;
      shapes_.row_bytes[i] = shapes[i].row_bytes;
    }
    tiles_begin(shapes_);
  }
  ~Tiles() { tiles_end(); }
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
  TileShapes shapes_;
};

}  // namespace RAMET_ISA
}  // namespace ramet
