// What is done to each row alone: quantise, norm, activation, rotary, rounding for the KV cache.
#include "ops/codes.h"
#include "ops/halves.h"
#include "ops/ops_isa.h"

namespace ramet {
namespace RAMET_ISA {

// A group with nothing larger is all zeros: max_code / kTiny must be finite.
constexpr float kTiny = 1e-30f;

// By groups of 32: scale = max|x| / max_code, codes half to even. NaN or infinity in a group makes its scale
// NaN and its codes zero, so that every result of the row is NaN.
void quantize(const float* x, const Codes& to, int64_t row, Columns columns) {
  const auto most = static_cast<float>(max_code(to.kind));
  const int64_t first = columns.begin / kGroup, num = columns.num() / kGroup;
  const f32x16 zero = set(0.0f);
  const auto add_odd = [&](int64_t i, const f32x16& sum) {  // stays zero as long as all numbers are finite
    return fma(load(x + i * kGroup), zero, fma(load(x + i * kGroup + 16), zero, sum));
  };
  f32x16 odd = zero;
  for (int64_t i = 0; i < num; ++i) {
    const f32x16 a = load(x + i * kGroup), b = load(x + i * kGroup + 16);
    odd = add_odd(i, odd);
    const float largest = reduce_max(max(abs(a), abs(b)));
    const f32x16 inverse = set(largest > kTiny ? most / largest : 0.0f);
    const f32x16 low = round(mul(a, inverse)), high = round(mul(b, inverse));
    const float scale = largest * (1.0f / most);
    // The sum is of whole numbers under 2^24, so it is exact.
    put_codes(to, row, first + i, low, high, {scale, scale * reduce_add(add(low, high))});
  }
  if (reduce_add(odd) == 0.0f) return;
  for (int64_t i = 0; i < num; ++i) {
    if (reduce_add(add_odd(i, zero)) != 0.0f)
      put_codes(to, row, first + i, zero, zero, {__builtin_nanf(""), __builtin_nanf("")});
  }
}

#ifdef RAMET_TILE_UNIT
// What is not finite has no second half. K is filled up with zeros.
void split(const float* x, const Halves& to, int64_t row, Columns columns) {
  for (int64_t k = columns.begin; k < columns.end; k += 16, x += 16) {
    const f32x16 v = load_some(x, columns.end - k);
    uint16_t first[16];
    store_bf16(first, v);
    const f32x16 rest = sub(v, load_bf16(first));
    const __mmask16 is_number = _mm512_cmp_ps_mask(rest.r[0], rest.r[0], _CMP_ORD_Q);
    const Place place = place_of(to, row, k);
    std::memcpy(place.first, first, sizeof first);
    store_bf16(place.second, f32x16{{_mm512_maskz_mov_ps(is_number, rest.r[0])}});
    if (k + 16 >= to.k && k % 32 == 0) {
      std::memset(place.first + 16, 0, sizeof first);
      std::memset(place.second + 16, 0, sizeof first);
    }
  }
}
#endif

void rms_norm(const float* x, const float* weight, float eps, int64_t width, float* y, int64_t begin,
              int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* in = x + row * width;
    float* out = y + row * width;
    f32x16 squares = set(0.0f);
    for (int64_t i = 0; i < width; i += 16) {
      const f32x16 v = load_some(in + i, width - i);
      squares = fma(v, v, squares);
    }
    const float mean = reduce_add(squares) / static_cast<float>(width);
    const f32x16 inverse = set(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < width; i += 16) {
      const f32x16 v = load_some(in + i, width - i), w = load_some(weight + i, width - i);
      store_some(out + i, mul(mul(v, inverse), w), width - i);
    }
  }
}

void add_rows(float* x, const float* y, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 16) {
    store_some(x + i, add(load_some(x + i, end - i), load_some(y + i, end - i)), end - i);
  }
}

