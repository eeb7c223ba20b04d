// One register of 4 lanes: AArch64 with the dot product (Armv8.2 and later).
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace ramet {
namespace RAMET_ISA {

using freg = float32x4_t;  // kLanes floats
using ireg = int32x4_t;    // kLanes int32
using creg = uint16x8_t;   // kLanes times two words of packed codes
using preg = int16x8_t;    // kLanes pairs of int16
using dreg = int32x4x2_t;  // kLanes sums of products of pairs, still open: both products of a pair

constexpr int kLanes = 4;
constexpr int kLinearRows = 2;    // tile of a matrix product, rows
constexpr int kLinearChains = 4;  // independent accumulators that fit
constexpr int kCodeRows = 2;      // tile of a quantised product, rows
constexpr int kQueryTile = 2;     // tile of attention, queries
constexpr int kDimTile = 2;       // tile of attention, vectors of head dims

static inline freg f_set(float x) { return vdupq_n_f32(x); }
static inline freg f_load(const float* p) { return vld1q_f32(p); }
static inline void f_store(float* p, freg x) { vst1q_f32(p, x); }
static inline freg f_add(freg a, freg b) { return vaddq_f32(a, b); }
static inline freg f_sub(freg a, freg b) { return vsubq_f32(a, b); }
static inline freg f_mul(freg a, freg b) { return vmulq_f32(a, b); }
static inline freg f_div(freg a, freg b) { return vdivq_f32(a, b); }
static inline freg f_max(freg a, freg b) { return vmaxq_f32(a, b); }
static inline freg f_min(freg a, freg b) { return vminq_f32(a, b); }
static inline freg f_abs(freg a) { return vabsq_f32(a); }
static inline freg f_fma(freg a, freg b, freg c) { return vfmaq_f32(c, a, b); }
static inline freg f_from_int(ireg a) { return vcvtq_f32_s32(a); }

static inline freg f_pow2(freg n) {  // n whole, -127 (gives 0) to 127
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
static inline freg f_add_exponent(freg a, freg n) {
  return vreinterpretq_f32_u32(
      vaddq_u32(vreinterpretq_u32_f32(a), vshlq_n_u32(vreinterpretq_u32_f32(n), 23)));
}

static inline freg f_load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline freg f_load_bf16(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline freg f_load_int8(const int8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}
static inline void f_store_bf16(uint16_t* p, freg x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x), upper = vshrq_n_u32(bits, 16);
  const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
  const uint32x4_t quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
  vst1_u16(p, vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet)));
}
static inline void f_store_int16(int16_t* p, freg whole) { vst1_s16(p, vmovn_s32(vcvtq_s32_f32(whole))); }

static inline freg f_where_at_least(freg a, freg b, freg x, freg y) {  // x where a >= b, else y
  return vbslq_f32(vcgeq_f32(a, b), x, y);
}
static inline uint32x4_t u_lane_bits() {
  const uint32_t bits[4] = {1, 2, 4, 8};
  return vld1q_u32(bits);
}
static inline uint32_t f_at_least_bits(freg a, freg b) {
  return vaddvq_u32(vandq_u32(vcgeq_f32(a, b), u_lane_bits()));
}
static inline freg f_where_bits(uint32_t bits, freg x, freg y) {
  return vbslq_f32(vtstq_u32(vdupq_n_u32(bits), u_lane_bits()), x, y);
}

static inline float f_reduce_add(freg x) { return vaddvq_f32(x); }
static inline float f_reduce_max(freg x) { return vmaxvq_f32(x); }

static inline void f_zip(freg a, freg b, freg& low, freg& high) {
  low = vzip1q_f32(a, b);
  high = vzip2q_f32(a, b);
}

static inline creg c_load(const uint8_t* p) { return vreinterpretq_u16_u8(vld1q_u8(p)); }
// The bfloat16 in the lower and in the upper half of each 32 bits.
static inline freg f_from_lower(creg c) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(c), 16));
}
static inline freg f_from_upper(creg c) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(c), vdupq_n_u32(0xffff0000)));
}
template <int S>
static inline preg c_bytes(creg c) {
  const int16x8_t words = vreinterpretq_s16_u16(c);
  return vshrq_n_s16(S == 0 ? vshlq_n_s16(words, 8) : words, 8);
}
template <int S>
static inline preg c_nibbles(creg c) {
  if constexpr (S == 0)
    return vreinterpretq_s16_u16(vandq_u16(c, vdupq_n_u16(15)));
  else
    return vreinterpretq_s16_u16(vandq_u16(vshrq_n_u16(c, 4 * S), vdupq_n_u16(15)));
}
static inline preg p_repeat(int32_t two) { return vreinterpretq_s16_s32(vdupq_n_s32(two)); }
static inline dreg d_zero() { return {{vdupq_n_s32(0), vdupq_n_s32(0)}}; }
static inline dreg d_add(dreg sum, preg codes, preg x) {
  return {
      {vmlal_s16(sum.val[0], vget_low_s16(codes), vget_low_s16(x)), vmlal_high_s16(sum.val[1], codes, x)}};
}
static inline dreg d_add_sums(dreg a, dreg b) {
  return {{vaddq_s32(a.val[0], b.val[0]), vaddq_s32(a.val[1], b.val[1])}};
}
static inline ireg d_close(dreg sum) { return vpaddq_s32(sum.val[0], sum.val[1]); }

}  // namespace RAMET_ISA
}  // namespace ramet
