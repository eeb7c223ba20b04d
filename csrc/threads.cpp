#include "threads.h"

#include <unistd.h>

#include <chrono>

namespace ramet {
namespace {

constexpr int kPausesPerLook = 16;
constexpr int kLooksBeforeYield = 1000;
constexpr auto kSpin = std::chrono::microseconds(50);  // the gap between two kernels of a decode step

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int num_threads) : owner_(getpid()) {
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { serve(i); });
  } catch (...) {
    end();
    throw;
  }
}

Pool::~Pool() {
  if (getpid() == owner_) {
    end();
  } else {  // a forked child: the threads exist in the parent only
    for (std::thread& worker : workers_) worker.detach();
    static_cast<void>(bed_.release());  // it has sleepers that will never leave, for whom its end would wait
  }
}

void Pool::end() {
  {
    const std::lock_guard<std::mutex> lock(bed_->mutex);
    stop_.store(true);
  }
  bed_->wake.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run_job(const Job& job) {
  if (getpid() != owner_) {
    job.call(job.work, 0, job.n, 0);
    return;
  }
  job_ = job;
  next_.store(0);
  const uint64_t turn = (gate_.load() >> 17) + 1;
  gate_.store(turn << 17 | kOpen);
  if (num_asleep_.load() > 0) {
    const std::lock_guard<std::mutex> lock(
        bed_->mutex);  // a worker is asleep, or has not yet looked at the gate
    bed_->wake.notify_all();
  }
  take_ranges(0);
  gate_.fetch_and(~kOpen);
  for (int looks = 0; (gate_.load() & kInside) != 0; ++looks) {
    if (looks < kLooksBeforeYield) {
      pause_briefly();
    } else {
      std::this_thread::yield();  // more threads than free cores: let the one inside finish
    }
  }
}

void Pool::take_ranges(int thread) {
  for (;;) {
    const int64_t begin = next_.fetch_add(job_.grain);
    if (begin >= job_.n) return;
    const int64_t end = begin + job_.grain < job_.n ? begin + job_.grain : job_.n;
    job_.call(job_.work, begin, end, thread);
  }
}

// Enters the job where one is open that this worker has not seen.
bool Pool::join(uint64_t& seen) {
  uint64_t gate = gate_.load();
  while ((gate & kOpen) != 0 && gate >> 17 != seen) {
    if (gate_.compare_exchange_weak(gate, gate + 1)) {
      seen = gate >> 17;
      return true;
    }
  }
  return false;
}

void Pool::serve(int thread) {
  uint64_t seen = 0;
  while (!stop_.load()) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    bool joined = join(seen);
    while (!joined && !stop_.load() && std::chrono::steady_clock::now() < deadline) {
      for (int i = 0; i < kPausesPerLook; ++i) pause_briefly();
      joined = join(seen);
    }
    if (!joined) {
      std::unique_lock<std::mutex> lock(bed_->mutex);
      num_asleep_.fetch_add(1);
      bed_->wake.wait(lock, [&] { return stop_.load() || (joined = join(seen)); });
      num_asleep_.fetch_sub(1);
    }
    if (joined) {
      take_ranges(thread);
      gate_.fetch_sub(1);
    }
  }
}

}  // namespace ramet
