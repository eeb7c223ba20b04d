// Every op of every instruction set of this machine against plain loops, with ragged sizes and two threads:
// what the sanitizers and an emulated processor run. Prints one line a set; exits with 1 where something is
// off.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "prefix.h"
#include "sampling.h"

namespace {

using namespace ramet;

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance,
                 const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(std::fabs(got[i] - want[i]) <= tolerance * (1 + std::fabs(want[i])))) {
      return expect(false, what + ": " + std::to_string(got[i]) + " for " + std::to_string(want[i]));
    }
  }
}

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

Sample make_sample(Random& random, Format format, int64_t n, int64_t k) {
  Sample s;
  const auto count = static_cast<size_t>(n * k);
  s.data.resize(count * 4);
  s.values.resize(count);
  s.scales.assign(count / 32 + 1, 0x2c00);  // 1/16
  s.mins.assign(count / 32 + 1, 0xb800);    // -1/2
  for (size_t i = 0; i < count; ++i) {
    const auto code = static_cast<uint8_t>(random.bits() >> 24);
    switch (format) {
      case Format::f32: {
        s.values[i] = random.real();
        std::memcpy(&s.data[4 * i], &s.values[i], 4);
        break;
      }
      case Format::bf16:
      case Format::f16: {  // whole numbers up to 7: their upper bits are the same exponent and mantissa
        const uint16_t halves[2][4] = {{0x0000, 0x3c00, 0xc000, 0x4500}, {0x0000, 0x3f80, 0xc000, 0x40a0}};
        const float whole[4] = {0, 1, -2, 5};
        std::memcpy(&s.data[2 * i], &halves[format == Format::bf16][code & 3], 2);
        s.values[i] = whole[code & 3];
        break;
      }
      case Format::q8:
        s.data[i] = code;
        s.values[i] = static_cast<float>(static_cast<int8_t>(code)) / 16;
        break;
      case Format::q4:
        s.data[i] = code & 15;
        s.values[i] = static_cast<float>(code & 15) / 16 - 0.5f;
        break;
    }
  }
  s.part = {format, n, k, s.data.data(), s.scales.data(), s.mins.data()};
  return s;
}

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

