// What is done to a row on its way into a product.
#pragma once
#include <utility>
#include <vector>

#include "ops.h"

namespace ramet {

class Gate;

// The row as it is.
class Prologue {
public:
  Prologue() = default;
  virtual ~Prologue() = default;
  Prologue(const Prologue&) = delete;
  Prologue& operator=(const Prologue&) = delete;

  // Length of a row that becomes one of k numbers; 0 where none does.
  virtual int64_t width_in(int64_t k) const { return k; }
  // The row that the product is of: `x` itself, or one made in `space`, which may be where x is.
  virtual const float* apply(const Ops&, const float* x, int64_t /*k*/, float* /*space*/) const { return x; }
  // Where number i is made of numbers i and k + i alone.
  virtual const Gate* gate() const { return nullptr; }
};

class RmsNorm final : public Prologue {
public:
  RmsNorm(std::vector<float> weight, float eps) : weight_(std::move(weight)), eps_(eps) {}

  int64_t width_in(int64_t k) const override { return k == static_cast<int64_t>(weight_.size()) ? k : 0; }
  const float* apply(const Ops& ops, const float* x, int64_t k, float* space) const override {
    ops.rms_norm(x, weight_.data(), eps_, k, space, 0, 1);
    return space;
  }

private:
  const std::vector<float> weight_;
  const float eps_;
};

// What the first half of a row lets through of the second one.
class Gate : public Prologue {
public:
  int64_t width_in(int64_t k) const override { return 2 * k; }
  const float* apply(const Ops& ops, const float* x, int64_t k, float* space) const override {
    multiply(ops, x, x + k, k, space);
    return space;
  }
  const Gate* gate() const override { return this; }
  // Of n numbers of both halves.
  virtual void multiply(const Ops& ops, const float* gate, const float* up, int64_t n, float* y) const = 0;
};

class SiluMul final : public Gate {
public:
  void multiply(const Ops& ops, const float* gate, const float* up, int64_t n, float* y) const override {
    ops.silu_mul(gate, up, n, y);
  }
};

class GeluMul final : public Gate {
public:
  void multiply(const Ops& ops, const float* gate, const float* up, int64_t n, float* y) const override {
    ops.gelu_mul(gate, up, n, y);
  }
};

class Scale final : public Prologue {
public:
  explicit Scale(float factor) : factor_(factor) {}
  const float* apply(const Ops& ops, const float* x, int64_t k, float* space) const override {
    ops.scale(x, factor_, k, space);
    return space;
  }

private:
  const float factor_;
};

}  // namespace ramet
