// AVX-512 as in avx512.h, with its byte permutes (VBMI) and its dot product of bfloat16 (BF16), and tile
// registers of 16 rows of 64 bytes made of these: what attention takes of AMX, on machines without it.
#pragma once
#include <cstring>

#include "simd/avx512.h"

#define RAMET_TILES
// Whoever has these instructions and no AMX is a Zen, mostly: quantized.h makes something of that.
#define RAMET_ZEN

namespace ramet {
namespace RAMET_ISA {

// What is multiplied stays where it is: between its load and the product that needs it nobody writes there.
struct Operand {
  const uint8_t* rows;
  int64_t stride;
};

// sums + two products, as _mm512_dpbf16_ps adds them, of pairs of bfloat16 with one pair for all lanes.
static inline __m512 dot_pairs(__m512 sums, __m512i pairs, const void* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof both);
  return _mm512_dpbf16_ps(sums, (__m512bh)pairs, (__m512bh)_mm512_set1_epi32(both));
}

// sum += a * b: a has rows of 32 bfloat16 and b rows of 16 pairs. One chain of pairs for each sum.
__attribute__((noinline)) static void add_tiles(float* sums, const Operand& a, const Operand& b) {
  __m512 sum[16];
#pragma GCC unroll 16
  for (int m = 0; m < 16; ++m) sum[m] = _mm512_load_ps(sums + 16 * m);
  const uint8_t* pairs = b.rows;
  const int64_t apart = a.stride;
  const uint8_t *first = a.rows, *second = first + 4 * apart, *third = second + 4 * apart,
                *fourth = third + 4 * apart;
  for (int k = 0; k < 16; ++k, pairs += b.stride) {
    const __m512i x = _mm512_loadu_si512(pairs);
#pragma GCC unroll 4
    for (int m = 0; m < 4; ++m) {
      sum[m] = dot_pairs(sum[m], x, first + m * apart + 4 * k);
      sum[m + 4] = dot_pairs(sum[m + 4], x, second + m * apart + 4 * k);
      sum[m + 8] = dot_pairs(sum[m + 8], x, third + m * apart + 4 * k);
      sum[m + 12] = dot_pairs(sum[m + 12], x, fourth + m * apart + 4 * k);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < 16; ++m) _mm512_store_ps(sums + 16 * m, sum[m]);
}

// Eight tile registers, each a matrix of sums or what is multiplied.
class Tiles {
public:
  struct Shape {  // 16 rows of 64 bytes, always
    uint8_t rows;
    uint16_t row_bytes;
  };
  explicit Tiles(const Shape (&)[8]) {}

  template <int T>
  void load(const void* p, int64_t stride) {
    operands_[T] = {static_cast<const uint8_t*>(p), stride};
  }
  template <int T>
  void store(void* p, int64_t stride) const {
    auto* to = static_cast<uint8_t*>(p);
    for (int i = 0; i < 16; ++i, to += stride) _mm512_storeu_ps(to, _mm512_load_ps(sums_[T] + 16 * i));
  }
  template <int T>
  void zero() {
    for (int i = 0; i < 16; ++i) _mm512_store_ps(sums_[T] + 16 * i, _mm512_setzero_ps());
  }
  template <int Sum, int A, int B>
  void dot_bf16() {
    add_tiles(sums_[Sum], operands_[A], operands_[B]);
  }

private:
  alignas(64) float sums_[8][16 * 16];
  Operand operands_[8];
};

}  // namespace RAMET_ISA
}  // namespace ramet