void check_attention(Kernels& kernels, KVFormat format, int64_t head_dim, int64_t page_size,
                     const Scoring& scoring) {
  Random random;
  const int64_t num_kv_heads = 2, num_heads = 6, width = num_kv_heads * head_dim;
  const std::vector<int32_t> lengths{300, 37, 1}, counts{2, 20, 1};
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
  const Plan plan({rows, 3, static_cast<int64_t>(page_ids.size()), page_size, query_indptr.data(),
                   positions.data(), page_indptr.data(), page_ids.data()});
  kernels.attention({q.data(), rows, num_heads * head_dim}, num_heads, layer, plan, scoring, got.data());
  for (size_t b = 0; b < lengths.size(); ++b) {
    for (int32_t t = query_indptr[b]; t < query_indptr[b + 1]; ++t) {
      for (int64_t h = 0; h < num_heads; ++h) {
        const float* x = q.data() + (t * num_heads + h) * head_dim;
        const int64_t base = first_slot[b] * width + h / 3 * head_dim;
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
  const bool by_tiles = isa == "amx" && format != KVFormat::f32;  // 8 bits of each query and weight
  expect_near(got, want, by_tiles ? 1e-2f : 2e-5f, isa + " attention");
}

void check_rows(Kernels& kernels, int64_t width) {
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

// Weights of the chosen experts against plain loops; then a mixture against one product after the other, a
// row at a time: the same bits, whoever is beside it.
void check_experts(Kernels& kernels, Format format, int64_t num, int64_t num_chosen) {
  Random random;
  const int64_t rows = 9, k = 64, inner = 32;
  const std::string name = kernels.ops().name;
  const std::vector<float> scores = random.reals(rows * num), x = random.reals(rows * k);
  for (const bool is_normalized : {false, true}) {
    std::vector<float> routing = scores, want(scores.size());
    kernels.choose_experts(routing.data(), rows, num, num_chosen, is_normalized);
    for (int64_t t = 0; t < rows; ++t) {
      const float* row = &scores[static_cast<size_t>(t * num)];
      std::vector<int64_t> order(static_cast<size_t>(num));
      for (int64_t e = 0; e < num; ++e) order[static_cast<size_t>(e)] = e;
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return row[a] > row[b]; });
      double total = 0;
      for (int64_t i = 0; i < (is_normalized ? num_chosen : num); ++i)
        total += std::exp(double{row[order[static_cast<size_t>(i)]]});
      for (int64_t i = 0; i < num_chosen; ++i) {
        const int64_t e = order[static_cast<size_t>(i)];
        want[static_cast<size_t>(t * num + e)] = static_cast<float>(std::exp(double{row[e]}) / total);
      }
    }
    expect_near(routing, want, 1e-6f, name + " choose_experts");
    for (size_t i = 0; i < want.size(); ++i)
      expect((routing[i] == 0) == (want[i] == 0), name + " choose_experts: which");

    std::vector<PackedWeight> gate_up(static_cast<size_t>(num)), down(gate_up.size());
    std::vector<Expert> experts;
    for (size_t e = 0; e < gate_up.size(); ++e) {
      kernels.pack(make_sample(random, format, 2 * inner, k).part, gate_up[e]);
      kernels.pack(make_sample(random, format, k, inner).part, down[e]);
      experts.push_back({gate_up[e], down[e]});
    }
    std::vector<float> mixed(x.size()), made(static_cast<size_t>(2 * inner)), out(static_cast<size_t>(k));
    kernels.mix_experts({x.data(), rows, k}, Prologue(), {routing.data(), rows, num}, experts, SiluMul(),
                        mixed.data());
    for (int64_t t = 0; t < rows; ++t) {
      std::vector<float> sum(static_cast<size_t>(k));
      for (int64_t e = 0; e < num; ++e) {
        const float weight = routing[static_cast<size_t>(t * num + e)];
        if (weight == 0) continue;
        kernels.product({x.data() + t * k, 1, k}, Prologue(), gate_up[static_cast<size_t>(e)],
                        {nullptr, made.data(), 2 * inner, false});
        kernels.product({made.data(), 1, 2 * inner}, SiluMul(), down[static_cast<size_t>(e)],
                        {nullptr, out.data(), k, false});
        for (size_t i = 0; i < sum.size(); ++i) {
          const float part = out[i] * weight;  // rounded before it is added
          sum[i] += part;
        }
      }
      expect(std::memcmp(sum.data(), mixed.data() + t * k, sum.size() * sizeof(float)) == 0,
             name + " mix_experts");
    }
  }
}

// Two adapters of ragged ranks on rows that alternate, against one product after the other, a row at a time.
void check_adapters(Kernels& kernels, Format format) {
  Random random;
  const int64_t rows = 11, k = 70, n = 50, ranks[2] = {5, 18}, first_output = 9, num_ups = 2;
  std::vector<PackedWeight> downs(2), ups(4);
  LowRank changes[2];
  for (size_t a = 0; a < 2; ++a) {
    const int64_t rank = ranks[a];
    changes[a].down = &downs[a];
    for (size_t u = 0; u < num_ups; ++u) {
      kernels.pack(make_sample(random, format, rank, k).part, downs[a]);
      PackedWeight& up = ups[2 * a + u];
      kernels.pack(make_sample(random, format, u == 0 ? first_output : n - first_output, rank).part, up);
      const auto number = static_cast<int64_t>(u);
      changes[a].ups.push_back({&up, number * rank, number * first_output, 0.25f + static_cast<float>(u)});
    }
  }
  const std::vector<float> x = random.reals(rows * k), before = random.reals(rows * n);
  std::vector<float> got = before, want = before;
  const std::vector<Adapted> groups{{&changes[0], {0, 3, 4, 10}}, {&changes[1], {1, 2, 9}}};
  kernels.adapt({x.data(), rows, k}, Prologue(), groups, n, got.data());
  for (const Adapted& group : groups) {
    const PackedWeight& down = *group.change->down;
    for (const int64_t row : group.rows) {
      std::vector<float> made(static_cast<size_t>(down.n)), sum(static_cast<size_t>(n));
      kernels.product({x.data() + row * k, 1, k}, Prologue(), down, {nullptr, made.data(), down.n, false});
      for (const LowRank::Up& up : group.change->ups) {
        kernels.product({made.data() + up.first_rank, 1, up.weight->k}, Scale(up.scale), *up.weight,
                        {nullptr, sum.data() + up.first_output, n, false});
      }
      for (int64_t i = 0; i < n; ++i) want[static_cast<size_t>(row * n + i)] += sum[static_cast<size_t>(i)];
    }
  }
  expect(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0,
         std::string(kernels.ops().name) + " adapt");
}

// Rows with every list and filter, so that scratch is used to its ends: what is chosen is allowed, greedy
// rows take the best, and logprobs are right.
void check_sampling(Kernels& kernels, int64_t vocab_size) {
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

void check_pool() {
  Pool pool(3);
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<int> hits(static_cast<size_t>(turn % 97));
    pool.run(turn % 97, 1 + turn % 5, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
    });
    for (const int n : hits) expect(n == 1, "pool: each item once");
    if (turn % 50 != 0) continue;
    std::atomic<bool> is_thrown{false};  // by the caller in the midst of a job, which ends it
    try {
      pool.run(97, 2, [&](int64_t, int64_t, int thread) {
        while (thread != 0 && !is_thrown) std::this_thread::yield();
        is_thrown = true;
        if (thread == 0) throw std::runtime_error("");
      });
      is_thrown = false;
    } catch (const std::runtime_error&) {
    }
    expect(is_thrown, "pool: what the caller throws comes out");
  }
}

}  // namespace

