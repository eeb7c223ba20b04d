// The one vector of the kernels: 16 floats (or 16 pairs of 16-bit integers, or their dot products), whatever
// the machine's registers hold.
//
// An instruction set is a header in simd/ with a few one-line primitives on its own register; this file makes
// 16 lanes of them. A file that includes it is compiled once per set, with RAMET_ISA naming the set, and
// everything here is static, so that no code built for one set can be linked into another.
#pragma once
#ifndef RAMET_ISA
#error "compile with -DRAMET_ISA=avx512, avx_vnni, avx2, neon or generic, and -DRAMET_SIMD naming its header"
#endif
#include RAMET_SIMD

#include "simd/scalar.h"

namespace ramet {
namespace RAMET_ISA {

constexpr int kRegs = 16 / kLanes;

struct f32x16 {
  freg r[kRegs];
};
struct codes16 {  // of 16 outputs, 32 bits each
  creg r[kRegs];
};
struct pairs16 {
  preg r[kRegs];
};
struct dots16 {
  dreg r[kRegs];
};

// GCC takes arrays apart into registers where loops over them are unrolled, and functions they go through
// inlined, early on; otherwise accumulators go through memory.
#define RAMET_INLINE __attribute__((always_inline)) inline
#define RAMET_UNROLL _Pragma("GCC unroll 16")
#define RAMET_EACH RAMET_UNROLL for (int i = 0; i < kRegs; ++i)

static inline f32x16 set(float x) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_set(x);
  return y;
}
static inline f32x16 load(const float* p) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_load(p + i * kLanes);
  return y;
}
static inline f32x16 load_f16(const uint16_t* p) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_load_f16(p + i * kLanes);
  return y;
}
static inline f32x16 load_bf16(const uint16_t* p) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_load_bf16(p + i * kLanes);
  return y;
}
static inline void store(float* p, const f32x16& x) { RAMET_EACH f_store(p + i * kLanes, x.r[i]); }
static inline void store_bf16(uint16_t* p, const f32x16& x) {
  RAMET_EACH f_store_bf16(p + i * kLanes, x.r[i]);
}
static inline void store_int16(int16_t* p, const f32x16& x) {
  RAMET_EACH f_store_int16(p + i * kLanes, x.r[i]);
}

// The first n of 16 lanes; the others are zero.
static inline f32x16 load_some(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}
static inline f32x16 load_bf16_some(const uint16_t* p, int64_t n) {
  if (n >= 16) return load_bf16(p);
  uint16_t lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(uint16_t));
  return load_bf16(lanes);
}
static inline f32x16 load_int8(const int8_t* p) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_load_int8(p + i * kLanes);
  return y;
}
static inline f32x16 load_int8_some(const int8_t* p, int64_t n) {
  if (n >= 16) return load_int8(p);
  int8_t lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n));
  return load_int8(lanes);
}
static inline void store_int8_some(int8_t* p, const f32x16& whole, int64_t n) {
  int16_t lanes[16];
  store_int16(lanes, whole);
  for (int64_t i = 0; i < 16 && i < n; ++i) p[i] = static_cast<int8_t>(lanes[i]);
}
static inline void store_some(float* p, const f32x16& x, int64_t n) {
  if (n >= 16) return store(p, x);
  float lanes[16];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}

#define RAMET_BINARY(name, primitive)                           \
  static inline f32x16 name(const f32x16& a, const f32x16& b) { \
    f32x16 y;                                                   \
    RAMET_EACH y.r[i] = primitive(a.r[i], b.r[i]);              \
    return y;                                                   \
  }
RAMET_BINARY(add, f_add)
RAMET_BINARY(sub, f_sub)
RAMET_BINARY(mul, f_mul)
RAMET_BINARY(div, f_div)
RAMET_BINARY(max, f_max)  // of NaN and a number: x86 gives the second
RAMET_BINARY(min, f_min)
#undef RAMET_BINARY

