// How far two rows of tokens agree: the radix tree asks this of thousands of tokens at every match.
#pragma once
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

}  // namespace ramet
