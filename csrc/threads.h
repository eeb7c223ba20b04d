// A small persistent pool. The caller takes part, and never waits for a worker that has not joined.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ramet {

// Not to be shared by two callers at a time. After a fork() the child's pool has no workers, and the caller
// does it all.
//
// A job's items are dealt out as one run of neighbours for each thread. A thread takes half of what is
// left of its own run at a time, so that it reads straight on, and when that is gone, halves of the
// others'.
class Pool {
  struct Run;

public:
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(runs_.size()); }

  // Keeps the workers awake between jobs: they look for the next one all the time. For a series of jobs with
  // little between them; may be nested.
  class Engagement {
  public:
    explicit Engagement(Pool& pool) : pool_(pool) {
      if (pool_.depth_++ == 0) pool_.engage();
    }
    ~Engagement() {
      if (--pool_.depth_ == 0) pool_.engaged_.store(false, std::memory_order_release);
    }
    Engagement(const Engagement&) = delete;
    Engagement& operator=(const Engagement&) = delete;

  private:
    Pool& pool_;
  };

  // The ranges [begin, end) of a job that one thread gets, one after another. The first is already there.
  class Ranges {
  public:
    int64_t begin, end;
    const int thread;

    bool next();

  private:
    friend class Pool;
    Ranges(Pool& pool, int t) : begin(0), end(0), thread(t), pool_(&pool) {}
    Ranges(int64_t n) : begin(0), end(n), thread(0), pool_(nullptr) {}

    Pool* pool_;
  };

  // Calls work(Ranges&) once in each thread that joins; all their ranges together are 0..n, each item once,
  // in multiples of `grain` but for the last. No more than `grain` items are done by the caller alone. What a
  // thread's work throws comes out here when all are done with theirs; items that nobody had taken are left.
  template <class Work>
  void share(int64_t n, int64_t grain, const Work& work) {
    if (n <= 0) return;
    if (runs_.size() == 1 || n <= grain) {
      Ranges all(n);
      work(all);
      return;
    }
    run_job(n, grain, &work, [](const void* w, Ranges& ranges) { (*static_cast<const Work*>(w))(ranges); });
  }

  // Calls work(begin, end, thread) on such ranges.
  template <class Work>
  void run(int64_t n, int64_t grain, const Work& work) {
    share(n, grain, [&](Ranges& ranges) {
      do work(ranges.begin, ranges.end, ranges.thread);
      while (ranges.next());
    });
  }

private:
  using Call = void (*)(const void* work, Ranges& ranges);

  // What one thread is dealt. All but `state` is written while `state` is 0 and read by those who have taken
  // items, so the caller never writes what another still reads.
  struct alignas(64) Run {
    std::atomic<uint64_t> state{0};  // items left, and kInside while its thread, a worker, is at work
    std::atomic<int64_t> grain{1};
    int64_t end = 0;
    const void* work = nullptr;
    Call call = nullptr;
  };
  static constexpr uint64_t kInside = uint64_t{1} << 63;

  void run_job(int64_t n, int64_t grain, const void* work, Call call);
  void do_work(const void* work, Call call, Ranges& ranges) noexcept;
  void wait_for_workers();
  static bool take(Run& run, uint64_t mark, Ranges& into);
  void engage();
  bool is_wanted() const { return engaged_.load() || stop_.load(); }
  void serve(int thread);
  void attend(int thread);
  void end();

  const int owner_;  // process id
  int depth_ = 0;
  bool is_forked_ = false;
  alignas(64) std::atomic<bool> engaged_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> num_asleep_{0};
  std::vector<Run> runs_;      // one a thread, the caller's first
  std::exception_ptr thrown_;  // of a job, by the first that threw; its mutex is the bed's
  struct Bed {                 // where workers sleep
    std::mutex mutex;
    std::condition_variable wake;
  };
  std::unique_ptr<Bed> bed_ = std::make_unique<Bed>();
  std::vector<std::thread> workers_;
};

}  // namespace ramet
