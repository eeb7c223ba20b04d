#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/expect.h"
#include "tests/samples.h"
#include "tests/selfcheck.h"

namespace ramet {
namespace {

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

}  // namespace

void check_mixtures(Kernels& kernels) {
  for (const Format format : {Format::f32, Format::f16, Format::bf16, Format::q8, Format::q4})
    check_experts(kernels, format, 5, 2);
  check_experts(kernels, Format::f32, 33, 1);
  for (const Format format : {Format::f32, Format::f16, Format::bf16}) check_adapters(kernels, format);
}

}  // namespace ramet
