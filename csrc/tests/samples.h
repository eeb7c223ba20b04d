// Numbers and matrices to check with: the same ones in every run.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace ramet {

class Random {
public:
  uint32_t bits() { return state_ = state_ * 1664525 + 1013904223; }
  float real() { return static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f; }  // -1 to 1
  std::vector<float> reals(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = real();
    return x;
  }

private:
  uint32_t state_ = 1;
};

// A matrix with the values that its bytes stand for.
struct Sample {
  std::vector<uint8_t> data;
  std::vector<uint16_t> scales, mins;
  std::vector<float> values;
  Part part{};
};

Sample make_sample(Random& random, Format format, int64_t n, int64_t k);

}  // namespace ramet
