// What an instruction set offers: a table of functions over plain memory. Each does a range of independent
// work items, so that threads split ranges and no result depends on how.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ramet {

constexpr int64_t kPanel = 16;      // outputs laid side by side
constexpr int64_t kGroup = 32;      // inputs that share a scale
constexpr int64_t kSpan = 256;      // key positions reduced alone, before spans are merged in order
constexpr int32_t kShareable = 32;  // neighbours of which a task's rows share all pages, or none
constexpr int64_t kMaxTaskRows = 64;
constexpr int64_t kMaxExperts = 1024;
constexpr int64_t kNoWindow = int64_t{1} << 40;  // reaches beyond any position

enum class Format : uint8_t { f32, f16, bf16, q8, q4 };

constexpr bool is_quantized(Format f) { return f == Format::q8 || f == Format::q4; }

// N x K in panels of 16 outputs, the last one filled up with zeros.
//
//   f32     panel: [K][16] values; f16 likewise
//   bf16    panel: [K/2][16][2] values, K filled up with zeros to a multiple of 32
//   q8      panel: [K/8][2][16][2] words of 16 bits: byte s of word j of row r of step i is
//           k = 8 i + 4 s + 2 r + j;
//                  then [K/32][16] float16 scales
//   q4      panel: [K/8][16][2] words of 16 bits: nibble s of word j of step i is k = 8 i + 2 s + j;
//                  then [K/32][2][16] float16 scales and minima
//
// So a pair of inputs meets the same part of every word.
struct Matrix {
  Format format;
  int64_t n, k;
  size_t panel_bytes;  // a multiple of 64
  const uint8_t* data;

  int64_t num_panels() const { return (n + kPanel - 1) / kPanel; }
  const uint8_t* panel(int64_t i) const { return data + static_cast<size_t>(i) * panel_bytes; }
};

inline size_t code_bytes(Format f, int64_t k) {  // of one panel, scales not counted
  const auto inputs = static_cast<size_t>(k);
  switch (f) {
    case Format::f32:
      return inputs * kPanel * 4;
    case Format::f16:
      return inputs * kPanel * 2;
    case Format::bf16:
      return (inputs + 31) / 32 * 32 * kPanel * 2;
    case Format::q8:
      return inputs * kPanel;
    case Format::q4:
      return inputs * kPanel / 2;
  }
  return 0;
}
inline size_t panel_bytes(Format f, int64_t k) {
  const auto groups = static_cast<size_t>(k / kGroup);
  const size_t scales = f == Format::q8 ? groups * kPanel * 2 : f == Format::q4 ? groups * kPanel * 4 : 0;
  return (code_bytes(f, k) + scales + 63) / 64 * 64;
}

// What a product reads its rows as: numbers; codes of 16 bits (q8) or 12 (q4); sums of two bfloat16.
enum class Input : uint8_t { floats, codes16, codes12, halves };
constexpr int kNumInputs = 4;

// How a group of 32 inputs of one row was rounded: x ~ scale * code, |code| <= max_code. A group's dot
// product is at most 32 * 128 * 32767 < 2^27, so it is exact in int32 and its bits do not depend on how it is
// taken: pairs of 16 bits, 8-bit halves of the codes in a matrix unit, or 8 bits of them and 4.
constexpr int32_t max_code(Input kind) { return kind == Input::codes12 ? 2047 : 32767; }
struct GroupScale {
  float scale;
  float offset;  // scale * sum of codes: what a weight's minimum is multiplied with
};

// Rows of activations, rounded. The layout is the instruction set's own and may depend on the number of rows:
// `quantize` writes it, `linear` reads it.
struct Codes {
  Input kind;  // codes16 or codes12
  int64_t rows, k;
  int16_t* codes;      // num_codes(rows, k)
  GroupScale* groups;  // num_codes(rows, k) / 32
};
constexpr int64_t kRowTile = 16;  // rows that a matrix unit takes at once
inline size_t num_codes(int64_t rows, int64_t k) {
  return static_cast<size_t>((rows + kRowTile - 1) / kRowTile * kRowTile * k);
}

// Rows of activations as sums of two bfloat16, the second one what the first leaves: 16 bits of mantissa. The
// layout is the instruction set's own; `split` writes it, `linear` reads it.
struct Halves {
  int64_t rows, k;
  uint16_t* data;  // num_halves(rows, k)
};
inline size_t num_halves(int64_t rows, int64_t k) { return 2 * num_codes(rows, (k + 31) / 32 * 32); }

// Some inputs of a row: from a multiple of 32 to another one, or to the end.
struct Columns {
  int64_t begin, end;

  int64_t num() const { return end - begin; }
};

struct Activations {
  int64_t rows, k;
  const float* x;  // [rows][k]
  Codes codes16, codes12;
  Halves halves;

  const Codes& codes_for(Format f) const { return f == Format::q4 ? codes12 : codes16; }
};

// Where a product goes: y = (y, where `adds`) + (product + bias).
struct Output {
  const float* bias;  // [n] or null
  float* y;           // rows `ldy` floats apart
  int64_t ldy;
  bool adds;
};

