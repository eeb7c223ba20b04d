// A model's whole pass over a batch: steps over registers, put down once and run at every step of the engine.
//
// A register is a matrix of floats, with a row for each token of the batch or for each row that is wanted of
// it. Steps whose rows depend on nothing but their own row are run in blocks of rows, one step after another,
// so that what lies between them stays in the cache, and registers that only they use are no larger than a
// block.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"

namespace ramet {

// What an adapter does to a model's products, by the number of each.
struct Adapter {
  std::vector<LowRank> changes;
};

// What changes from run to run. What a program does not read may be null.
struct Feed {
  int64_t num_rows = 0;
  const int32_t* token_ids = nullptr;
  const float* loaded = nullptr;  // rows of the register that is loaded
  int64_t loaded_width = 0;
  Wanted outputs{};                     // of the loaded rows, where not all are wanted
  const int32_t* adapter_of = nullptr;  // of each row: which of `adapters`, counted from 1; 0 for none
  std::vector<const Adapter*> adapters{};
  const int32_t* slots = nullptr;
  const int32_t* wanted = nullptr;
  int64_t num_wanted = 0;
  Angles angles{};
  const Plan* plan = nullptr;
  const std::vector<KV>* layers = nullptr;
};

// Throws std::invalid_argument where one is not from 0 to limit - 1.
void require_below(const int32_t* ids, int64_t num, int64_t limit, const char* what);

class Program;

// What a step sees: the kernels, the feed, and a block of rows of each register.
class Frame {
public:
  Frame(Program& program, Kernels& k, const Feed& f) : kernels(k), feed(f), program_(program) {}

  Rows rows(int id) const;  // of the block, or all
  float* out(int id);       // where the block's rows go
  int32_t adapter_of(int id, int64_t row) const;

  Kernels& kernels;
  const Feed& feed;
  int64_t begin = 0, num = 0;  // the block

private:
  Program& program_;
};

class Step {
public:
  enum class Extent { each_row, all_rows };  // whether a row depends on nothing but its own row

  Step(const char* name, Extent extent, std::vector<int> reads, int writes)
      : name(name), extent(extent), reads(std::move(reads)), writes(writes) {}
  virtual ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  virtual void run(Frame& frame) const = 0;
  // Both throw std::invalid_argument: where registers of these widths do not fit, and where the feed does
  // not.
  virtual void check_widths(const std::vector<int64_t>& widths) const = 0;
  virtual void check(const Feed&) const {}
  virtual bool takes_rows() const { return false; }  // makes the wanted rows of all

  const char* const name;
  const Extent extent;
  const std::vector<int> reads;
  const int writes;
};

class Program {
public:
  // Throws std::invalid_argument where the steps do not fit together.
  Program(const std::vector<int64_t>& widths, std::vector<std::unique_ptr<Step>> steps, int result);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int64_t result_width() const { return registers_[static_cast<size_t>(result_)].width; }
  int64_t num_results(const Feed& feed) const { return num_rows(result_, feed); }

  // Throws std::invalid_argument where the feed is not one that all steps can run on.
  void check(const Feed& feed) const;
  // `out` becomes the result's register. The feed is trusted.
  void run(Kernels& kernels, const Feed& feed, float* out);

  // Nanoseconds by name of step since this was switched on; empty while it is off.
  void profile(bool on);
  std::map<std::string, int64_t> profiled() const;

private:
  friend class Frame;

  struct Register {
    int64_t width;
    bool is_wanted_rows = false, is_written = false;
    bool is_local = true;  // no block reads in it what another has written
    Scratch memory;
    float* data = nullptr;  // in this run
  };
  struct Segment {  // steps that are run block by block, or one that sees all rows
    size_t first, last;
    bool in_blocks;
  };

  void check_rows(const Step& step);
  void add_segments();
  int64_t num_rows(int id, const Feed& feed) const {
    return registers_[static_cast<size_t>(id)].is_wanted_rows ? feed.num_wanted : feed.num_rows;
  }
  void run_segment(const Segment& segment, Frame& frame);
  void run_step(size_t i, Frame& frame);

  std::vector<Register> registers_;
  const std::vector<std::unique_ptr<Step>> steps_;
  const int result_;
  std::vector<Segment> segments_;
  std::vector<int64_t> nanoseconds_;  // of each step, or empty
};

}  // namespace ramet
