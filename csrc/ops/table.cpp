#include "ops/ops_isa.h"
#include RAMET_SIMD  // says whether there are tiles

#define RAMET_TEXT(x) #x
#define RAMET_NAME(x) RAMET_TEXT(x)

namespace ramet {
namespace RAMET_ISA {

#ifdef RAMET_TILE_UNIT
constexpr auto kSplit = split;
#else
constexpr void (*kSplit)(const float*, const Halves&, int64_t, Columns) = nullptr;
#endif

const Ops table = {RAMET_NAME(RAMET_ISA),
                   quantize,
                   kSplit,
                   input_of,
                   linear,
                   embed,
                   rms_norm,
                   add_rows,
                   silu_mul,
                   gelu_mul,
                   scale,
                   soft_cap,
                   choose_experts,
                   rope,
                   store_bf16_row,
                   store_int8_row,
                   heads_together,
                   attend,
                   merge,
                   sample,
                   logprobs};

}  // namespace RAMET_ISA
}  // namespace ramet
