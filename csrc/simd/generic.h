// One register of 4 lanes in the vector types of GCC and Clang, for any machine: they become whatever it has.
#pragma once
#include <cstdint>
#include <cstring>

namespace ramet {
namespace RAMET_ISA {

typedef float freg __attribute__((vector_size(16)));    // kLanes floats
typedef int32_t ireg __attribute__((vector_size(16)));  // kLanes int32
typedef ireg creg;                                      // kLanes times two words of packed codes
typedef ireg dreg;                                      // kLanes sums of products of pairs
struct preg {  // kLanes pairs, as floats: not every machine multiplies int16 to int32
  freg first, second;
};
typedef uint32_t ureg __attribute__((vector_size(16)));  // bits of floats
typedef uint16_t hreg __attribute__((vector_size(8)));   // kLanes 16-bit floats
typedef int8_t breg __attribute__((vector_size(4)));     // kLanes bytes

constexpr int kLanes = 4;
constexpr int kLinearRows = 2;    // tile of a matrix product, rows
constexpr int kLinearChains = 2;  // independent accumulators that fit
constexpr int kCodeRows = 2;      // tile of a quantised product, rows
constexpr int kQueryTile = 1;     // tile of attention, queries
constexpr int kDimTile = 2;       // tile of attention, vectors of head dims

template <class To, class From>
static inline To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "a register of the same size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
template <class To, class From>
static inline To load_as(const From* p) {
  To to;
  std::memcpy(&to, p, sizeof to);
  return to;
}

static inline freg f_set(float x) { return freg{x, x, x, x}; }
static inline freg f_load(const float* p) { return load_as<freg>(p); }
static inline void f_store(float* p, freg x) { std::memcpy(p, &x, sizeof x); }
static inline freg f_add(freg a, freg b) { return a + b; }
static inline freg f_sub(freg a, freg b) { return a - b; }
static inline freg f_mul(freg a, freg b) { return a * b; }
static inline freg f_div(freg a, freg b) { return a / b; }
static inline freg f_max(freg a, freg b) { return a > b ? a : b; }
static inline freg f_min(freg a, freg b) { return a < b ? a : b; }
static inline freg f_abs(freg a) { return same_bits<freg>(same_bits<ireg>(a) & 0x7fffffff); }
static inline freg f_fma(freg a, freg b, freg c) {
  return a * b + c;
}  // rounds twice: fmaf may be a slow call
static inline freg f_from_int(ireg a) { return __builtin_convertvector(a, freg); }

static inline freg f_pow2(freg n) {  // n whole, -127 (gives 0) to 127
  return same_bits<freg>((__builtin_convertvector(n, ireg) + 127) << 23);
}
static inline freg f_add_exponent(freg a, freg n) {
  return same_bits<freg>(same_bits<ureg>(a) + (same_bits<ureg>(n) << 23));
}

static inline freg f_load_f16(const uint16_t* p) {
  const ureg bits = __builtin_convertvector(load_as<hreg>(p), ureg), rest = bits & 0x7fff;
  const freg scaled = same_bits<freg>(rest << 13) * 0x1p112f;         // moves the exponent, subnormals too
  const ureg special = same_bits<ureg>(rest >= 0x7c00) & 0x7f800000;  // NaN and infinities
  return same_bits<freg>(same_bits<ureg>(scaled) | special | (bits & 0x8000) << 16);
}
static inline freg f_load_bf16(const uint16_t* p) {
  return same_bits<freg>(__builtin_convertvector(load_as<hreg>(p), ureg) << 16);
}
static inline freg f_load_int8(const int8_t* p) { return __builtin_convertvector(load_as<breg>(p), freg); }
static inline void f_store_bf16(uint16_t* p, freg x) {
  const ureg bits = same_bits<ureg>(x), upper = bits >> 16;
  const ureg rounded = (bits + 0x7fff + (upper & 1)) >> 16;
  const hreg halves = __builtin_convertvector(x == x ? rounded : upper | 0x40, hreg);
  std::memcpy(p, &halves, sizeof halves);
}
static inline void f_store_int16(int16_t* p, freg whole) {
  const hreg words = __builtin_convertvector(__builtin_convertvector(whole, ireg), hreg);
  std::memcpy(p, &words, sizeof words);
}

static inline freg f_where_at_least(freg a, freg b, freg x, freg y) { return a >= b ? x : y; }
static inline uint32_t f_at_least_bits(freg a, freg b) {
  const ireg hits = (a >= b) & ireg{1, 2, 4, 8};
  return static_cast<uint32_t>((hits[0] | hits[1]) | (hits[2] | hits[3]));
}
static inline freg f_where_bits(uint32_t bits, freg x, freg y) {
  const auto all = static_cast<int32_t>(bits);
  return (ireg{all, all, all, all} & ireg{1, 2, 4, 8}) != 0 ? x : y;
}

static inline float f_reduce_add(freg x) { return (x[0] + x[2]) + (x[1] + x[3]); }
static inline float f_reduce_max(freg x) {
  const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}

static inline void f_zip(freg a, freg b, freg& low, freg& high) {
  low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

static inline creg c_load(const uint8_t* p) { return load_as<creg>(p); }
// The bfloat16 in the lower and in the upper half of each 32 bits.
static inline freg f_from_lower(creg c) { return same_bits<freg>(c << 16); }
static inline freg f_from_upper(creg c) { return same_bits<freg>(c & -65536); }
template <int S>
static inline preg c_bytes(creg c) {
  return {f_from_int(c << (24 - 8 * S) >> 24), f_from_int(c << (8 - 8 * S) >> 24)};
}
template <int S>
static inline preg c_nibbles(creg c) {
  return {f_from_int(c >> 4 * S & 15), f_from_int(c >> (16 + 4 * S) & 15)};
}
static inline preg p_repeat(int32_t two) {
  return {f_set(static_cast<float>(static_cast<int16_t>(two))), f_set(static_cast<float>(two >> 16))};
}
static inline dreg d_zero() { return dreg{}; }
static inline dreg d_add(dreg sum, const preg& codes, const preg& x) {  // 2 * 128 * 32767 < 2^24: exact
  return sum + __builtin_convertvector(codes.first * x.first + codes.second * x.second, ireg);
}
static inline dreg d_add_sums(dreg a, dreg b) { return a + b; }
static inline ireg d_close(dreg sum) { return sum; }

}  // namespace RAMET_ISA
}  // namespace ramet