int main() {
  check_pool();
  std::vector<int32_t> a(700, 5), b = a;
  for (const size_t at : {size_t{0}, size_t{15}, size_t{16}, size_t{255}, size_t{256}, size_t{699}}) {
    b[at] = 6;
    expect(common_prefix(a.data(), b.data(), 700) == at, "common_prefix");
    b[at] = 5;
  }
  expect(common_prefix(a.data(), b.data(), 700) == 700, "common_prefix");
  for (const Ops* const* ops = available_ops(); *ops != nullptr; ++ops) {
    for (const int threads : {1, 2}) {
      Kernels kernels(**ops, threads);
      for (const Format format : {Format::f32, Format::f16, Format::bf16, Format::q8, Format::q4}) {
        check_linear(kernels, format, 37, 96);
        check_linear(kernels, format, 16, 32);
        for (const int64_t rows : {1, 5, 17, 70}) check_linear(kernels, format, 5, 160, rows);
        for (const int64_t rows : {1, 3, 45}) check_prologue(kernels, format, rows);
        check_experts(kernels, format, 5, 2);
      }
      for (const Format format : {Format::f32, Format::f16, Format::bf16}) check_adapters(kernels, format);
      check_linear(kernels, Format::f32, 5, 7);
      check_experts(kernels, Format::f32, 33, 1);
      for (const KVFormat kv : {KVFormat::f32, KVFormat::bf16, KVFormat::int8}) {
        check_attention(kernels, kv, 24, 16, {0.5f});
        check_attention(kernels, kv, 64, 3, {0.5f});
        check_attention(kernels, kv, 64, 16, {0.5f, 41, 2.0f});
      }
      for (const int64_t width : {6, 16, 100}) check_rows(kernels, width);
      for (const int64_t size : {1, 31, 256, 257, 5000}) check_sampling(kernels, size);
    }
    std::printf("%s checked\n", (*ops)->name);
  }
  return failures == 0 ? 0 : 1;
}
