// A small persistent pool. The caller takes part, and never waits for a worker that has not joined.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ramet {

// Not to be shared by two callers at a time. After a fork() the child's pool has no workers, and the caller
// does it all.
class Pool {
public:
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(begin, end, thread) on ranges of at most `grain` items that together are 0..n, each item once.
  template <class Work>
  void run(int64_t n, int64_t grain, const Work& work) {
    if (workers_.empty() || n <= grain) {
      if (n > 0) work(int64_t{0}, n, 0);
      return;
    }
    run_job({n, grain, &work, [](const void* w, int64_t begin, int64_t end, int thread) {
               (*static_cast<const Work*>(w))(begin, end, thread);
             }});
  }

private:
  struct Job {
    int64_t n, grain;
    const void* work;
    void (*call)(const void* work, int64_t begin, int64_t end, int thread);
  };

  void run_job(const Job& job);
  void take_ranges(int thread);
  bool join(uint64_t& seen);
  void serve(int thread);
  void end();

  // gate_ = turn << 17 | open << 16 | workers inside. A worker joins only while it is open, and the caller,
  // having closed it, waits only for those inside.
  static constexpr uint64_t kOpen = uint64_t{1} << 16, kInside = kOpen - 1;

  const int owner_;  // process id
  Job job_{};
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<bool> stop_{false};
  std::atomic<int> num_asleep_{0};
  struct Bed {  // where workers sleep
    std::mutex mutex;
    std::condition_variable wake;
  };
  std::unique_ptr<Bed> bed_ = std::make_unique<Bed>();
  std::vector<std::thread> workers_;
};

}  // namespace ramet