static inline f32x16 abs(const f32x16& a) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_abs(a.r[i]);
  return y;
}
static inline f32x16 fma(const f32x16& a, const f32x16& b, const f32x16& c) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_fma(a.r[i], b.r[i], c.r[i]);
  return y;
}
static inline f32x16 pow2(const f32x16& n) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_pow2(n.r[i]);
  return y;
}

// Lane by lane, x or y: x where a >= b, or where the lane's bit is set.
static inline f32x16 where_at_least(const f32x16& a, const f32x16& b, const f32x16& x, const f32x16& y) {
  f32x16 z;
  RAMET_EACH z.r[i] = f_where_at_least(a.r[i], b.r[i], x.r[i], y.r[i]);
  return z;
}

// One NaN stands for all: which of two a sum keeps is up to the order in which a compiler names them, and
// that is another one in another tile.
static inline f32x16 one_nan(const f32x16& x) {
  return where_at_least(x, set(-__builtin_inff()), x, set(__builtin_nanf("")));
}
static inline f32x16 where_bits(uint32_t bits, const f32x16& x, const f32x16& y) {
  f32x16 z;
  RAMET_EACH z.r[i] = f_where_bits(bits >> (i * kLanes), x.r[i], y.r[i]);
  return z;
}
// The 16 bits of a >= b.
static inline uint32_t at_least_bits(const f32x16& a, const f32x16& b) {
  uint32_t bits = 0;
  RAMET_EACH bits |= f_at_least_bits(a.r[i], b.r[i]) << (i * kLanes);
  return bits;
}

// a * 2^n for n + 1.5 * 2^23, as round() makes it on its way; both a and the result are normal.
static inline f32x16 add_exponent(const f32x16& a, const f32x16& n) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_add_exponent(a.r[i], n.r[i]);
  return y;
}

// Half to even, for |x| < 2^22: the sum with 1.5 * 2^23 has no room for a fraction.
static inline f32x16 round(const f32x16& x) {
  const f32x16 magic = set(12582912.0f);
  return sub(add(x, magic), magic);
}

// The order of a reduction is fixed: halves are folded onto each other.
static inline float reduce_add(f32x16 x) {
  for (int half = kRegs / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x.r[i] = f_add(x.r[i], x.r[i + half]);
  }
  return f_reduce_add(x.r[0]);
}
static inline float reduce_max(f32x16 x) {
  for (int half = kRegs / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x.r[i] = f_max(x.r[i], x.r[i + half]);
  }
  return f_reduce_max(x.r[0]);
}

// e^x within 2 ulp on [-87, 88]; 0 below -88, and e^88 above 88. x = n ln 2 + r, |r| <= ln 2 / 2, and a
// Taylor polynomial of degree 7 in r.
static inline f32x16 exp(const f32x16& x) {
  const f32x16 clamped = min(set(88.0f), max(set(-88.0f), x));
  const f32x16 n = round(mul(clamped, set(1.44269504f)));
  const f32x16 r = fma(n, set(2.12194440e-4f), fma(n, set(-0.693359375f), clamped));
  f32x16 p = set(1.0f / 5040);
  p = fma(p, r, set(1.0f / 720));
  p = fma(p, r, set(1.0f / 120));
  p = fma(p, r, set(1.0f / 24));
  p = fma(p, r, set(1.0f / 6));
  p = fma(p, r, set(0.5f));
  p = fma(p, r, set(1.0f));
  p = fma(p, r, set(1.0f));
  return mul(p, pow2(n));
}

// Within 2 ulp: 1 - 2 / (e^2x + 1), and near zero, where that loses bits, Cephes' polynomial.
static inline f32x16 tanh(const f32x16& x) {
  const f32x16 far = sub(set(1.0f), div(set(2.0f), add(exp(add(x, x)), set(1.0f))));
  const f32x16 z = mul(x, x);
  f32x16 p = set(-5.70498872745e-3f);
  p = fma(p, z, set(2.06390887954e-2f));
  p = fma(p, z, set(-5.37397155531e-2f));
  p = fma(p, z, set(1.33314422036e-1f));
  p = fma(p, z, set(-3.33332819422e-1f));
  return where_at_least(abs(x), set(0.625f), far, fma(mul(p, z), x, x));
}

