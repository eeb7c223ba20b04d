#include <atomic>
#include <stdexcept>
#include <thread>

#include "tests/expect.h"
#include "tests/selfcheck.h"

namespace ramet {
namespace {

// Everyone of one kind throws, and the others are at work until then.
void check_throw(Pool& pool, bool by_workers) {
  std::atomic<bool> is_thrown{false};
  std::atomic<int> num_inside{0};
  try {
    pool.run(97, 2, [&](int64_t, int64_t, int thread) {
      const bool throws = (thread != 0) == by_workers;
      ++num_inside;
      while (!throws && !is_thrown) std::this_thread::yield();
      is_thrown = true;
      --num_inside;
      if (throws) throw std::runtime_error("thrown");
    });
    expect(false, "pool: what work throws comes out");
  } catch (const std::runtime_error& error) {
    expect(error.what() == std::string("thrown"), "pool: as it was thrown");
  }
  expect(is_thrown && num_inside == 0, "pool: when it comes out nobody is at work");
}

}  // namespace

void check_pool() {
  Pool pool(3);
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<int> hits(static_cast<size_t>(turn % 97));
    pool.run(turn % 97, 1 + turn % 5, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
    });
    for (const int n : hits) expect(n == 1, "pool: each item once");
    if (turn % 50 == 0) check_throw(pool, turn % 100 == 0);
  }
}

}  // namespace ramet