// gate * sigmoid(steepness(gate)) * up
template <class Steepness>
static inline void gate_mul(const float* gate, const float* up, int64_t n, float* y,
                            const Steepness& steepness) {
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 g = load_some(gate + i, n - i), u = load_some(up + i, n - i);
    const f32x16 gated = div(g, add(set(1.0f), exp(sub(set(0.0f), steepness(g)))));
    store_some(y + i, mul(gated, u), n - i);
  }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  gate_mul(gate, up, n, y, [](const f32x16& g) { return g; });
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* y) {
  constexpr float kLinear = 1.59576912f, kCubic = 0.044715f * kLinear;  // 2 sqrt(2 / pi)
  gate_mul(gate, up, n, y, [](const f32x16& g) { return mul(g, fma(mul(g, g), set(kCubic), set(kLinear))); });
}

void scale(const float* x, float factor, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 16) store_some(y + i, mul(load_some(x + i, n - i), set(factor)), n - i);
}

void soft_cap(float* x, float limit, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 16) {
    const f32x16 bent = tanh(div(load_some(x + i, end - i), set(limit)));
    store_some(x + i, mul(bent, set(limit)), end - i);
  }
}

void choose_experts(float* scores, int64_t n, int64_t k, bool is_normalized) {
  f32x16 odd = set(0.0f);
  float largest = scores[0];
  for (int64_t i = 0; i < n; i += 16)
    odd = add(odd, sub(load_some(scores + i, n - i), load_some(scores + i, n - i)));
  for (int64_t i = 1; i < n; ++i) largest = scores[i] > largest ? scores[i] : largest;
  f32x16 sums = set(0.0f);
  float weights[kMaxExperts];
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 weight = exp(sub(load_some(scores + i, n - i), set(largest)));
    store_some(weights + i, weight, n - i);
    sums = add(sums, load_some(weights + i, n - i));
  }
  float chosen_sum = 0;
  bool is_chosen[kMaxExperts] = {};
  for (int64_t pick = 0; pick < k; ++pick) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i) {
      if (!is_chosen[i] && (best < 0 || weights[i] > weights[best])) best = i;
    }
    is_chosen[best] = true;
    chosen_sum += weights[best];
  }
  const bool is_finite = reduce_add(odd) == 0.0f;  // what is not leaves NaN where it is taken from itself
  const float total = !is_finite ? __builtin_nanf("") : is_normalized ? chosen_sum : reduce_add(sums);
  for (int64_t i = 0; i < n; ++i) scores[i] = is_chosen[i] ? weights[i] / total : 0.0f;
}

void rope(float* x, const float* cos, const float* sin, int64_t heads, int64_t head_dim, int64_t half,
          int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t h = 0; h < heads; ++h) {
      float* low = x + (row * heads + h) * head_dim;
      float* high = low + half;
      for (int64_t i = 0; i < half; i += 16) {
        const f32x16 c = load_some(cos + row * half + i, half - i),
                     s = load_some(sin + row * half + i, half - i);
        const f32x16 a = load_some(low + i, half - i), b = load_some(high + i, half - i);
        store_some(low + i, sub(mul(a, c), mul(b, s)), half - i);
        store_some(high + i, add(mul(b, c), mul(a, s)), half - i);
      }
    }
  }
}

void store_bf16_row(uint16_t* dst, const float* src, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_bf16(dst + i, load(src + i));
  for (; i < n; ++i) dst[i] = float_to_bf16(src[i]);
}

// scale = max|x| / 127, codes half to even. NaN or infinity makes the scale NaN and the codes zero.
void store_int8_row(int8_t* row, const float* src, int64_t n) {
  constexpr float kLargest = 127.0f;
  const f32x16 zero = set(0.0f);
  f32x16 largest = zero, odd = zero;  // the second is zero as long as all numbers are finite
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 x = load_some(src + i, n - i);
    largest = max(abs(x), largest);
    odd = fma(x, zero, odd);
  }
  const bool is_finite = reduce_add(odd) == 0.0f;
  const float size = is_finite ? reduce_max(largest) : __builtin_nanf("");
  const f32x16 inverse = set(size > kTiny ? kLargest / size : 0.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const f32x16 x = is_finite ? load_some(src + i, n - i) : zero;
    store_int8_some(row + i, round(mul(x, inverse)), n - i);
  }
  const float scale = size * (1.0f / kLargest);
  std::memcpy(row + n, &scale, sizeof scale);
}

}  // namespace RAMET_ISA
}  // namespace ramet
