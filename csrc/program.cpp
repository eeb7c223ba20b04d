#include "program.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>

namespace ramet {
namespace {

constexpr int64_t kBlockRows = 256;

}  // namespace

Rows Frame::rows(int id) const {
  const Program::Register& r = program_.registers_[static_cast<size_t>(id)];
  return {r.data + (r.is_local ? 0 : begin * r.width), num, r.width};
}

float* Frame::out(int id) { return const_cast<float*>(rows(id).x); }

int32_t Frame::adapter_of(int id, int64_t row) const {
  const bool is_wanted = program_.registers_[static_cast<size_t>(id)].is_wanted_rows;
  return feed.adapter_of[is_wanted ? feed.wanted[begin + row] : begin + row];
}

Program::Program(const std::vector<int64_t>& widths, std::vector<std::unique_ptr<Step>> steps, int result)
    : steps_(std::move(steps)), result_(result) {
  for (const auto& step : steps_) step->check_widths(widths);
  for (const int64_t width : widths) {
    registers_.emplace_back();
    registers_.back().width = width;
  }
  for (const auto& step : steps_) check_rows(*step);
  if (!registers_.at(static_cast<size_t>(result)).is_written) {
    throw std::invalid_argument("no step writes the result");
  }
  add_segments();
}

// Every register is written before it is read, and what a step reads and updates has the same rows.
void Program::check_rows(const Step& step) {
  bool is_wanted_rows = false;
  for (const int id : step.reads) {
    const Register& r = registers_.at(static_cast<size_t>(id));
    if (!r.is_written)
      throw std::invalid_argument(std::string(step.name) + " reads what no step has written");
    if (id != step.reads.front() && r.is_wanted_rows != is_wanted_rows) {
      throw std::invalid_argument(std::string(step.name) + " mixes all rows with the wanted ones");
    }
    is_wanted_rows = r.is_wanted_rows;
  }
  if (step.takes_rows() && is_wanted_rows) throw std::invalid_argument("rows are taken once");
  is_wanted_rows = is_wanted_rows || step.takes_rows();
  Register& out = registers_.at(static_cast<size_t>(step.writes));
  if (out.is_written && out.is_wanted_rows != is_wanted_rows) {
    throw std::invalid_argument("a register holds all rows or the wanted ones, not now these and then those");
  }
  out.is_written = true;
  out.is_wanted_rows = is_wanted_rows;
}

void Program::add_segments() {
  const auto rows_of = [this](const Step& step) {
    return registers_[static_cast<size_t>(step.writes)].is_wanted_rows;
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    const bool in_blocks = steps_[i]->extent == Step::Extent::each_row;
    if (in_blocks && i > 0 && segments_.back().in_blocks && rows_of(*steps_[i]) == rows_of(*steps_[i - 1])) {
      segments_.back().last = i + 1;
    } else {
      segments_.push_back({i, i + 1, in_blocks});
    }
  }
  for (const Segment& segment : segments_) {
    std::vector<bool> is_made(registers_.size(), false);  // in this segment
    for (size_t i = segment.first; i < segment.last; ++i) {
      for (const int id : steps_[i]->reads) {
        if (!is_made[static_cast<size_t>(id)]) registers_[static_cast<size_t>(id)].is_local = false;
      }
      is_made[static_cast<size_t>(steps_[i]->writes)] = true;
      if (!segment.in_blocks) registers_[static_cast<size_t>(steps_[i]->writes)].is_local = false;
    }
  }
  registers_[static_cast<size_t>(result_)].is_local = false;
}

void Program::check(const Feed& feed) const {
  require_below(feed.wanted, feed.num_wanted, feed.num_rows, "wanted rows");
  if (!feed.adapters.empty()) {
    require_below(feed.adapter_of, feed.num_rows, static_cast<int64_t>(feed.adapters.size()) + 1,
                  "adapters of rows");
  }
  for (const auto& step : steps_) step->check(feed);
  if (feed.plan == nullptr || feed.layers == nullptr) return;
  require_below(feed.plan->positions.data(), feed.num_rows, feed.angles.num_positions, "positions");
  int64_t num_slots = std::numeric_limits<int64_t>::max();
  for (const KV& layer : *feed.layers) num_slots = std::min(num_slots, layer.num_slots);
  require_below(feed.slots, feed.num_rows, num_slots, "slots");
}

void Program::run(Kernels& kernels, const Feed& feed, float* out) {
  for (size_t i = 0; i < registers_.size(); ++i) {
    Register& r = registers_[i];
    const int64_t all = num_rows(static_cast<int>(i), feed),
                  rows = r.is_local ? std::min(all, kBlockRows) : all;
    const bool is_result = static_cast<int>(i) == result_;
    r.data = is_result ? out : r.memory.get<float>(static_cast<size_t>(rows * r.width));
  }
  Frame frame(*this, kernels, feed);
  for (const Segment& segment : segments_) run_segment(segment, frame);
}

void Program::run_segment(const Segment& segment, Frame& frame) {
  const int64_t rows = num_rows(steps_[segment.first]->writes, frame.feed);
  const int64_t block = segment.in_blocks ? kBlockRows : rows;
  for (frame.begin = 0; frame.begin < rows; frame.begin += block) {
    frame.num = std::min(block, rows - frame.begin);
    for (size_t i = segment.first; i < segment.last; ++i) run_step(i, frame);
  }
}

void Program::run_step(size_t i, Frame& frame) {
  if (nanoseconds_.empty()) return steps_[i]->run(frame);
  const auto start = std::chrono::steady_clock::now();
  steps_[i]->run(frame);
  const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - start;
  nanoseconds_[i] += taken.count();
}

void Program::profile(bool on) { nanoseconds_.assign(on ? steps_.size() : 0, 0); }

std::map<std::string, int64_t> Program::profiled() const {
  std::map<std::string, int64_t> by_name;
  for (size_t i = 0; i < nanoseconds_.size(); ++i) by_name[steps_[i]->name] += nanoseconds_[i];
  return by_name;
}

}  // namespace ramet
