// One register of 4 lanes: AArch64 with the dot product (Armv8.2 and later).
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace ramet {
namespace RAMET_ISA {

using freg = float32x4_t;  // kLanes floats
using ireg = int32x4_t;    // kLanes int32
using creg = uint8x16_t;   // kLanes groups of four 8-bit codes
using nreg = int32x4_t;    // sums of products with 4-bit codes

constexpr int kLanes = 4;
constexpr int kLinearRows = 2;    // tile of a matrix product, rows
constexpr int kLinearChains = 4;  // independent accumulators that fit
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

static inline freg f_load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline freg f_load_bf16(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline void f_store_bf16(uint16_t* p, freg x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x), upper = vshrq_n_u32(bits, 16);
  const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
  const uint32x4_t quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
  vst1_u16(p, vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet)));
}
static inline void f_store_int8(int8_t* p, freg whole) {
  const int16x4_t words = vqmovn_s32(vcvtq_s32_f32(whole));
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
  std::memcpy(p, &bytes, 4);
}

static inline float f_reduce_add(freg x) { return vaddvq_f32(x); }
static inline float f_reduce_max(freg x) { return vmaxvq_f32(x); }

static inline void f_zip(freg a, freg b, freg& low, freg& high) {
  low = vzip1q_f32(a, b);
  high = vzip2q_f32(a, b);
}

static inline creg c_load(const uint8_t* p) { return vld1q_u8(p); }
static inline creg c_low(creg c) { return vandq_u8(c, vdupq_n_u8(15)); }
static inline creg c_high(creg c) { return vshrq_n_u8(c, 4); }
static inline creg c_repeat(int32_t four) { return vreinterpretq_u8_s32(vdupq_n_s32(four)); }

static inline creg c_signed(creg c) { return c; }
static inline ireg i_start(int32_t) { return vdupq_n_s32(0); }
static inline ireg i_dot(ireg sum, creg codes, creg x) {
  return vdotq_s32(sum, vreinterpretq_s8_u8(codes), vreinterpretq_s8_u8(x));
}

static inline nreg n_zero() { return vdupq_n_s32(0); }
static inline nreg n_dot(nreg sum, creg nibbles, creg x) { return i_dot(sum, nibbles, x); }
static inline ireg n_close(nreg sum) { return sum; }

}  // namespace RAMET_ISA
}  // namespace ramet
