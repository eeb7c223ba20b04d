#include <vector>

#include "prefix.h"
#include "tests/expect.h"
#include "tests/selfcheck.h"

namespace ramet {

void check_prefix() {
  std::vector<int32_t> a(700, 5), b = a;
  for (const size_t at : {size_t{0}, size_t{15}, size_t{16}, size_t{255}, size_t{256}, size_t{699}}) {
    b[at] = 6;
    expect(common_prefix(a.data(), b.data(), 700) == at, "common_prefix");
    b[at] = 5;
  }
  expect(common_prefix(a.data(), b.data(), 700) == 700, "common_prefix");
}

}  // namespace ramet
