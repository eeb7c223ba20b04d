// The functions of one instruction set, gathered in its table by table.cpp.
#pragma once
#include "ops.h"

namespace ramet {
namespace RAMET_ISA {

void quantize(const float* x, const Codes& to, int64_t row, Columns columns);
void split(const float* x, const Halves& to, int64_t row, Columns columns);
Input input_of(Format format);
void linear(const Matrix& w, const Activations& a, const Output& out, int64_t panel_begin, int64_t panel_end);
void embed(const Matrix& w, int64_t row, float* y);
void rms_norm(const float* x, const float* weight, float eps, int64_t width, float* y, int64_t begin,
              int64_t end);
void add_rows(float* x, const float* y, int64_t begin, int64_t end);
void silu_mul(const float* gate, const float* up, int64_t n, float* y);
void gelu_mul(const float* gate, const float* up, int64_t n, float* y);
void scale(const float* x, float factor, int64_t n, float* y);
void soft_cap(float* x, float limit, int64_t begin, int64_t end);
void choose_experts(float* scores, int64_t n, int64_t k, bool is_normalized);
void rope(float* x, const float* cos, const float* sin, int64_t heads, int64_t head_dim, int64_t half,
          int64_t begin, int64_t end);
void store_bf16_row(uint16_t* dst, const float* src, int64_t n);
void store_int8_row(int8_t* row, const float* src, int64_t n);
int64_t heads_together(const AttentionArgs& args, const AttentionTask& task);
void attend(const AttentionArgs& args, const AttentionUnit* begin, const AttentionUnit* end, float* scratch);
void merge(const AttentionArgs& args, const SplitRow& row, int64_t head);
void sample(const SampleArgs& args, int64_t i, uint8_t* memory);
void logprobs(const LogprobArgs& args, int64_t i, uint8_t* memory);

extern const Ops table;

}  // namespace RAMET_ISA
}  // namespace ramet
