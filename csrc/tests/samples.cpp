#include "tests/samples.h"

#include <cstring>

namespace ramet {

Sample make_sample(Random& random, Format format, int64_t n, int64_t k) {
  Sample s;
  const auto count = static_cast<size_t>(n * k);
  s.data.resize(count * 4);
  s.values.resize(count);
  s.scales.assign(count / 32 + 1, 0x2c00);  // 1/16
  s.mins.assign(count / 32 + 1, 0xb800);    // -1/2
  for (size_t i = 0; i < count; ++i) {
    const auto code = static_cast<uint8_t>(random.bits() >> 24);
    switch (format) {
      case Format::f32: {
        s.values[i] = random.real();
        std::memcpy(&s.data[4 * i], &s.values[i], 4);
        break;
      }
      case Format::bf16:
      case Format::f16: {  // whole numbers up to 7: their upper bits are the same exponent and mantissa
        const uint16_t halves[2][4] = {{0x0000, 0x3c00, 0xc000, 0x4500}, {0x0000, 0x3f80, 0xc000, 0x40a0}};
        const float whole[4] = {0, 1, -2, 5};
        std::memcpy(&s.data[2 * i], &halves[format == Format::bf16][code & 3], 2);
        s.values[i] = whole[code & 3];
        break;
      }
      case Format::q8:
        s.data[i] = code;
        s.values[i] = static_cast<float>(static_cast<int8_t>(code)) / 16;
        break;
      case Format::q4:
        s.data[i] = code & 15;
        s.values[i] = static_cast<float>(code & 15) / 16 - 0.5f;
        break;
    }
  }
  s.part = {format, n, k, s.data.data(), s.scales.data(), s.mins.data()};
  return s;
}

}  // namespace ramet
