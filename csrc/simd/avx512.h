// One register of 16 lanes: AVX-512 F, BW, DQ, VL and VNNI.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace ramet {
namespace RAMET_ISA {

using freg = __m512;   // kLanes floats
using ireg = __m512i;  // kLanes int32
using creg = __m512i;  // kLanes times two words of packed codes
using preg = __m512i;  // kLanes pairs of int16
using dreg = __m512i;  // kLanes sums of products of pairs

constexpr int kLanes = 16;
constexpr int kLinearRows = 8;     // tile of a matrix product, rows
constexpr int kLinearChains = 16;  // independent accumulators that fit
constexpr int kCodeRows = 8;       // tile of a quantised product, rows
constexpr int kQueryTile = 4;      // tile of attention, queries
constexpr int kDimTile = 4;        // tile of attention, vectors of head dims

static inline freg f_set(float x) { return _mm512_set1_ps(x); }
static inline freg f_load(const float* p) { return _mm512_loadu_ps(p); }
static inline void f_store(float* p, freg x) { _mm512_storeu_ps(p, x); }
static inline freg f_add(freg a, freg b) { return _mm512_add_ps(a, b); }
static inline freg f_sub(freg a, freg b) { return _mm512_sub_ps(a, b); }
static inline freg f_mul(freg a, freg b) { return _mm512_mul_ps(a, b); }
static inline freg f_div(freg a, freg b) { return _mm512_div_ps(a, b); }
static inline freg f_max(freg a, freg b) { return _mm512_max_ps(a, b); }
static inline freg f_min(freg a, freg b) { return _mm512_min_ps(a, b); }
static inline freg f_abs(freg a) { return _mm512_abs_ps(a); }
static inline freg f_fma(freg a, freg b, freg c) { return _mm512_fmadd_ps(a, b, c); }
static inline freg f_from_int(ireg a) { return _mm512_cvtepi32_ps(a); }

static inline freg f_pow2(freg n) {  // n whole, -127 (gives 0) to 127
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
static inline freg f_add_exponent(freg a, freg n) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(n), 23)));
}

static inline freg f_load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline freg f_load_bf16(const uint16_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
static inline freg f_load_int8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
static inline void f_store_bf16(uint16_t* p, freg x) {
  const __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet)));
}
static inline void f_store_int16(int16_t* p, freg whole) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(whole)));
}

static inline freg f_where_at_least(freg a, freg b, freg x, freg y) {  // x where a >= b, else y
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), y, x);
}
static inline uint32_t f_at_least_bits(freg a, freg b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
static inline freg f_where_bits(uint32_t bits, freg x, freg y) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), y, x);
}

static inline float f_reduce_add(freg x) { return _mm512_reduce_add_ps(x); }
static inline float f_reduce_max(freg x) { return _mm512_reduce_max_ps(x); }

static inline void f_zip(freg a, freg b, freg& low, freg& high) {
  low =
      _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
  high = _mm512_permutex2var_ps(
      a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
}

static inline creg c_load(const uint8_t* p) { return _mm512_loadu_si512(p); }
// The bfloat16 in the lower and in the upper half of each 32 bits.
static inline freg f_from_lower(creg c) { return _mm512_castsi512_ps(_mm512_slli_epi32(c, 16)); }
static inline freg f_from_upper(creg c) {
  return _mm512_castsi512_ps(_mm512_and_si512(c, _mm512_set1_epi32(-65536)));
}
template <int S>
static inline preg c_bytes(creg c) {
  return _mm512_srai_epi16(S == 0 ? _mm512_slli_epi16(c, 8) : c, 8);
}
template <int S>
static inline preg c_nibbles(creg c) {
  const __m512i shifted = S == 0 ? c : _mm512_srli_epi16(c, 4 * S);
  return S == 3 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16(15));
}
// Four bytes of each word of nibbles: of the lower nibbles (S even), or 16 times the upper ones.
#define RAMET_BYTES
template <int S>
static inline preg c_fours_in_place(creg c) {
  return _mm512_and_si512(c, _mm512_set1_epi8(static_cast<char>(S % 2 ? 0xf0 : 0x0f)));
}
// The same, all 16 times as large for S < 2, and as they are for the others.
template <int S>
static inline preg c_fours(creg c) {
  const __m512i nibbles = c_fours_in_place<S>(c);
  if constexpr (S == 0) return _mm512_slli_epi16(nibbles, 4);
  if constexpr (S == 3) return _mm512_srli_epi16(nibbles, 4);
  return nibbles;
}
static inline dreg d_add_bytes(dreg sum, preg codes, preg x) { return _mm512_dpbusd_epi32(sum, codes, x); }
// Sums of fours in place, by S, are those of fours.
static inline dreg d_join(const dreg (&s)[4]) {
  const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(s[0], 4), s[1]);
  return _mm512_add_epi32(upper, _mm512_add_epi32(s[2], _mm512_srai_epi32(s[3], 4)));
}
// 32 whole numbers, the bits above the lowest kBits to `upper` and those to `lower`: bytes, each 8 in the
// order 0 4 1 5 2 6 3 7.
template <int kBits>
static inline void c_store_split(uint8_t* upper, uint8_t* lower, freg low, freg high) {
  const __m512i words =
      _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_cvtps_epi32(low))),
                         _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(high)), 1);
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
  const __m256i above = _mm512_cvtepi16_epi8(_mm512_srai_epi16(words, kBits));
  const __m256i below = _mm512_cvtepi16_epi8(_mm512_and_si512(words, _mm512_set1_epi16((1 << kBits) - 1)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(upper), _mm256_shuffle_epi8(above, order));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lower), _mm256_shuffle_epi8(below, order));
}
static inline preg p_repeat(int32_t two) { return _mm512_set1_epi32(two); }
static inline dreg d_zero() { return _mm512_setzero_si512(); }
static inline dreg d_add(dreg sum, preg codes, preg x) { return _mm512_dpwssd_epi32(sum, codes, x); }
static inline dreg d_add_sums(dreg a, dreg b) { return _mm512_add_epi32(a, b); }
static inline ireg d_close(dreg sum) { return sum; }

}  // namespace RAMET_ISA
}  // namespace ramet
