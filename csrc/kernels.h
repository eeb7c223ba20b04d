// The operations of the CPU backend: an instruction set, a pool of threads, and scratch memory. No Python
// here.
#pragma once
#include <mutex>
#include <vector>

#include "memory.h"
#include "ops.h"
#include "plan.h"
#include "threads.h"

namespace ramet {

// A matrix as the loaders give it, row-major; scales and minima are [n][k/32] float16, or null.
struct Part {
  Format format;
  int64_t n, k;
  const void* data;
  const uint16_t *scales, *mins;
};

// Matrices of one K stacked along N, each in panels.
struct PackedWeight {
  struct Stacked {
    Matrix matrix;
    Bytes bytes;
    int64_t first_output, first_panel;
  };
  PackedWeight() = default;
  PackedWeight(PackedWeight&&) = default;
  PackedWeight& operator=(PackedWeight&&) = default;

  int64_t n = 0, k = 0, num_panels = 0;
  size_t num_bytes = 0;
  bool has_quantized = false;
  std::vector<Stacked> parts;
};

// Keys and values of one layer.
struct KV {
  void *keys, *values;  // [num_slots][num_heads][head_dim]
  bool is_bf16;
  int64_t num_slots, num_heads, head_dim;

  size_t slot_bytes() const { return static_cast<size_t>(num_heads * head_dim) * (is_bf16 ? 2 : 4); }
};

// One call at a time; a second caller waits. Arguments are trusted: bind.cpp checks them.
class Kernels {
public:
  Kernels(const Ops& ops, int num_threads)
      : ops_(ops), pool_(num_threads), attention_(static_cast<size_t>(num_threads)) {}

  const Ops& ops() const { return ops_; }
  int num_threads() const { return pool_.num_threads(); }

  PackedWeight pack(const std::vector<Part>& parts);
  void embed(const PackedWeight& table, const int32_t* ids, int64_t n, float* y);
  void linear(const float* x, int64_t rows, const PackedWeight& weight, const float* bias, float* y);
  void rms_norm(const float* x, const float* weight, float eps, int64_t rows, int64_t width, float* y);
  void add(float* x, const float* y, int64_t n);
  void silu_mul(const float* gate_up, int64_t rows, int64_t width, float* y);
  void rope(float* x, const float* cos, const float* sin, int64_t rows, int64_t heads, int64_t head_dim,
            int64_t half);
  void write_kv(const KV& layer, const float* keys, const float* values, const int32_t* slots, int64_t n);
  void attention(const float* q, int64_t num_heads, const KV& layer, const Plan& plan, float scale,
                 float* out);

private:
  // Rows of `width` numbers; a few of them are not worth a second thread.
  template <class Work>
  void over_rows(int64_t rows, int64_t width, const Work& work) {
    constexpr int64_t kWorthIt = 1 << 14;
    const int64_t at_least = kWorthIt / (width > 0 ? width : 1) + 1;
    const int64_t share = rows / (4 * pool_.num_threads()) + 1;
    pool_.run(rows, share > at_least ? share : at_least, work);
  }

  const Ops& ops_;
  Pool pool_;
  std::mutex mutex_;
  Scratch codes_, groups_, partials_;
  std::vector<Scratch> attention_;  // one a thread
};

}  // namespace ramet
