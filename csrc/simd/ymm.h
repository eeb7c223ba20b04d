// One register of 8 lanes, all but the dot product (d_add): what avx2.h and avx_vnni.h share.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace ramet {
namespace RAMET_ISA {

using freg = __m256;   // kLanes floats
using ireg = __m256i;  // kLanes int32
using creg = __m256i;  // kLanes times two words of packed codes
using preg = __m256i;  // kLanes pairs of int16
using dreg = __m256i;  // kLanes sums of products of pairs

constexpr int kLanes = 8;
constexpr int kLinearRows = 6;    // tile of a matrix product, rows
constexpr int kLinearChains = 4;  // independent accumulators that fit
constexpr int kCodeRows = 6;      // tile of a quantised product, rows
constexpr int kQueryTile = 2;     // tile of attention, queries
constexpr int kDimTile = 2;       // tile of attention, vectors of head dims

static inline freg f_set(float x) { return _mm256_set1_ps(x); }
static inline freg f_load(const float* p) { return _mm256_loadu_ps(p); }
static inline void f_store(float* p, freg x) { _mm256_storeu_ps(p, x); }
static inline freg f_add(freg a, freg b) { return _mm256_add_ps(a, b); }
static inline freg f_sub(freg a, freg b) { return _mm256_sub_ps(a, b); }
static inline freg f_mul(freg a, freg b) { return _mm256_mul_ps(a, b); }
static inline freg f_div(freg a, freg b) { return _mm256_div_ps(a, b); }
static inline freg f_max(freg a, freg b) { return _mm256_max_ps(a, b); }
static inline freg f_min(freg a, freg b) { return _mm256_min_ps(a, b); }
static inline freg f_abs(freg a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline freg f_fma(freg a, freg b, freg c) { return _mm256_fmadd_ps(a, b, c); }
static inline freg f_from_int(ireg a) { return _mm256_cvtepi32_ps(a); }

static inline freg f_pow2(freg n) {  // n whole, -127 (gives 0) to 127
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline freg f_add_exponent(freg a, freg n) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
}

static inline freg f_load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline freg f_load_bf16(const uint16_t* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
static inline freg f_load_int8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
static inline void f_store_bf16(uint16_t* p, freg x) {
  const __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, nan);
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
static inline void f_store_int16(int16_t* p, freg whole) {
  const __m256i x = _mm256_cvtps_epi32(whole);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

static inline freg f_where_at_least(freg a, freg b, freg x, freg y) {  // x where a >= b, else y
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
static inline uint32_t f_at_least_bits(freg a, freg b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
static inline freg f_where_bits(uint32_t bits, freg x, freg y) {
  const __m256i own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i hits = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(bits)), own);
  return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(hits, own)));
}

static inline float f_reduce_add(freg x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float f_reduce_max(freg x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline void f_zip(freg a, freg b, freg& low, freg& high) {
  const __m256 even = _mm256_unpacklo_ps(a, b), odd = _mm256_unpackhi_ps(a, b);
  low = _mm256_permute2f128_ps(even, odd, 0x20);
  high = _mm256_permute2f128_ps(even, odd, 0x31);
}

static inline creg c_load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
// The bfloat16 in the lower and in the upper half of each 32 bits.
static inline freg f_from_lower(creg c) { return _mm256_castsi256_ps(_mm256_slli_epi32(c, 16)); }
static inline freg f_from_upper(creg c) {
  return _mm256_castsi256_ps(_mm256_and_si256(c, _mm256_set1_epi32(-65536)));
}
template <int S>
static inline preg c_bytes(creg c) {
  return _mm256_srai_epi16(S == 0 ? _mm256_slli_epi16(c, 8) : c, 8);
}
template <int S>
static inline preg c_nibbles(creg c) {
  const __m256i shifted = S == 0 ? c : _mm256_srli_epi16(c, 4 * S);
  return S == 3 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi16(15));
}
static inline preg p_repeat(int32_t two) { return _mm256_set1_epi32(two); }
static inline dreg d_zero() { return _mm256_setzero_si256(); }
static inline dreg d_add_sums(dreg a, dreg b) { return _mm256_add_epi32(a, b); }
static inline ireg d_close(dreg sum) { return sum; }

}  // namespace RAMET_ISA
}  // namespace ramet
