#include <cmath>

#include "sampling.h"
#include "tests/expect.h"
#include "tests/samples.h"
#include "tests/selfcheck.h"

namespace ramet {
namespace {

// Rows with every list and filter, so that scratch is used to its ends: what is chosen is allowed, greedy
// rows take the best, and logprobs are right.
void check_choices(Kernels& kernels, int64_t vocab_size) {
  const std::string name = "sampling " + std::to_string(vocab_size);
  constexpr int64_t kRows = 3;
  Random random;
  std::vector<float> logits = random.reals(kRows * vocab_size);
  const auto last = static_cast<int32_t>(vocab_size - 1);
  const float temperature[] = {0, 0.7f, 1.5f}, top_p[] = {1, 0.8f, 1}, min_p[] = {0, 0.01f, 0},
              one[] = {1, 1.2f, 1}, zero[] = {0, 0.1f, 0}, values[] = {1.5f};
  const int32_t top_k[] = {0, 300, 5}, none[] = {0, 0, 0, 0}, second[] = {0, 0, 1, 1}, third[] = {0, 0, 0, 1},
                ids[] = {last}, prompt[] = {0, 0, 0};
  const std::vector<uint32_t> mask(static_cast<size_t>(vocab_size + 31) / 32, 0xffffffff);
  const double draws[] = {0.5, 1 - 0x1p-53, 0.9};
  int32_t token_ids[kRows], ranks[kRows], best[kRows];
  RowFault faults[kRows];
  int64_t sizes[kRows];
  float logprobs[kRows], best_logprobs[kRows];
  const SamplingRows sampling{temperature, top_p,        min_p,         top_k,
                              one,         zero,         zero,          {second, ids},
                              {none, ids}, {third, ids}, {second, ids}, values,
                              prompt,      second,       mask.data(),   static_cast<int64_t>(mask.size())};
  const int32_t rows[] = {0, 1, 2};
  kernels.sample(
      {logits.data(), kRows, vocab_size, nullptr, 0, sampling, rows, draws, token_ids, faults, sizes});
  const int32_t wanted[] = {1, 1, 1};
  kernels.logprobs(
      {logits.data(), kRows, vocab_size, token_ids, wanted, 1, logprobs, ranks, best, best_logprobs});
  for (int64_t r = 0; r < kRows; ++r) {
    const float* row = &logits[static_cast<size_t>(r * vocab_size)];
    int64_t first = 0;
    double total = 0;
    for (int64_t i = 0; i < vocab_size; ++i) {
      if (row[i] > row[first]) first = i;
      total += std::exp(static_cast<double>(row[i]));
    }
    expect(faults[r] == RowFault::none && token_ids[r] >= 0 && token_ids[r] < vocab_size, name + ": a token");
    expect(best[r] == first, name + ": the best");
    const auto want = static_cast<float>(static_cast<double>(row[token_ids[r]]) - std::log(total));
    expect_near({logprobs[r]}, {want}, 1e-6f, name + ": logprob");
  }
  expect(token_ids[0] == best[0] && ranks[0] == 1, name + ": greedy");
  expect(token_ids[2] == last, name + ": the only one allowed");

  const int64_t num_words = (vocab_size + 31) / 32;  // only the last logit is there
  std::vector<uint32_t> there(static_cast<size_t>(kRows * num_words));
  for (int64_t r = 0; r < kRows; ++r) {
    there[static_cast<size_t>((r + 1) * num_words - 1)] = 1u << last % 32;
    for (int64_t i = 0; i < last; ++i) logits[static_cast<size_t>(r * vocab_size + i)] = NAN;
  }
  kernels.sample({logits.data(), kRows, vocab_size, there.data(), num_words, sampling, rows, draws, token_ids,
                  faults, sizes});
  for (int64_t r = 0; r < kRows; ++r)
    expect(faults[r] == RowFault::none && token_ids[r] == last, name + ": the only one there");
}

}  // namespace

void check_sampling(Kernels& kernels) {
  for (const int64_t size : {1, 31, 256, 257, 5000}) check_choices(kernels, size);
}

}  // namespace ramet
