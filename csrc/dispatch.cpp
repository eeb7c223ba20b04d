// Which instruction sets this build has and this machine knows.
#include <cstring>

#include "ops.h"
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace ramet {
#if defined(__x86_64__)
namespace avx512 {
extern const Ops table;
}
namespace avx2 {
extern const Ops table;
}
#elif defined(__aarch64__)
namespace neon {
extern const Ops table;
}
#endif
namespace generic {
extern const Ops table;
}

namespace {

struct Available {
  const Ops* tables[4] = {};

  Available() {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
      tables[n++] = &avx512::table;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables[n++] = &avx2::table;
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) tables[n++] = &neon::table;
#elif defined(__aarch64__)
    tables[n++] = &neon::table;  // Apple's have had the dot product from the first
#endif
    tables[n] = &generic::table;
  }
};

}  // namespace

const Ops* const* available_ops() {
  static const Available available;
  return available.tables;
}

const Ops* find_ops(const char* name) {
  for (const Ops* const* ops = available_ops(); *ops != nullptr; ++ops) {
    if (std::strcmp((*ops)->name, name) == 0) return *ops;
  }
  return nullptr;
}

}  // namespace ramet
