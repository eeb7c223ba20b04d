// Every op of every instruction set of this machine, with one thread and with two: what the sanitizers and an
// emulated processor run. Prints one line a set; exits with 1 where something is off.
#include "tests/selfcheck.h"

#include "tests/expect.h"

int main() {
  using namespace ramet;
  check_memory();
  check_pool();
  check_prefix();
  for (const Ops* const* ops = available_ops(); *ops != nullptr; ++ops) {
    for (const int threads : {1, 2}) {
      Kernels kernels(**ops, threads);
      check_products(kernels);
      check_mixtures(kernels);
      check_attention(kernels);
      check_rows(kernels);
      check_sampling(kernels);
    }
    std::printf("%s checked\n", (*ops)->name);
  }
  return failures == 0 ? 0 : 1;
}
