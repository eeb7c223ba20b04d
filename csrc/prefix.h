// How far rows of tokens agree: the prefix caches ask this of thousands of tokens at every match.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ramet {

// memcmp runs at the width of the machine; only the block that differs is looked at token by token.
inline size_t common_prefix(const int32_t* a, const int32_t* b, size_t n) {
  size_t i = 0;
  for (const size_t step : {size_t{256}, size_t{16}}) {
    while (i + step <= n && std::memcmp(a + i, b + i, step * sizeof(int32_t)) == 0) i += step;
  }
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

struct TokenRow {
  const int32_t* data;
  size_t size;
};

inline size_t common_prefix(const TokenRow& a, const TokenRow& b) {
  return common_prefix(a.data, b.data, std::min(a.size, b.size));
}

// In the order of bytes, a head before what continues it: Python's order of bytes objects.
inline bool is_before(const TokenRow& a, const TokenRow& b) {
  const int order = std::memcmp(a.data, b.data, std::min(a.size, b.size) * sizeof(int32_t));
  return order != 0 ? order < 0 : a.size < b.size;
}

struct Nearest {
  size_t index = 0, num_common = 0;
};

// Of n keys in order, the one that shares most leading tokens with the probe. It stands next to the place
// where the probe would be inserted, so one binary search finds it.
template <class KeyAt>
Nearest nearest(size_t n, const KeyAt& key_at, const TokenRow& probe) {
  size_t low = 0, high = n;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (is_before(key_at(middle), probe)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  Nearest best;
  for (size_t i = low == 0 ? 0 : low - 1; i < std::min(low + 1, n); ++i) {
    const size_t num_common = common_prefix(key_at(i), probe);
    if (num_common > best.num_common) best = {i, num_common};
  }
  return best;
}

}  // namespace ramet
