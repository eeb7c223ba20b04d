// What choosing tokens takes and gives: plain memory, a row of logits for each answer. What each step means
// is said in kernels/reference_sampling.py, which is their definition.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ramet {

// Values of many rows one after another: row r has those from indptr[r] to indptr[r + 1].
struct Ragged {
  const int32_t* indptr;
  const int32_t* ids;

  const int32_t* begin(int64_t row) const { return ids + indptr[row]; }
  const int32_t* end(int64_t row) const { return ids + indptr[row + 1]; }
};

// core/batch.py: RowSampling.
struct SamplingRows {
  const float *temperature, *top_p, *min_p;
  const int32_t* top_k;
  const float *repetition_penalty, *frequency_penalty, *presence_penalty;
  Ragged bias, banned, allowed, history;
  const float* bias_values;
  const int32_t* history_prompt_lens;
  const int32_t* mask_indptr;
  const uint32_t* masks;  // [masks][mask_words]
  int64_t mask_words;
};

// kernels/backend.py: RowFault.
enum class RowFault : int32_t { none, not_finite, none_left, unknown_id };

struct SampleArgs {
  const float* logits;  // [num_rows][vocab_size]
  int64_t num_rows, vocab_size;
  const uint32_t* there;  // [num_rows][there_words] bits of the logits that are there, or null for all
  int64_t there_words;
  SamplingRows sampling;
  const int32_t* rows;   // [num_rows] places in `sampling`
  const double* draws;   // [num_rows] in [0, 1)
  int32_t* token_ids;    // [num_rows] -1 where there is a fault
  RowFault* faults;      // [num_rows]
  int64_t* fault_sizes;  // [num_rows] logits that are not finite; the unknown id
};

// Row i is left out where num_best[i] is negative.
struct LogprobArgs {
  const float* logits;  // [num_rows][vocab_size]
  int64_t num_rows, vocab_size;
  const int32_t *token_ids, *num_best;  // [num_rows]
  int64_t width;                        // of the lists of the best
  float* logprobs;                      // [num_rows] NaN where logits are not finite
  int32_t *ranks, *top_ids;             // [num_rows], [num_rows][width]
  float* top_logprobs;
};

constexpr int64_t kScanBlock = 256;  // logits whose sum is taken alone; blocks are summed in order, in double
constexpr int64_t kFewLogits = 1024;  // so many are searched in a copy of their own

inline int64_t whole_blocks(int64_t n) { return (n + kScanBlock - 1) / kScanBlock * kScanBlock; }
// Bytes of scratch for a row: sums, largest of each block, scores, weights, few, and two tables of bits.
inline size_t sampling_scratch_bytes(int64_t vocab_size) {
  const int64_t n = whole_blocks(vocab_size), blocks = n / kScanBlock;
  const int64_t words = 2 * whole_blocks(blocks) + 2 * n + kFewLogits + 2 * (n / 32);
  return static_cast<size_t>(words * 4 + (blocks + 7) / 8 * 8 * 8);
}

// The random number of the token at `position`, in [0, 1): 53 bits of Philox4x64-10 (Salmon et al., 2011),
// the first word of the block after counter `position`.
inline double uniform(uint64_t seed, uint64_t sample_index, uint64_t position) {
  constexpr uint64_t kMultiply[2] = {0xD2E7470EE14C6C93, 0xCA5A826395121157};
  constexpr uint64_t kStep[2] = {0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B};
  uint64_t x[4] = {position + 1, 0, 0, 0}, key[2] = {seed, sample_index};
  for (int round = 0; round < 10; ++round) {
    __extension__ using Wide = unsigned __int128;
    const Wide a = Wide{kMultiply[0]} * x[0], b = Wide{kMultiply[1]} * x[2];
    const uint64_t y[4] = {static_cast<uint64_t>(b >> 64) ^ x[1] ^ key[0], static_cast<uint64_t>(b),
                           static_cast<uint64_t>(a >> 64) ^ x[3] ^ key[1], static_cast<uint64_t>(a)};
    for (int i = 0; i < 4; ++i) x[i] = y[i];
    for (int i = 0; i < 2; ++i) key[i] += kStep[i];
  }
  return static_cast<double>(x[0] >> 11) * 0x1p-53;
}

}  // namespace ramet
