#include <cmath>

#include "tests/expect.h"
#include "tests/samples.h"
#include "tests/selfcheck.h"

namespace ramet {
namespace {

void check_rows_of(Kernels& kernels, int64_t width) {
  Random random;
  const int64_t rows = 5;
  const std::string name = kernels.ops().name;
  const std::vector<float> x = random.reals(rows * width), weight = random.reals(width);
  std::vector<float> got(x.size()), want(x.size());
  kernels.rms_norm(x.data(), weight.data(), 1e-5f, rows, width, got.data());
  for (int64_t i = 0; i < rows * width; ++i) {
    double squares = 0;
    for (int64_t j = 0; j < width; ++j) squares += std::pow(x[static_cast<size_t>(i / width * width + j)], 2);
    want[static_cast<size_t>(i)] =
        static_cast<float>(x[static_cast<size_t>(i)] * weight[static_cast<size_t>(i % width)] /
                           std::sqrt(squares / static_cast<double>(width) + 1e-5));
  }
  expect_near(got, want, 1e-5f, name + " rms_norm");

  const std::vector<float> gate_up = random.reals(rows * width * 2);
  kernels.gate_mul(SiluMul(), gate_up.data(), rows, width, got.data());
  for (int64_t i = 0; i < rows * width; ++i) {
    const float gate = gate_up[static_cast<size_t>(i / width * 2 * width + i % width)];
    want[static_cast<size_t>(i)] =
        gate / (1 + std::exp(-gate)) * gate_up[static_cast<size_t>((i / width * 2 + 1) * width + i % width)];
  }
  expect_near(got, want, 1e-5f, name + " silu_mul");

  kernels.gate_mul(GeluMul(), gate_up.data(), rows, width, got.data());
  for (int64_t i = 0; i < rows * width; ++i) {
    const double gate = gate_up[static_cast<size_t>(i / width * 2 * width + i % width)];
    const double gelu =
        gate / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate)));
    want[static_cast<size_t>(i)] =
        static_cast<float>(gelu * gate_up[static_cast<size_t>((i / width * 2 + 1) * width + i % width)]);
  }
  expect_near(got, want, 1e-5f, name + " gelu_mul");

  got = x;
  kernels.soft_cap(got.data(), 0.5f, rows * width);
  for (size_t i = 0; i < x.size(); ++i) want[i] = 0.5f * std::tanh(2 * x[i]);
  expect_near(got, want, 1e-6f, name + " soft_cap");

  std::vector<float> sums = x;
  kernels.add(sums.data(), got.data(), rows * width);
  for (size_t i = 0; i < x.size(); ++i) expect(sums[i] == x[i] + got[i], name + " add");

  const int64_t half = width / 2;
  const std::vector<float> cosines = random.reals(rows * half), sines = random.reals(rows * half);
  std::vector<float> rotated = x;
  kernels.rope(rotated.data(), cosines.data(), sines.data(), rows, 1, width, half);
  want = x;
  for (int64_t i = 0; i < rows * half; ++i) {
    const auto low = static_cast<size_t>(i / half * width + i % half), high = low + static_cast<size_t>(half);
    const float c = cosines[static_cast<size_t>(i)], s = sines[static_cast<size_t>(i)];
    want[low] = x[low] * c - x[high] * s;
    want[high] = x[high] * c + x[low] * s;
  }
  expect_near(rotated, want, 1e-6f, name + " rope");
}

}  // namespace

void check_rows(Kernels& kernels) {
  for (const int64_t width : {6, 16, 100}) check_rows_of(kernels, width);
}

}  // namespace ramet
