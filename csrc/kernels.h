// The operations of the CPU backend: an instruction set, a pool of threads, and scratch memory. No Python
// here.
#pragma once
#include <mutex>
#include <optional>
#include <vector>

#include "memory.h"
#include "ops.h"
#include "plan.h"
#include "prologue.h"
#include "threads.h"

namespace ramet {

// A matrix as the loaders give it, row-major; scales and minima are [n][k/32] float16, or null.
struct Part {
  Format format;
  int64_t n, k;
  const void* data;
  const uint16_t *scales, *mins;
};

// How the bytes of panels come of matrices (`pack`, and the table in ops.h). Whoever changes one of them
// makes this another number: files of packed weights are known by it.
constexpr int kPackingVersion = 1;

// Matrices of one K stacked along N, each in panels.
struct PackedWeight {
  struct Stacked {
    Matrix matrix;
    Quarry::Piece bytes;
    int64_t first_output, first_panel;
    int64_t capacity;  // panels that the bytes have room for

    size_t num_bytes() const { return static_cast<size_t>(matrix.num_panels()) * matrix.panel_bytes; }
    // Whether more rows of this format may follow in the same memory.
    bool takes(Format format, int64_t rows) const {
      return matrix.format == format && matrix.n % kPanel == 0 &&
             (matrix.n + rows + kPanel - 1) / kPanel <= capacity;
    }
  };
  PackedWeight() = default;
  PackedWeight(PackedWeight&&) = default;
  PackedWeight& operator=(PackedWeight&&) = default;

  int64_t n = 0, k = 0, num_panels = 0;
  size_t num_bytes = 0;
  bool reads_as(Input input) const { return reads[static_cast<size_t>(input)]; }

  bool reads[kNumInputs] = {};  // by Input: what its parts read rows as
  std::vector<Stacked> parts;
};

// Keys and values of one layer.
struct KV {
  void *keys, *values;  // [num_slots][num_heads] rows
  KVFormat format;
  int64_t num_slots, num_heads, head_dim;
};

// Rows of numbers, `ld` apart.
struct Rows {
  const float* x;
  int64_t num, ld;
};

// Which outputs are wanted of each row: rows of `num_words` words, bit i % 32 of word i / 32 for output i.
struct Wanted {
  const uint32_t* bits;
  int64_t num_words;

  bool any(int64_t row, int64_t first, int num) const {  // of outputs first to first + num, at most 32
    const uint32_t* words = bits + row * num_words;
    const int64_t at = first / 32;
    uint64_t two = at < num_words ? words[at] : 0;
    if (at + 1 < num_words) two |= uint64_t{words[at + 1]} << 32;
    return (two >> (first % 32) & ((uint64_t{1} << num) - 1)) != 0;
  }
};

struct Heads {
  int64_t num_heads, num_kv_heads, head_dim;

  int64_t width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }  // of a row of q, k and v
};

// How queries score positions: `window` and `cap` as in AttentionArgs.
struct Scoring {
  float scale;
  int64_t window = kNoWindow;
  float cap = 0;
};

// Rotary angles: [num_positions][num_columns] cosines and sines.
struct Angles {
  const float *cos, *sin;
  int64_t num_positions, num_columns;
};

// Where the angles of a head's first pairs stand in the table: one column each.
struct Pairs {
  int64_t first, num;
};

// A norm of a row's heads, `width` numbers at a time: each head, or all of them together.
struct HeadNorm {
  const Prologue& norm;
  int64_t width;
};

struct Expert {
  const PackedWeight &gate_up, &down;
};

// What an adapter does to a product: it adds, from output `first_output` on, up times (down times row) times
// scale. One `down` serves several ups: each reads its own of what it gives.
struct LowRank {
  struct Up {
    const PackedWeight* weight;  // one matrix
    int64_t first_rank, first_output;
    float scale;
  };
  const PackedWeight* down = nullptr;  // null: the product stays as it is
  std::vector<Up> ups;
};

// Rows that have one adapter, in rising order.
struct Adapted {
  const LowRank* change;
  std::vector<int64_t> rows;
};

// A product that comes next, of what its gate makes of a result.
struct Gated {
  const Gate& gate;
  const PackedWeight& weight;

  // The product of `weight`, where its rows can be made a group of inputs at a time by whoever has computed
  // what they are made of: outputs of `result`.
  static std::optional<Gated> of(const Prologue& prologue, const PackedWeight& weight,
                                 const PackedWeight& result) {
    const bool fits = prologue.gate() != nullptr && result.n == 2 * weight.k &&
                      result.num_panels * kPanel == result.n && weight.k % kGroup == 0;
    return fits ? std::optional<Gated>({*prologue.gate(), weight}) : std::nullopt;
  }
};

// Memory for the rows that a product is of.
struct Inputs {
  struct Rounded {
    Scratch codes, groups;
  };
  Scratch row, rows, halves, gated;
  Rounded codes16, codes12;
};

// One call at a time: whoever calls has a Turn. Arguments are trusted: the bindings check them.
class Kernels {
public:
  Kernels(const Ops& ops, int num_threads)
      : ops_(ops),
        pool_(num_threads),
        attention_(static_cast<size_t>(num_threads)),
        own_(static_cast<size_t>(num_threads)) {}

  // While it lives no other thread computes here, and the workers stay awake.
  class Turn {
  public:
    explicit Turn(Kernels& kernels) : lock_(kernels.mutex_), engagement_(kernels.pool_) {}

