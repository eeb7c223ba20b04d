// Sets that together hold the numbers below n, and that are only ever split.
#pragma once
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace ramet {

class Partition {
public:
  // All numbers in one set; no set where there are none.
  explicit Partition(size_t n) : elements_(n), place_(n), set_(n, 0) {
    std::iota(elements_.begin(), elements_.end(), 0);
    std::iota(place_.begin(), place_.end(), 0);
    if (n > 0) sets_.push_back({0, static_cast<uint32_t>(n), 0});
  }

  uint32_t num_sets() const { return static_cast<uint32_t>(sets_.size()); }
  uint32_t set_of(uint32_t element) const { return set_[element]; }
  size_t size(uint32_t set) const { return sets_[set].end - sets_[set].begin; }
  const uint32_t* begin(uint32_t set) const { return elements_.data() + sets_[set].begin; }
  const uint32_t* end(uint32_t set) const { return elements_.data() + sets_[set].end; }

  // Marks an element for the next split; marked ones stand first in their set. May be called twice.
  void mark(uint32_t element) {
    Set& set = sets_[set_[element]];
    const uint32_t from = place_[element], to = set.begin + set.num_marked;
    if (from < to) return;
    std::swap(elements_[from], elements_[to]);
    place_[elements_[from]] = from;
    place_[element] = to;
    if (set.num_marked++ == 0) touched_.push_back(set_[element]);
  }

  // Parts marked from unmarked: the smaller part of each set becomes a set of its own, a new one.
  void split() {
    for (const uint32_t index : touched_) {
      Set& set = sets_[index];
      const uint32_t middle = set.begin + set.num_marked;
      set.num_marked = 0;
      if (middle == set.end) continue;
      Set part{set.begin, middle, 0};
      if (middle - set.begin <= set.end - middle) {
        set.begin = middle;
      } else {
        part = {middle, set.end, 0};
        set.end = middle;
      }
      for (uint32_t i = part.begin; i < part.end; ++i) set_[elements_[i]] = num_sets();
      sets_.push_back(part);
    }
    touched_.clear();
  }

private:
  struct Set {
    uint32_t begin, end, num_marked;
  };
  std::vector<uint32_t> elements_, place_, set_;  // set by set; where each element is; which set it is in
  std::vector<Set> sets_;
  std::vector<uint32_t> touched_;  // sets with marked elements
};

}  // namespace ramet
