#include <cmath>
#include <cstring>

#include "tests/expect.h"
#include "tests/samples.h"
#include "tests/selfcheck.h"

namespace ramet {
namespace {

void check_linear(Kernels& kernels, Format format, int64_t n, int64_t k, int64_t rows = 13) {
  Random random;
  const Sample sample = make_sample(random, format, n, k);
  PackedWeight packed;
  for (int i = 0; i < 2; ++i) kernels.pack(sample.part, packed);
  const int64_t width = 2 * n;
  std::vector<float> x = random.reals(rows * k), bias = random.reals(width);
  if (is_quantized(format)) {  // inputs that quantise without loss, so that plain loops give the result
    const auto most = static_cast<float>(max_code(format == Format::q4 ? Input::codes12 : Input::codes16));
    for (float& v : x) v = std::round(v * most);
    for (int64_t i = 0; i < rows * k; i += kGroup) x[static_cast<size_t>(i)] = most;
  }
  std::vector<float> want(static_cast<size_t>(rows * width)), got(want.size());
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t o = 0; o < width; ++o) {
      double sum = bias[static_cast<size_t>(o)];
      for (int64_t i = 0; i < k; ++i)
        sum += double{x[static_cast<size_t>(t * k + i)]} * sample.values[static_cast<size_t>(o % n * k + i)];
      want[static_cast<size_t>(t * width + o)] = static_cast<float>(sum);
    }
  }
  const std::string what =
      std::string(kernels.ops().name) + " linear " + std::to_string(static_cast<int>(format));
  kernels.product({x.data(), rows, k}, Prologue(), packed, {bias.data(), got.data(), width, false});
  expect_near(got, want, 1e-4f * static_cast<float>(k), what);
  std::vector<float> row(static_cast<size_t>(width));
  for (int64_t t = 0; t < rows; ++t) {
    kernels.product({x.data() + t * k, 1, k}, Prologue(), packed, {bias.data(), row.data(), width, false});
    expect(std::memcmp(row.data(), got.data() + t * width, row.size() * 4) == 0,
           what + ": a row alone has other bits");
  }
  std::vector<float> embedded(static_cast<size_t>(k));
  for (const int32_t id : {0, static_cast<int32_t>(n - 1), static_cast<int32_t>(width - 1)}) {
    kernels.embed(packed, &id, 1, 1.0f, embedded.data());
    for (int64_t i = 0; i < k; ++i) {
      expect(embedded[static_cast<size_t>(i)] == sample.values[static_cast<size_t>(id % n * k + i)],
             what + ": embed");
    }
  }
}

// Rows with NaN of both signs and infinities, and a bias that is NaN: alone and in company they have one NaN.
void check_nan(Kernels& kernels, Format format) {
  Random random;
  const int64_t rows = 23, n = 37, k = 96;
  const Sample sample = make_sample(random, format, n, k);
  PackedWeight packed;
  kernels.pack(sample.part, packed);
  std::vector<float> x = random.reals(rows * k), bias = random.reals(n), row(static_cast<size_t>(n));
  std::vector<float> got(static_cast<size_t>(rows * n));
  const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
  for (int i = 0; i < 60; ++i) x[random.bits() % x.size()] = odd[random.bits() >> 30];
  bias[20] = -NAN;
  kernels.product({x.data(), rows, k}, Prologue(), packed, {bias.data(), got.data(), n, false});
  for (int64_t t = 0; t < rows; ++t) {
    kernels.product({x.data() + t * k, 1, k}, Prologue(), packed, {bias.data(), row.data(), n, false});
    expect(std::memcmp(row.data(), got.data() + t * n, row.size() * sizeof(float)) == 0,
           std::string(kernels.ops().name) + " linear: NaN alone has other bits");
  }
}

// A prologue in a product gives the bits of the operation before it.
void check_prologue(Kernels& kernels, Format format, int64_t rows) {
  Random random;
  const int64_t n = 37, k = 96;
  const Sample sample = make_sample(random, format, n, k);
  PackedWeight packed;
  kernels.pack(sample.part, packed);
  const std::vector<float> x = random.reals(rows * 2 * k), weight = random.reals(k),
                           before = random.reals(rows * n);
  std::vector<float> made(static_cast<size_t>(rows * k)), want(before), got(before), product(before.size());
  const std::string what = std::string(kernels.ops().name) + " prologue";
  const auto compare = [&](const Prologue& prologue, int64_t width) {
    kernels.product({made.data(), rows, k}, Prologue(), packed, {nullptr, product.data(), n, false});
    for (size_t i = 0; i < want.size(); ++i) want[i] = before[i] + product[i];
    got = before;
    kernels.product({x.data(), rows, width}, prologue, packed, {nullptr, got.data(), n, true});
    expect(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0, what);
  };
  kernels.rms_norm(x.data(), weight.data(), 1e-5f, rows, k, made.data());
  compare(RmsNorm(weight, 1e-5f), k);
  kernels.gate_mul(SiluMul(), x.data(), rows, k, made.data());
  compare(SiluMul(), 2 * k);
}

}  // namespace

void check_products(Kernels& kernels) {
  for (const Format format : {Format::f32, Format::f16, Format::bf16, Format::q8, Format::q4}) {
    check_linear(kernels, format, 37, 96);
    check_linear(kernels, format, 16, 32);
    for (const int64_t rows : {1, 5, 17, 70}) check_linear(kernels, format, 37, 160, rows);
    for (const int64_t rows : {1, 3, 45}) check_prologue(kernels, format, rows);
    check_nan(kernels, format);
  }
  check_linear(kernels, Format::f32, 5, 7);
}

}  // namespace ramet
