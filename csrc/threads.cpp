#include "threads.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace ramet {
namespace {

constexpr int kLooksBeforeYield = 20'000;  // about a millisecond
constexpr int kPausesPerIdleLook = 16;
constexpr auto kIdle = std::chrono::microseconds(50);  // between two series of jobs

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits a moment; longer where it has been many, as when there are more threads than free cores.
void wait_for_another(int looks) {
  if (looks < kLooksBeforeYield) {
    pause_briefly();
  } else {
    std::this_thread::yield();
  }
}

}  // namespace

Pool::Pool(int num_threads) : owner_(getpid()), runs_(static_cast<size_t>(num_threads)) {
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

void Pool::engage() {
  is_forked_ = getpid() != owner_;
  if (is_forked_) return;
  engaged_.store(true);  // before the look at the sleepers, as they look at it after they are counted
  if (num_asleep_.load() > 0) {
    const std::lock_guard<std::mutex> lock(bed_->mutex);  // one that is counted may not sleep yet
    bed_->wake.notify_all();
  }
}

void Pool::run_job(int64_t n, int64_t grain, const void* work, Call call) {
  const Engagement engagement(*this);
  if (is_forked_) {
    Ranges all(n);
    call(work, all);
    return;
  }
  const auto num_threads = static_cast<int64_t>(runs_.size());
  const int64_t grains = (n + grain - 1) / grain;
  const auto first_of = [&](int64_t thread) { return std::min(grains * thread / num_threads * grain, n); };
  for (int64_t t = num_threads; t-- > 0;) {
    Run& run = runs_[static_cast<size_t>(t)];
    run.grain.store(grain, std::memory_order_relaxed);
    run.end = first_of(t + 1);
    run.work = work;
    run.call = call;
    run.state.store(static_cast<uint64_t>(run.end - first_of(t)), std::memory_order_release);
  }
  Ranges ranges(*this, 0);
  if (ranges.next()) do_work(work, call, ranges);
  wait_for_workers();
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

// Where it throws nobody takes more of what has been dealt of this job.
void Pool::do_work(const void* work, Call call, Ranges& ranges) noexcept {
  try {
    call(work, ranges);
  } catch (...) {
    for (Run& run : runs_) run.state.fetch_and(kInside);
    const std::lock_guard<std::mutex> lock(bed_->mutex);
    if (!thrown_) thrown_ = std::current_exception();
  }
}

void Pool::wait_for_workers() {
  for (const Run& run : runs_) {
    for (int looks = 0; run.state.load(std::memory_order_acquire) != 0; ++looks) wait_for_another(looks);
  }
}

// Half of what is left of a run, whole grains, from its front; sets `mark` in its state. A thread that
// has taken something holds up the end of the job until it is done, so what it then reads of the run stays.
bool Pool::take(Run& run, uint64_t mark, Ranges& into) {
  uint64_t state = run.state.load(std::memory_order_relaxed);
  for (;;) {
    const auto left = static_cast<int64_t>(state & ~kInside);
    if (left == 0) return false;
    const int64_t grain = run.grain.load(std::memory_order_relaxed);
    const int64_t num = std::min(left, std::max<int64_t>(1, (left / 2 + grain - 1) / grain) * grain);
    if (run.state.compare_exchange_weak(state, (state - static_cast<uint64_t>(num)) | mark,
                                        std::memory_order_acq_rel, std::memory_order_relaxed)) {
      into.begin = run.end - left;
      into.end = into.begin + num;
      return true;
    }
  }
}

bool Pool::Ranges::next() {
  if (pool_ == nullptr) return false;
  const size_t own = static_cast<size_t>(thread), num = pool_->runs_.size();
  for (size_t i = 0; i < num; ++i) {
    if (take(pool_->runs_[(own + i) % num], 0, *this)) return true;
  }
  return false;
}

void Pool::serve(int thread) {
  while (!stop_.load()) {
    const auto deadline = std::chrono::steady_clock::now() + kIdle;
    while (!is_wanted() && std::chrono::steady_clock::now() < deadline) {
      for (int i = 0; i < kPausesPerIdleLook; ++i) pause_briefly();
    }
    if (!is_wanted()) {
      std::unique_lock<std::mutex> lock(bed_->mutex);
      num_asleep_.fetch_add(1);
      bed_->wake.wait(lock, [&] { return is_wanted(); });
      num_asleep_.fetch_sub(1);
    }
    attend(thread);
  }
}

// Joins jobs as long as the caller is engaged. To join is to take of one's own run.
void Pool::attend(int thread) {
  Run& own = runs_[static_cast<size_t>(thread)];
  Ranges ranges(*this, thread);
  for (int looks = 0; engaged_.load(std::memory_order_acquire); ++looks) {
    if (take(own, kInside, ranges)) {
      do_work(own.work, own.call, ranges);
      own.state.fetch_and(~kInside, std::memory_order_release);
      looks = 0;
    } else {
      wait_for_another(looks);
    }
  }
}

}  // namespace ramet