  private:
    const std::lock_guard<std::mutex> lock_;
    const Pool::Engagement engagement_;
  };

  const Ops& ops() const { return ops_; }
  int num_threads() const { return pool_.num_threads(); }

  // Lays a matrix out below those that `to` has already; its K is theirs. What will have `rows` in all, of
  // one format, is one piece of memory, whatever the parts.
  void pack(const Part& part, PackedWeight& to, int64_t rows = 0);
  // Room below what `to` has for n rows, whose bytes the caller fills in.
  void extend(Format format, int64_t n, int64_t k, PackedWeight& to, int64_t rows = 0);
  // Rows of the matrix, times a number.
  void embed(const PackedWeight& table, const int32_t* ids, int64_t n, float scale, float* y);
  // What the prologue makes of x, times the weight.
  void product(const Rows& x, const Prologue& prologue, const PackedWeight& weight, const Output& to);
  // The same, and the rows of `next` are made of the result, for product_of_made with that weight.
  void product_for(const Gated& next, const Rows& x, const Prologue& prologue, const PackedWeight& weight,
                   const Output& to);
  void product_of_made(int64_t rows, const PackedWeight& weight, const Output& to);
  // The same where only some outputs are wanted of each row; the others mean nothing.
  void product_where(const Rows& x, const Prologue& prologue, const PackedWeight& weight,
                     const Wanted& wanted, const Output& to);
  void rms_norm(const float* x, const float* weight, float eps, int64_t rows, int64_t width, float* y);
  void add(float* x, const float* y, int64_t n);
  // Of rows of two halves, `width` numbers each.
  void gate_mul(const Gate& gate, const float* gate_up, int64_t rows, int64_t width, float* y);
  void soft_cap(float* x, float limit, int64_t n);
  void choose_experts(float* scores, int64_t rows, int64_t n, int64_t k, bool is_normalized);
  // y = the sum of weight * (gate(row times gate_up) times down), row = what the prologue makes of x, over
  // experts whose weight in `routing` is not zero, in their order.
  void mix_experts(const Rows& x, const Prologue& prologue, const Rows& routing,
                   const std::vector<Expert>& experts, const Prologue& gate, float* y);
  // y += what their adapters make of the rows that have one; `ldy` floats are between rows of y.
  void adapt(const Rows& x, const Prologue& prologue, const std::vector<Adapted>& groups, int64_t ldy,
             float* y);
  // sum += what the prologue makes of x; rows of `width` numbers.
  void add_made(const Rows& x, const Prologue& prologue, int64_t width, float* sum);
  void rope(float* x, const float* cos, const float* sin, int64_t rows, int64_t heads, int64_t head_dim,
            int64_t half);
  void write_kv(const KV& layer, const float* keys, const float* values, const int32_t* slots, int64_t n);
  // Rows of q, k and v, `heads.width()` apart: norms and rotates heads of q and k in place, then stores k and
  // v. No two rows have one slot.
  void rotate_and_store(float* qkv, int64_t rows, const Heads& heads, const HeadNorm& q_norm,
                        const HeadNorm& k_norm, const Angles& angles, const Pairs& pairs,
                        const int32_t* positions, const KV& layer, const int32_t* slots);
  void attention(const Rows& q, int64_t num_heads, const KV& layer, const Plan& plan, const Scoring& scoring,
                 float* out);

  void sample(const SampleArgs& args);  // sampling.h
  void logprobs(const LogprobArgs& args);

private:
  Activations reserve(Inputs& inputs, int64_t rows, const PackedWeight& weight);
  void round_off(const float* row, const PackedWeight& weight, const Activations& to, int64_t at,
                 Columns columns);
  void prepare(const Rows& x, const Prologue& prologue, const PackedWeight& weight, const Activations& to,
               float* space, int64_t begin, int64_t end);
  template <class Work>
  void over_rows_made(const Rows& x, const Prologue& prologue, const PackedWeight& weight, int64_t num_items,
                      int64_t grain, const Work& work);
  void multiply(const PackedWeight& weight, const Activations& a, const Output& to, int64_t begin,
                int64_t end);
  void store_kv(const KV& layer, int64_t slot, const float* key, const float* value);
  template <class Args>
  void over_logits(const Args& args, void (*row_op)(const Args&, int64_t, uint8_t*));

  // Rows of `width` numbers; a few of them are not worth a second thread.
  template <class Work>
  void over_rows(int64_t rows, int64_t width, const Work& work) {
    constexpr int64_t kWorthIt = 1 << 11;
    const int64_t at_least = kWorthIt / (width > 0 ? width : 1) + 1;
    const int64_t share = rows / (4 * pool_.num_threads()) + 1;
    pool_.run(rows, share > at_least ? share : at_least, work);
  }

  const Ops& ops_;
  Pool pool_;
  std::mutex mutex_;
  Quarry weights_;
  Scratch partials_, sampling_;
  std::vector<AttentionUnit> units_;
  std::vector<Scratch> attention_;  // one a thread
  std::vector<Inputs> own_;         // one a thread
  Inputs shared_, gated_;
  struct {
    Scratch rows, chosen, inner, made;
  } mixing_;
  struct Ranks {
    Inputs inputs;
    Scratch made;
  };
  std::vector<Ranks> ranks_;  // one a group
  Scratch adapted_;
};

}  // namespace ramet