// Rows become columns: four rounds of interleaving row i with row i + 8.
static inline void transpose(f32x16 (&x)[16]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    f32x16 y[16];
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      freg both[2 * kRegs];
      RAMET_EACH f_zip(x[k].r[i], x[k + 8].r[i], both[2 * i], both[2 * i + 1]);
      RAMET_EACH y[2 * k].r[i] = both[i];
      RAMET_EACH y[2 * k + 1].r[i] = both[i + kRegs];
    }
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) x[k] = y[k];
  }
}

// Pairs of bfloat16: the first of each, and the second.
static inline void load_bf16_pairs(const uint16_t* p, f32x16& first, f32x16& second) {
  RAMET_EACH {
    const creg pairs = c_load(reinterpret_cast<const uint8_t*>(p + i * kLanes * 2));
    first.r[i] = f_from_lower(pairs);
    second.r[i] = f_from_upper(pairs);
  }
}

// Products of codes with pairs of 16-bit inputs that all 16 outputs share. Sums are exact.
static inline codes16 load_codes(const uint8_t* p) {
  codes16 y;
  RAMET_EACH y.r[i] = c_load(p + i * kLanes * 4);
  return y;
}
template <int S>
static inline pairs16 byte_pairs(const codes16& c) {  // byte S of each word, signed
  pairs16 y;
  RAMET_EACH y.r[i] = c_bytes<S>(c.r[i]);
  return y;
}
template <int S>
static inline pairs16 nibble_pairs(const codes16& c) {  // nibble S of each word, unsigned
  pairs16 y;
  RAMET_EACH y.r[i] = c_nibbles<S>(c.r[i]);
  return y;
}
#ifdef RAMET_BYTES
template <int S>
static inline pairs16 nibble_fours(const codes16& c) {  // four nibbles of each word as unsigned bytes
  pairs16 y;
  RAMET_EACH y.r[i] = c_fours<S>(c.r[i]);
  return y;
}
template <int S>
static inline pairs16 nibble_fours_in_place(const codes16& c) {
  pairs16 y;
  RAMET_EACH y.r[i] = c_fours_in_place<S>(c.r[i]);
  return y;
}
static inline dots16 join_in_place(const dots16& a, const dots16& b, const dots16& c, const dots16& d) {
  dots16 y;
  RAMET_EACH y.r[i] = d_join({a.r[i], b.r[i], c.r[i], d.r[i]});
  return y;
}
static inline dots16 dot_bytes(const dots16& sum, const pairs16& codes, preg x) {  // x: four signed bytes
  dots16 y;
  RAMET_EACH y.r[i] = d_add_bytes(sum.r[i], codes.r[i], x);
  return y;
}
#endif
static inline preg two_inputs(const int16_t* x) {
  int32_t two;
  std::memcpy(&two, x, sizeof two);
  return p_repeat(two);
}
static inline dots16 no_dots() {
  dots16 y;
  RAMET_EACH y.r[i] = d_zero();
  return y;
}
static inline dots16 dot(const dots16& sum, const pairs16& codes, preg x) {
  dots16 y;
  RAMET_EACH y.r[i] = d_add(sum.r[i], codes.r[i], x);
  return y;
}
static inline dots16 add(const dots16& a, const dots16& b) {
  dots16 y;
  RAMET_EACH y.r[i] = d_add_sums(a.r[i], b.r[i]);
  return y;
}
static inline f32x16 to_float(const dots16& sum) {
  f32x16 y;
  RAMET_EACH y.r[i] = f_from_int(d_close(sum.r[i]));
  return y;
}

}  // namespace RAMET_ISA
}  // namespace ramet
