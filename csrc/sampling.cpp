// Rows of logits over the threads: each is one item, so nothing of it depends on how many there are.
#include "sampling.h"

#include "kernels.h"

namespace ramet {

template <class Args>
void Kernels::over_logits(const Args& args, void (*row_op)(const Args&, int64_t, uint8_t*)) {
  const size_t each = (sampling_scratch_bytes(args.vocab_size) + 63) / 64 * 64;
  auto* scratch = sampling_.get<uint8_t>(each * static_cast<size_t>(num_threads()));
  pool_.run(args.num_rows, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) row_op(args, i, scratch + each * static_cast<size_t>(thread));
  });
}

void Kernels::sample(const SampleArgs& args) { over_logits(args, ops_.sample); }
void Kernels::logprobs(const LogprobArgs& args) { over_logits(args, ops_.logprobs); }

}  // namespace ramet
