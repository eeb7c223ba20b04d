// What selfcheck.cpp calls, a file each: ops against plain loops with ragged sizes, and what they stand on.
#pragma once
#include "kernels.h"

namespace ramet {

void check_memory();
void check_pool();
void check_prefix();
void check_products(Kernels& kernels);
void check_mixtures(Kernels& kernels);
void check_attention(Kernels& kernels);
void check_rows(Kernels& kernels);
void check_sampling(Kernels& kernels);

}  // namespace ramet
