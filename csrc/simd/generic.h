// One register of 4 lanes in plain C++, for any machine; compilers turn its loops into what there is.
#pragma once
#include <cstdint>
#include <cstring>

#include "scalar.h"

namespace ramet {
namespace RAMET_ISA {

struct freg {
  float v[4];
};  // kLanes floats
struct ireg {
  int32_t v[4];
};  // kLanes int32
struct creg {
  uint8_t v[16];
};  // kLanes groups of four 8-bit codes
using nreg = ireg;  // sums of products with 4-bit codes

constexpr int kLanes = 4;
constexpr int kLinearRows = 2;    // tile of a matrix product, rows
constexpr int kLinearChains = 2;  // independent accumulators that fit
constexpr int kQueryTile = 1;     // tile of attention, queries
constexpr int kDimTile = 1;       // tile of attention, vectors of head dims

template <class Op>
static inline freg f_each(Op op) {
  freg r;
  for (int i = 0; i < 4; ++i) r.v[i] = op(i);
  return r;
}

static inline freg f_set(float x) {
  return f_each([&](int) { return x; });
}
static inline freg f_load(const float* p) {
  return f_each([&](int i) { return p[i]; });
}
static inline void f_store(float* p, freg x) { std::memcpy(p, x.v, sizeof x.v); }
static inline freg f_add(freg a, freg b) {
  return f_each([&](int i) { return a.v[i] + b.v[i]; });
}
static inline freg f_sub(freg a, freg b) {
  return f_each([&](int i) { return a.v[i] - b.v[i]; });
}
static inline freg f_mul(freg a, freg b) {
  return f_each([&](int i) { return a.v[i] * b.v[i]; });
}
static inline freg f_div(freg a, freg b) {
  return f_each([&](int i) { return a.v[i] / b.v[i]; });
}
static inline freg f_max(freg a, freg b) {
  return f_each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
static inline freg f_min(freg a, freg b) {
  return f_each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
static inline freg f_abs(freg a) {
  return f_each([&](int i) { return __builtin_fabsf(a.v[i]); });
}
static inline freg f_fma(freg a, freg b, freg c) {  // rounds twice: fmaf is a slow call where there is no FMA
  return f_each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
static inline freg f_from_int(ireg a) {
  return f_each([&](int i) { return static_cast<float>(a.v[i]); });
}

static inline freg f_pow2(freg n) {  // n whole, -127 (gives 0) to 127
  return f_each([&](int i) { return float_of_bits(static_cast<uint32_t>(to_int(n.v[i]) + 127) << 23); });
}

static inline freg f_load_f16(const uint16_t* p) {
  return f_each([&](int i) { return half_to_float(p[i]); });
}
static inline freg f_load_bf16(const uint16_t* p) {
  return f_each([&](int i) { return bf16_to_float(p[i]); });
}
static inline void f_store_bf16(uint16_t* p, freg x) {
  for (int i = 0; i < 4; ++i) p[i] = float_to_bf16(x.v[i]);
}
static inline void f_store_int8(int8_t* p, freg whole) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<int8_t>(to_int(whole.v[i]));
}

static inline float f_reduce_add(freg x) { return (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]); }
static inline float f_reduce_max(freg x) {
  const float a = x.v[0] > x.v[2] ? x.v[0] : x.v[2], b = x.v[1] > x.v[3] ? x.v[1] : x.v[3];
  return a > b ? a : b;
}

static inline void f_zip(freg a, freg b, freg& low, freg& high) {
  low = {{a.v[0], b.v[0], a.v[1], b.v[1]}};
  high = {{a.v[2], b.v[2], a.v[3], b.v[3]}};
}

static inline creg c_load(const uint8_t* p) {
  creg c;
  std::memcpy(c.v, p, sizeof c.v);
  return c;
}
static inline creg c_low(creg c) {
  for (uint8_t& x : c.v) x &= 15;
  return c;
}
static inline creg c_high(creg c) {
  for (uint8_t& x : c.v) x = static_cast<uint8_t>(x >> 4);
  return c;
}
static inline creg c_repeat(int32_t four) {
  creg c;
  for (int i = 0; i < 4; ++i) std::memcpy(c.v + 4 * i, &four, 4);
  return c;
}

static inline creg c_signed(creg c) { return c; }
static inline ireg i_start(int32_t) { return {{0, 0, 0, 0}}; }
static inline ireg i_dot(ireg sum, creg codes, creg x) {
  for (int i = 0; i < 16; ++i) {
    sum.v[i / 4] += static_cast<int8_t>(codes.v[i]) * static_cast<int8_t>(x.v[i]);
  }
  return sum;
}

static inline nreg n_zero() { return i_start(0); }
static inline nreg n_dot(nreg sum, creg nibbles, creg x) { return i_dot(sum, nibbles, x); }
static inline ireg n_close(nreg sum) { return sum; }

}  // namespace RAMET_ISA
}  // namespace ramet
