#include "peaks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "ops.h"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ramet {
namespace {

// Each loop is a function of its own with the instructions it needs, so that this file is compiled once and
// no code of a larger set is met before it is known to be there. The instructions are written out: a compiler
// would take products of constants out of the loop, or put copies into it.
#define PEAK(name, needs, Vector, reg, num_chains, step)                        \
  __attribute__((target(needs), noinline)) void name(int64_t rounds) {          \
    Vector sums[num_chains] = {}, other = {}, a = {}, b = {};                   \
    for (int64_t r = 0; r < rounds; ++r) {                                      \
      _Pragma("GCC unroll 32") for (int i = 0; i < (num_chains); ++i) {         \
        asm volatile(step : "+" reg(sums[i]), "+" reg(other) : reg(a), reg(b)); \
      }                                                                         \
    }                                                                           \
  }

// The portable set: four lanes, a multiplication and an addition. Each sum is multiplied too, so that nothing
// can be taken out of the loop.
constexpr int kGenericChains = 12;

__attribute__((noinline)) void generic_fp32(int64_t rounds) {
  using Lanes = float __attribute__((vector_size(16)));
  volatile float unknown = 0.5f;
  const float x = unknown;
  const Lanes a = {x, x, x, x};
  Lanes sums[kGenericChains] = {};
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 32
    for (Lanes& sum : sums) sum = sum * a + a;
  }
  for (const Lanes& sum : sums) unknown = sum[0];
}

#if defined(__x86_64__)
constexpr int kChains256 = 12, kChains512 = 24;  // of 16 and 32 registers

PEAK(avx512_fp32, "avx512f", __m512, "v", kChains512, "vfmadd231ps %3, %2, %0")
PEAK(avx512_bf16, "avx512f", __m512, "v", kChains512, "vdpbf16ps %3, %2, %0")
PEAK(avx512_int16, "avx512f", __m512, "v", kChains512, "vpdpwssd %3, %2, %0")
PEAK(avx512_int8, "avx512f", __m512, "v", kChains512, "vpdpbusd %3, %2, %0")
PEAK(avx2_fp32, "avx2", __m256, "x", kChains256, "vfmadd231ps %3, %2, %0")
PEAK(avx2_int16, "avx2", __m256, "x", kChains256, "vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0")
#if defined(RAMET_AVX_VNNI)
PEAK(avx_vnni_int16, "avxvnni", __m256, "x", kChains256, "%{vex%} vpdpwssd %3, %2, %0")
PEAK(avx_vnni_int8, "avxvnni", __m256, "x", kChains256, "%{vex%} vpdpbusd %3, %2, %0")
#endif

bool has_avx512_bf16() { return __builtin_cpu_supports("avx512bf16") != 0; }
#elif defined(__aarch64__)
constexpr int kChainsNeon = 24;  // of 32 registers

PEAK(neon_fp32, "arch=armv8.2-a", float32x4_t, "w", kChainsNeon, "fmla %0.4s, %2.4s, %3.4s")
PEAK(neon_int16, "arch=armv8.2-a", float32x4_t, "w", kChainsNeon, "smlal %0.4s, %2.4h, %3.4h")
PEAK(neon_int8, "arch=armv8.2-a+dotprod", float32x4_t, "w", kChainsNeon, "sdot %0.4s, %2.16b, %3.16b")
#endif