// A run of queries against one span of keys (or all spans, from the first): rows[0..num_rows) see the same
// pages, or those of the first `num_shared` positions of one span, a multiple of kShareable, and from there
// on each its own.
struct AttentionTask {
  int32_t first_row, num_rows;  // into Plan's task_rows
  int32_t first_span, num_spans;
  int32_t first_page;  // into Plan's page_ids: the page table of a sequence
  int32_t num_shared;  // kSpan where all pages are
};

// KV heads of a task that one thread does together.
struct AttentionUnit {
  const AttentionTask* task;
  int64_t first_head, num_heads;
};

// A row whose spans are done by several tasks: partial results, merged in order at the end.
struct SplitRow {
  int32_t row, num_spans;
  int64_t first_partial;
};

// What the keys and the values of a position and head are stored as: a row of
//
//   f32, bf16   [head_dim] numbers
//   int8        [head_dim] codes, then the bytes of the float32 that they are multiplied with
enum class KVFormat : uint8_t { f32, bf16, int8 };

inline int64_t kv_row_items(KVFormat f, int64_t head_dim) {
  return f == KVFormat::int8 ? head_dim + int64_t{sizeof(float)} : head_dim;
}

struct AttentionArgs {
  const float* q;  // [T] rows of [num_heads][head_dim], `ldq` floats apart
  int64_t ldq;
  float* out;                 // [T][num_heads][head_dim]
  const void *keys, *values;  // [slots][num_kv_heads] rows
  KVFormat format;
  int64_t num_heads, num_kv_heads, head_dim, page_size;
  float scale;
  const int32_t *task_rows, *positions, *page_ids;
  const int32_t* page_of_row;     // [T] where its sequence's page table begins
  const int64_t* partial_of_row;  // [T] first partial of a split row, -1 of a whole one
  float* partials;                // [partial][num_heads][partial_floats(head_dim)]
  int64_t window;                 // positions that a row sees, the last ones up to its own; kNoWindow for all
  float cap;                      // scores become cap * tanh(score / cap); 0 for as they are
};

// KV heads that may stand together in a task have at most so many numbers a position.
constexpr int64_t kTogetherWidth = 512;

inline int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }
inline int64_t partial_floats(int64_t head_dim) {  // sums, in whole pairs of vectors; then largest, total
  return (head_dim + 31) / 32 * 32 + 16;
}
// Of one unit: results, queries and scores, and a span's keys and values.
inline int64_t attention_scratch_floats(int64_t queries, int64_t head_dim) {
  const int64_t per_query = 3 * partial_floats(head_dim) + kSpan;
  return (padded(queries) + 48) * per_query + kSpan * partial_floats(head_dim) + kSpan * kTogetherWidth +
         1024;
}

struct SampleArgs;   // sampling.h
struct LogprobArgs;  // sampling.h

struct Ops {
  const char* name;
  // x becomes some columns of row `row`. `split` is null where no format is read as halves.
  void (*quantize)(const float* x, const Codes& to, int64_t row, Columns);
  void (*split)(const float* x, const Halves& to, int64_t row, Columns);
  Input (*input_of)(Format);
  void (*linear)(const Matrix&, const Activations&, const Output&, int64_t panel_begin, int64_t panel_end);
  void (*embed)(const Matrix&, int64_t row, float* y);
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t width, float* y, int64_t begin,
                   int64_t end);
  void (*add)(float* x, const float* y, int64_t begin, int64_t end);
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y);
  void (*gelu_mul)(const float* gate, const float* up, int64_t n, float* y);
  void (*scale)(const float* x, float factor, int64_t n, float* y);
  void (*soft_cap)(float* x, float limit, int64_t begin, int64_t end);
  // A row of n scores becomes the weights of the k best experts, and zeros (backend.py); n <= kMaxExperts.
  void (*choose_experts)(float* scores, int64_t n, int64_t k, bool is_normalized);
  void (*rope)(float* x, const float* cos, const float* sin, int64_t heads, int64_t head_dim, int64_t half,
               int64_t begin, int64_t end);
  void (*store_bf16)(uint16_t* dst, const float* src, int64_t n);
  void (*store_int8)(int8_t* row, const float* src, int64_t n);  // a row of KVFormat::int8
  // How many KV heads of a task are best done together.
  int64_t (*heads_together)(const AttentionArgs&, const AttentionTask&);
  void (*attend)(const AttentionArgs&, const AttentionUnit* begin, const AttentionUnit* end, float* scratch);
  void (*merge)(const AttentionArgs&, const SplitRow&, int64_t head);
  void (*sample)(const SampleArgs&, int64_t row, uint8_t* scratch);  // sampling_scratch_bytes
  void (*logprobs)(const LogprobArgs&, int64_t row, uint8_t* scratch);
};

// The table called `name` ("amx", "avx512_bf16", "avx512", "avx_vnni", "avx2", "neon", "generic"), or null
// where it is not built or this machine lacks it.
const Ops* find_ops(const char* name);
// All that this machine has, best first; ends with null.
const Ops* const* available_ops();

}  // namespace ramet
