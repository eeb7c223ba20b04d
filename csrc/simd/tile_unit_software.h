// Part of tile_unit.h: plain loops over memory, for checks on machines without AMX, and for sanitizers, which
// do not see what a tile register reads. It rounds as attention_lone_tiles.h takes the unit to round.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ramet {
namespace RAMET_ISA {

struct SoftwareTile {
  int rows = 0, row_bytes = 0;
  alignas(64) uint8_t bytes[16][64];

  template <class Item>
  Item get(int row, int i) const {
    Item item;
    std::memcpy(&item, bytes[row] + i * sizeof(Item), sizeof(Item));
    return item;
  }
  template <class Item>
  void put(int row, int i, Item item) {
    std::memcpy(bytes[row] + i * sizeof(Item), &item, sizeof(Item));
  }
};

// The unit would raise an invalid instruction.
static inline void tile_expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "tiles: %s\n", what);
  std::abort();
}

// One set a thread, whichever file asks.
inline SoftwareTile& software_tile(int t) {
  static thread_local SoftwareTile tiles[8];
  return tiles[t];
}

static inline void tiles_begin(const TileShapes& shapes) {
  for (int t = 0; t < 8; ++t) {
    SoftwareTile& tile = software_tile(t);
    tile_expect(shapes.rows[t] <= 16 && shapes.row_bytes[t] <= 64 && shapes.row_bytes[t] % 4 == 0, "shape");
    tile.rows = shapes.rows[t];
    tile.row_bytes = shapes.row_bytes[t];
    std::memset(tile.bytes, 0, sizeof tile.bytes);
  }
}
static inline void tiles_end() {
  for (int t = 0; t < 8; ++t) software_tile(t).rows = 0;
}

template <int T>
static inline void tile_load(const void* p, int64_t stride) {
  SoftwareTile& tile = software_tile(T);
  tile_expect(tile.rows > 0, "load of a register without a shape");
  const auto* from = static_cast<const uint8_t*>(p);
  for (int m = 0; m < tile.rows; ++m, from += stride)
    std::memcpy(tile.bytes[m], from, static_cast<size_t>(tile.row_bytes));
}
template <int T>
static inline void tile_store(void* p, int64_t stride) {
  const SoftwareTile& tile = software_tile(T);
  tile_expect(tile.rows > 0, "store of a register without a shape");
  auto* to = static_cast<uint8_t*>(p);
  for (int m = 0; m < tile.rows; ++m, to += stride)
    std::memcpy(to, tile.bytes[m], static_cast<size_t>(tile.row_bytes));
}
template <int T>
static inline void tile_zero() {
  SoftwareTile& tile = software_tile(T);
  tile_expect(tile.rows > 0, "zeros for a register without a shape");
  std::memset(tile.bytes, 0, sizeof tile.bytes);
}

template <int Sum, int A, int B>
static inline void expect_fit() {
  const SoftwareTile &sum = software_tile(Sum), &a = software_tile(A), &b = software_tile(B);
  tile_expect(a.rows > 0 && sum.rows == a.rows && b.rows == a.row_bytes / 4 && sum.row_bytes == b.row_bytes,
              "shapes that do not fit together");
}

// As the unit rounds: of a row of pairs the first ones are a chain of fused products from zero on and the
// second ones another, denormals are zero, and the sum of the two is added.
template <int Sum, int A, int B>
static inline void tile_dot_bf16() {
  expect_fit<Sum, A, B>();
  SoftwareTile& sum = software_tile(Sum);
  const SoftwareTile &a = software_tile(A), &b = software_tile(B);
  const auto real = [&](int row, int i) {
    const uint32_t bits = uint32_t{a.get<uint16_t>(row, i)} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return _mm512_set1_ps(value);
  };
  constexpr unsigned kUnits = 0x8040 | 0x1f80;  // to the nearest, denormals are zero, nothing is trapped
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kUnits);
  for (int m = 0; m < a.rows; ++m) {
    __m512 first = _mm512_setzero_ps(), second = first;
    for (int k = 0; k < b.rows; ++k) {
      const __m512i pairs = _mm512_load_si512(b.bytes[k]);
      first = _mm512_fmadd_ps(real(m, 2 * k), f_from_lower(pairs), first);
      second = _mm512_fmadd_ps(real(m, 2 * k + 1), f_from_upper(pairs), second);
    }
    const __m512 both = _mm512_add_ps(first, second);
    _mm512_store_ps(sum.bytes[m], _mm512_add_ps(_mm512_load_ps(sum.bytes[m]), both));
  }
  _mm_setcsr(before);
}

template <bool ASigned, bool BSigned, int Sum, int A, int B>
static inline void tile_dot_bytes() {
  expect_fit<Sum, A, B>();
  SoftwareTile& sum = software_tile(Sum);
  const SoftwareTile &a = software_tile(A), &b = software_tile(B);
  const auto whole = [](uint8_t byte, bool is_signed) {
    return is_signed ? int32_t{static_cast<int8_t>(byte)} : int32_t{byte};
  };
  for (int m = 0; m < a.rows; ++m) {
    for (int n = 0; n < b.row_bytes / 4; ++n) {
      auto total = sum.get<uint32_t>(m, n);  // it wraps
      for (int k = 0; k < b.rows; ++k) {
        for (int i = 0; i < 4; ++i) {
          const int32_t x = whole(a.bytes[m][4 * k + i], ASigned), y = whole(b.bytes[k][4 * n + i], BSigned);
          total += static_cast<uint32_t>(x * y);
        }
      }
      sum.put<uint32_t>(m, n, total);
    }
  }
}

}  // namespace RAMET_ISA
}  // namespace ramet
