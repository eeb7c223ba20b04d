// Which instruction sets this build has and this machine knows.
#include <cstring>

#include "ops.h"
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(RAMET_AMX) && !defined(RAMET_SOFTWARE_TILES)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ramet {
#if defined(RAMET_AMX)
namespace amx {
extern const Ops table;
}
#endif
#if defined(RAMET_AVX512_BF16)
namespace avx512_bf16 {
extern const Ops table;
}
#endif
#if defined(RAMET_AVX_VNNI)
namespace avx_vnni {
extern const Ops table;
}
#endif
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

#if defined(RAMET_AMX)
bool has_bf16() { return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16"); }
#if defined(RAMET_SOFTWARE_TILES)
bool has_tiles() { return true; }
#else
// Tiles of int8 and bfloat16, and the kernel's leave to use their registers.
bool has_tiles() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
  constexpr long kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAll) != kAll) return false;
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}
#endif
#endif

#if defined(RAMET_AVX_VNNI)
// Asked where avx2 is there, so the system saves its registers. Not every compiler has a name for this one.
bool has_avx_vnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvxVnni) != 0;
}
#endif

struct Available {
  const Ops* tables[7] = {};

  Available() {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
#if defined(RAMET_AMX)
      if (has_bf16() && has_tiles()) tables[n++] = &amx::table;
#endif
#if defined(RAMET_AVX512_BF16)
      if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"))
        tables[n++] = &avx512_bf16::table;
#endif
      tables[n++] = &avx512::table;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
#if defined(RAMET_AVX_VNNI)
      if (has_avx_vnni()) tables[n++] = &avx_vnni::table;
#endif
      tables[n++] = &avx2::table;
    }
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
