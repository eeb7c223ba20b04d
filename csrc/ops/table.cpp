#include "ops/ops_isa.h"

#define RAMET_TEXT(x) #x
#define RAMET_NAME(x) RAMET_TEXT(x)

namespace ramet {
namespace RAMET_ISA {

const Ops table = {RAMET_NAME(RAMET_ISA), quantize, linear, embed,  rms_norm, add_rows, silu_mul, rope,
                   store_bf16_row,        attend,   merge,  sample, logprobs};

}  // namespace RAMET_ISA
}  // namespace ramet
