// Which states of an automaton no short text tells apart, by refinement (Moore 1956): alike for n + 1 bytes
// are those whose bytes lead to states that are alike for n.
#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "automaton.h"

namespace ramet {
namespace {

struct Step {
  int32_t to;  // the first state that is alike
  uint8_t lo, hi;
  bool operator==(const Step& other) const { return to == other.to && lo == other.lo && hi == other.hi; }
};

// Where the bytes of a state lead, neighbours that lead to states alike made one.
void steps_of(const Automaton& automaton, int32_t state, const std::vector<int32_t>& like,
              std::vector<Step>& steps) {
  steps.clear();
  for (const Edge* e = automaton.first(state); e < automaton.past(state); ++e) {
    const int32_t to = like[static_cast<size_t>(e->to)];
    if (!steps.empty() && steps.back().to == to && steps.back().hi + 1 == e->lo) {
      steps.back().hi = e->hi;
    } else {
      steps.push_back({to, e->lo, e->hi});
    }
  }
}

uint64_t hash_of(const std::vector<Step>& steps) {
  uint64_t hash = steps.size();
  for (const Step& step : steps)
    hash = (hash ^ (static_cast<uint64_t>(step.to) << 16 | static_cast<uint64_t>(step.lo) << 8 | step.hi)) *
           0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 29;
}

}  // namespace

std::vector<int32_t> alike(const Automaton& automaton, size_t num_bytes, size_t max_work) {
  const size_t num_states = automaton.num_states();
  std::vector<int32_t> like(num_states, 0), next(num_states);
  size_t num_kinds = 1, work = 0;
  std::vector<Step> steps, others;
  for (size_t round = 0; round < num_bytes; ++round) {
    work += automaton.edges.size() + num_states;
    if (work > max_work) {
      std::iota(like.begin(), like.end(), 0);
      return like;
    }
    std::unordered_multimap<uint64_t, int32_t> firsts;  // of each kind, by what its steps hash to
    firsts.reserve(2 * num_kinds);
    size_t num_found = 0;
    for (size_t state = 0; state < num_states; ++state) {
      steps_of(automaton, static_cast<int32_t>(state), like, steps);
      const uint64_t hash = hash_of(steps);
      const auto [begin, end] = firsts.equal_range(hash);
      const auto same = std::find_if(begin, end, [&](const auto& entry) {
        steps_of(automaton, entry.second, like, others);
        return steps == others;
      });
      next[state] = same != end ? same->second : static_cast<int32_t>(state);
      if (same == end) {
        firsts.emplace(hash, static_cast<int32_t>(state));
        ++num_found;
      }
    }
    like.swap(next);
    if (num_found == num_kinds) break;  // no longer text tells more of them apart
    num_kinds = num_found;
  }
  return like;
}

}  // namespace ramet