#if defined(RAMET_AMX)
struct TileConfig {  // the processor's own layout
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr int kTileProducts = 8;  // a round: twice four sums, of two tiles by two
constexpr double kTileSums = 16 * 16;

// Two tiles by two, as a product of matrices would: four chains outlast the latency.
#define PEAK_TILES(name, instruction)                                                            \
  __attribute__((noinline)) void name(int64_t rounds) {                                          \
    const TileConfig config;                                                                     \
    asm volatile("ldtilecfg %0" : : "m"(config));                                                \
    for (int64_t r = 0; r < rounds; ++r) {                                                       \
      for (int twice = 0; twice < 2; ++twice) {                                                  \
        asm volatile(instruction " %tmm6, %tmm4, %tmm0\n\t" instruction                          \
                                 " %tmm7, %tmm4, %tmm1\n\t" instruction                          \
                                 " %tmm6, %tmm5, %tmm2\n\t" instruction " %tmm7, %tmm5, %tmm3"); \
      }                                                                                          \
    }                                                                                            \
    asm volatile("tilerelease");                                                                 \
  }
PEAK_TILES(amx_int8, "tdpbusd")
PEAK_TILES(amx_bf16, "tdpbf16ps")
#endif

const Peak kPeaks[] = {
#if defined(RAMET_AMX)
    {"amx", "int8", "tdpbusd", kTileProducts * kTileSums * 128, amx_int8},
    {"amx", "bf16", "tdpbf16ps", kTileProducts * kTileSums * 64, amx_bf16},
#endif
#if defined(__x86_64__)
    {"avx512", "fp32", "vfmadd231ps", kChains512 * 32, avx512_fp32},
    {"avx512", "bf16", "vdpbf16ps", kChains512 * 64, avx512_bf16, has_avx512_bf16},
    {"avx512", "int16", "vpdpwssd", kChains512 * 64, avx512_int16},
    {"avx512", "int8", "vpdpbusd", kChains512 * 128, avx512_int8},
#if defined(RAMET_AVX_VNNI)
    {"avx_vnni", "int16", "vpdpwssd", kChains256 * 32, avx_vnni_int16},
    {"avx_vnni", "int8", "vpdpbusd", kChains256 * 64, avx_vnni_int8},
#endif
    {"avx2", "fp32", "vfmadd231ps", kChains256 * 16, avx2_fp32},
    {"avx2", "int16", "vpmaddwd + vpaddd", kChains256 * 32, avx2_int16},
#elif defined(__aarch64__)
    {"neon", "fp32", "fmla", kChainsNeon * 8, neon_fp32},
    {"neon", "int16", "smlal", kChainsNeon * 8, neon_int16},
    {"neon", "int8", "sdot", kChainsNeon * 32, neon_int8},
#endif
    {"generic", "fp32", "multiply, add", kGenericChains * 8, generic_fp32},
};

// The widest loads that are there; what they find is folded into one vector, so that none is left out. The
// processor's own prefetchers stop at the end of a page of 4 KiB, so the next one is asked for.
constexpr size_t kPiece = size_t{1} << 16;  // bytes between two looks at the clock
constexpr size_t kAhead = 4096;

#define READ(name, needs, size)                                                                       \
  needs __attribute__((noinline)) void name(const uint8_t* from, size_t num_bytes) {                  \
    using Vector = int64_t __attribute__((vector_size(size)));                                        \
    const auto* at = reinterpret_cast<const Vector*>(from);                                           \
    Vector sums[4] = {};                                                                              \
    for (size_t i = 0; i < num_bytes / (size); i += 4) {                                              \
      for (size_t b = 0; b < 4 * (size); b += 64) __builtin_prefetch(from + i * (size) + b + kAhead); \
      for (size_t j = 0; j < 4; ++j) sums[j] |= at[i + j];                                            \
    }                                                                                                 \
    for (const Vector& sum : sums) asm volatile("" : : "m"(sum));                                     \
  }
READ(read_plain, , 16)
#if defined(__x86_64__)
READ(read_avx2, __attribute__((target("avx2"))), 32)
READ(read_avx512, __attribute__((target("avx512f"))), 64)
#endif

using Read = void (*)(const uint8_t*, size_t);
Read best_read() {
#if defined(__x86_64__)
  if (find_ops("avx512") != nullptr) return read_avx512;
  if (find_ops("avx2") != nullptr) return read_avx2;
#endif
  return read_plain;
}

// Units a second: each thread calls `work(thread)`, which does some units and says how many, until the time
// is over; they begin together.
template <class Work>
double rate_of(int num_threads, double seconds, const Work& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates(static_cast<size_t>(num_threads));
  std::atomic<int> num_missing{num_threads};
  const auto measure = [&](int thread) {
    num_missing.fetch_sub(1);
    while (num_missing.load() > 0) std::this_thread::yield();
    double units = 0, passed = 0;
    const auto start = Clock::now();
    do {
      units += work(thread);
      passed = std::chrono::duration<double>(Clock::now() - start).count();
    } while (passed < seconds);
    rates[static_cast<size_t>(thread)] = units / passed;
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) threads.emplace_back(measure, i);
  measure(0);
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace

const std::vector<const Peak*>& available_peaks() {
  static const std::vector<const Peak*> available = [] {
    std::vector<const Peak*> found;
    for (const Peak& peak : kPeaks) {
      if (find_ops(peak.isa) != nullptr && (peak.is_there == nullptr || peak.is_there()))
        found.push_back(&peak);
    }
    return found;
  }();
  return available;
}

double peak_rate(const Peak& peak, int num_threads, double seconds) {
  constexpr int64_t kRounds = 1000;  // some microseconds
  return rate_of(num_threads, seconds, [&](int) {
    peak.run(kRounds);
    return kRounds * peak.ops_per_round;
  });
}

Stream::Stream(size_t num_bytes, int num_threads)
    : num_bytes_(std::max(num_bytes / kPiece, static_cast<size_t>(num_threads)) * kPiece),
      num_threads_(num_threads),
      bytes_(allocate(num_bytes_)) {
  std::memset(bytes_.get(), 1, num_bytes_);
}

double Stream::rate(double seconds) const {
  struct alignas(64) Place {
    size_t piece, begin, end;
  };
  const size_t num_pieces = num_bytes_ / kPiece, num_parts = static_cast<size_t>(num_threads_);
  std::vector<Place> places;
  for (size_t i = 0; i < num_parts; ++i) {
    const size_t begin = num_pieces * i / num_parts;
    places.push_back({begin, begin, num_pieces * (i + 1) / num_parts});
  }
  const Read read = best_read();
  return rate_of(num_threads_, seconds, [&](int thread) {
    Place& place = places[static_cast<size_t>(thread)];
    read(bytes_.get() + place.piece * kPiece, kPiece);
    if (++place.piece == place.end) place.piece = place.begin;
    return static_cast<double>(kPiece);
  });
}

}  // namespace ramet
