// AVX2, FMA and F16C.
#pragma once
#include "simd/ymm.h"

namespace ramet {
namespace RAMET_ISA {

static inline dreg d_add(dreg sum, preg codes, preg x) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes, x));
  __asm__("" : "+x"(sum));  // or GCC makes a tree of a chain of sums, which does not fit the registers
  return sum;
}

}  // namespace RAMET_ISA
}  // namespace ramet
