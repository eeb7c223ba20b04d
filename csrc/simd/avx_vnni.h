// AVX2, FMA, F16C and AVX-VNNI: AVX-512's dot product for registers of half the size. Intel's processors for
// laptops and desktops have it since Alder Lake, AMD's since Zen 5.
#pragma once
#include "simd/ymm.h"

namespace ramet {
namespace RAMET_ISA {

static inline dreg d_add(dreg sum, preg codes, preg x) { return _mm256_dpwssd_avx_epi32(sum, codes, x); }

}  // namespace RAMET_ISA
}  // namespace ramet
