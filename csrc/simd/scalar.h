// Single numbers: 16-bit floats.
#pragma once
#include <cstdint>
#include <cstring>

namespace ramet {
namespace RAMET_ISA {

static inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
static inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return float_of_bits(sign | ((rest << 13) + 0x38000000));
  return float_of_bits(sign | bits_of_float(static_cast<float>(rest) * 0x1p-24f));
}
static inline float bf16_to_float(uint16_t h) { return float_of_bits(static_cast<uint32_t>(h) << 16); }
static inline uint16_t float_to_bf16(float x) {  // half to even; NaN stays NaN
  const uint32_t bits = bits_of_float(x), upper = bits >> 16;
  if (x != x) return static_cast<uint16_t>(upper | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (upper & 1)) >> 16);
}

}  // namespace RAMET_ISA
}  // namespace ramet
