#include <algorithm>
#include <cmath>

#include "tests/expect.h"
#include "tests/samples.h"
#include "tests/selfcheck.h"

namespace ramet {
namespace {

// `group` heads of queries have a KV head in common.
void check_scores(Kernels& kernels, KVFormat format, int64_t group, int64_t head_dim, int64_t page_size,
                  const Scoring& scoring) {
  Random random;
  const int64_t num_kv_heads = 2, num_heads = group * num_kv_heads, width = num_kv_heads * head_dim;
  const std::vector<int32_t> lengths{300, 37, 1, 270}, counts{2, 20, 1, 1};
  std::vector<int32_t> query_indptr{0}, page_indptr{0}, positions, page_ids, slots;
  std::vector<int64_t> first_slot;
  int32_t page = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    first_slot.push_back(page * page_size);
    for (int32_t p = 0; p < lengths[b]; p += static_cast<int32_t>(page_size)) page_ids.push_back(page++);
    for (int32_t p = lengths[b] - counts[b]; p < lengths[b]; ++p) positions.push_back(p);
    query_indptr.push_back(static_cast<int32_t>(positions.size()));
    page_indptr.push_back(static_cast<int32_t>(page_ids.size()));
  }
  const auto rows = static_cast<int64_t>(positions.size()), num_slots = page * page_size;
  std::vector<float> keys = random.reals(num_slots * width), values = random.reals(num_slots * width);
  for (auto* numbers : {&keys, &values}) {
    for (size_t i = 0; i < numbers->size(); ++i) {  // what rows hold exactly; the first one gives the scale
      float& v = (*numbers)[i];
      if (format != KVFormat::int8) v = std::round(v * 64) / 64;
      if (format == KVFormat::int8)
        v = i % static_cast<size_t>(head_dim) == 0 ? 1.0f : std::round(v * 127) * (1.0f / 127);
    }
  }
  std::vector<int32_t> all;
  for (int32_t slot = 0; slot < num_slots; ++slot) all.push_back(slot);
  const size_t item_bytes = format == KVFormat::f32 ? 4 : format == KVFormat::bf16 ? 2 : 1;
  const size_t bytes =
      static_cast<size_t>(num_slots * num_kv_heads * kv_row_items(format, head_dim)) * item_bytes;
  std::vector<uint8_t> key_store(bytes), value_store(bytes);  // exact in size: a read beyond is found
  const KV layer{key_store.data(), value_store.data(), format, num_slots, num_kv_heads, head_dim};
  kernels.write_kv(layer, keys.data(), values.data(), all.data(), num_slots);

  const std::vector<float> q = random.reals(rows * num_heads * head_dim);
  std::vector<float> got(q.size()), want(q.size());
  const Plan plan({rows, static_cast<int64_t>(lengths.size()), static_cast<int64_t>(page_ids.size()),
                   page_size, query_indptr.data(), positions.data(), page_indptr.data(), page_ids.data()});
  kernels.attention({q.data(), rows, num_heads * head_dim}, num_heads, layer, plan, scoring, got.data());
  for (size_t b = 0; b < lengths.size(); ++b) {
    for (int32_t t = query_indptr[b]; t < query_indptr[b + 1]; ++t) {
      for (int64_t h = 0; h < num_heads; ++h) {
        const float* x = q.data() + (t * num_heads + h) * head_dim;
        const int64_t base = first_slot[b] * width + h / group * head_dim;
        std::vector<double> sums(static_cast<size_t>(head_dim));
        double total = 0;
        const int64_t end = positions[static_cast<size_t>(t)] + 1;
        for (int64_t p = std::max(int64_t{0}, end - scoring.window); p < end; ++p) {
          double score = 0;
          for (int64_t d = 0; d < head_dim; ++d)
            score += scoring.scale * x[d] * keys[static_cast<size_t>(base + p * width + d)];
          if (scoring.cap > 0) score = scoring.cap * std::tanh(score / scoring.cap);
          total += std::exp(score);
          for (int64_t d = 0; d < head_dim; ++d) {
            sums[static_cast<size_t>(d)] +=
                std::exp(score) * values[static_cast<size_t>(base + p * width + d)];
          }
        }
        for (int64_t d = 0; d < head_dim; ++d) {
          want[static_cast<size_t>((t * num_heads + h) * head_dim + d)] =
              static_cast<float>(sums[static_cast<size_t>(d)] / total);
        }
      }
    }
  }
  const std::string isa = kernels.ops().name;
  const bool by_tiles =
      (isa == "amx" || isa == "avx512_bf16") && format != KVFormat::f32;  // 8 bits of each query and weight
  expect_near(got, want, by_tiles ? 1e-2f : 2e-5f, isa + " attention");
}

}  // namespace

void check_attention(Kernels& kernels) {
  for (const KVFormat kv : {KVFormat::f32, KVFormat::bf16, KVFormat::int8}) {
    check_scores(kernels, kv, 3, 24, 16, {0.5f});
    check_scores(kernels, kv, 3, 64, 3, {0.5f});
    check_scores(kernels, kv, 3, 64, 16, {0.5f, 41, 2.0f});
    for (const int64_t group : {1, 2, 5, 8}) check_scores(kernels, kv, group, 96, 16, {0.5f});
  }
}

}  // namespace ramet
