// How scores become weights in tiles, 16 queries at a time: a weight is a bfloat16, so its bits are made as
// numbers of 16 bits, two to a lane.
//
// Scores are logarithms to base 2 in units of 1/128. Bits of a bfloat16 read as a number are 128 times its
// logarithm, but for the mantissa: there 128 * 2^f - 128 takes the place of 128 f, for the 128 values of f
// that there are. So a weight is a score, rounded, less its distance from where weights are near 1 (the
// reference), and less a correction of 0 to 11 that a table gives. It is off by 2^-7.3 of itself at most,
// 0.22 % in the mean (root of squares); a float32 weight rounded to bfloat16 is off by 2^-8 and 0.17 %.
//
// The reference is 2^64 above the largest of the first scores seen. So weights below 2^-62 of it are zero,
// and where a later score is 2^65 times as large as it, or not finite, a bit says so.
#pragma once
#include "ops/attention_task.h"

namespace ramet {
namespace RAMET_ISA {

// What 128 f is more than 128 * 2^f - 128, for f = 0, 1/128 and so on.
struct WeightTable {
  alignas(64) uint8_t less[128] = {};

  constexpr WeightTable() {
    double power = 1;
    for (int f = 0; f < 128; ++f, power *= 1.0054299011128028)
      less[f] = static_cast<uint8_t>(f - static_cast<int>(128 * (power - 1) + 0.5));
  }
};

class Weights {
public:
  static constexpr float kUnit = 128.0f;
  static constexpr int64_t kRows = 16;  // positions whose scores are taken at a time

  // Before a pass over all scores.
  RAMET_INLINE void start() {
    odd_ = _mm512_setzero_si512();
    total_ = _mm512_setzero_ps();
    take_reference();
  }

  // Scores that the references of these queries come of, -inf where one is not seen.
  RAMET_INLINE void look_at(const float* scores, __mmask16 queries) {
    __m512 largest = nothing();
    for (int64_t i = 0; i < kRows; ++i) largest = _mm512_max_ps(_mm512_load_ps(scores + i * 16), largest);
    largest = _mm512_mul_ps(largest, _mm512_set1_ps(1 / kUnit));
    largest = _mm512_mul_ps(_mm512_roundscale_ps(largest, _MM_FROUND_TO_POS_INF), _mm512_set1_ps(kUnit));
    reference_ = _mm512_mask_max_ps(reference_, queries, largest, reference_);
    take_reference();
  }

  // Weights of scores [16 positions][16 queries], to pairs of positions [8][16 queries][2].
  RAMET_INLINE void make(const float* scores, uint16_t* to) {
    RAMET_UNROLL for (int64_t i = 0; i < kRows; i += 2) make_pair(scores + i * 16, to + i * 16);
  }

  // Those of two positions, to [16 queries][2].
  RAMET_INLINE void make_pair(const float* scores, uint16_t* to) {
    const __m512 lowest = _mm512_set1_ps(kZero);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    const __m512i low = _mm512_load_si512(kTable.less), high = _mm512_load_si512(kTable.less + 64);
    const auto bits_of = [&](const float* row) {  // NaN stays NaN
      return _mm512_castps_si512(_mm512_max_ps(lowest, _mm512_add_ps(shift_, _mm512_load_ps(row))));
    };
    const __m512i first = bits_of(scores), second = bits_of(scores + 16);
    odd_ = _mm512_ternarylogic_epi32(odd_, first, second, 0xfe);
    __m512i pair = _mm512_mask_blend_epi16(kUpper, first, _mm512_slli_epi32(second, 16));
    pair = _mm512_sub_epi16(pair, _mm512_maskz_permutex2var_epi8(kLowerBytes, low, pair, high));
    _mm512_store_si512(to, pair);
    total_ = _mm512_dpbf16_ps(total_, (__m512bh)pair, ones);
  }

  // Whether the references were good ones for these queries.
  bool are_good(__mmask16 queries) {
    const __mmask16 is_odd = _mm512_test_epi32_mask(odd_, _mm512_set1_epi32(static_cast<int32_t>(~kUsual)));
    bad_ = queries & (is_odd | _mm512_cmp_ps_mask(reference_, nothing(), _CMP_EQ_OQ));
    return bad_ == 0;
  }
  // For those for which they were not, the largest of all scores is one.
  void forget_bad() { reference_ = _mm512_mask_mov_ps(reference_, bad_, nothing()); }
  void look_at_all(const float* scores) { look_at(scores, bad_); }
  // What is odd then is not finite.
  void spoil_bad() {
    const __mmask16 is_odd = _mm512_test_epi32_mask(odd_, _mm512_set1_epi32(static_cast<int32_t>(~kUsual)));
    total_ = _mm512_mask_mov_ps(total_, bad_ & is_odd, _mm512_set1_ps(__builtin_nanf("")));
  }

  // What sums are relative to, as a logarithm to base 2, a whole number; and their weights' total.
  f32x16 largest() const { return {{_mm512_mul_ps(reference_, _mm512_set1_ps(1 / kUnit))}}; }
  f32x16 total() const { return {{total_}}; }

private:
  // Where no score was seen.
  static __m512 nothing() { return _mm512_set1_ps(-0x1p100f); }

  // A sum with it has no room for a fraction, and the whole part in its lower bits.
  static constexpr float kZero = 12582912.0f;
  static constexpr uint32_t kUsual = 0x4b403fff;  // bits of kZero + whole, 0 <= whole < 128 * 128
  static constexpr __mmask32 kUpper = 0xaaaaaaaa;
  static constexpr __mmask64 kLowerBytes = 0x5555555555555555;

  static constexpr WeightTable kTable{};

  RAMET_INLINE void take_reference() {
    const __mmask16 is_known = _mm512_cmp_ps_mask(reference_, nothing(), _CMP_NEQ_UQ);
    const __m512 start = _mm512_set1_ps(kZero + (127 - 64) * kUnit);
    shift_ = _mm512_mask_sub_ps(start, is_known, start, reference_);
  }

  __m512 reference_ = nothing(), shift_, total_;
  __m512i odd_;
  __mmask16 bad_ = 0;
};

}  // namespace RAMET_ISA
}  // namespace ramet
