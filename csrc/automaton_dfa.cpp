#include <algorithm>
#include <array>
#include <numeric>

#include "automaton.h"
#include "automaton_nfa.h"
#include "partition.h"

namespace ramet {
namespace {

constexpr int64_t kMaxWork = 100'000'000;
constexpr size_t kMaxStates = 200'000;
constexpr size_t kMaxMembers = 5'000'000;      // of all sets of nodes together
constexpr size_t kMaxTransitions = 1'000'000;  // 40 bytes each while they are minimised

// A deterministic automaton while it grows: its states' edges one after the other.
struct Growing {
  std::vector<uint32_t> begins{0};
  std::vector<Edge> edges;
  std::vector<uint8_t> accepts;
};

// The subset construction. A state is a sorted set of nodes that take bytes, and whether the text may end
// there.
class Subsets {
public:
  Subsets(const Nfa& nfa, Budget& budget)
      : nfa_(nfa),
        budget_(budget),
        seen_(nfa.nodes.size(), 0),
        alone_(nfa.nodes.size(), -1),
        slots_(1024, -1) {}

  Growing run() {
    state_of({nfa_.entry}, true);
    for (size_t state = 0; state < result_.accepts.size(); ++state) grow(state);
    return std::move(result_);
  }

private:
  // The state of some nodes and all that follow from them without a byte.
  int32_t state_of(const std::vector<int32_t>& nodes, bool is_start) {
    int32_t* known = nodes.size() == 1 && !is_start ? &alone_[static_cast<size_t>(nodes[0])] : nullptr;
    if (known != nullptr && *known >= 0) return *known;
    ++stamp_;
    members_.clear();
    ends_.clear();
    bool accepts = follow(nodes, is_start, true);
    if (!ends_.empty()) accepts |= follow(ends_, is_start, false);
    std::sort(members_.begin(), members_.end());
    budget_.spend(5 * members_.size());
    const int32_t state = intern(accepts);
    if (known != nullptr) *known = state;
    return state;
  }

  // Gathers the nodes to which splits lead, and says whether the end of the pattern is among them. Beyond an
  // `end` nothing takes bytes any more, which is what `takes_bytes` says.
  bool follow(const std::vector<int32_t>& nodes, bool is_start, bool takes_bytes) {
    bool accepts = false;
    stack_.assign(nodes.begin(), nodes.end());
    while (!stack_.empty()) {
      const auto at = static_cast<size_t>(stack_.back());
      stack_.pop_back();
      if (seen_[at] == stamp_) continue;
      seen_[at] = stamp_;
      const Nfa::Node& node = nfa_.nodes[at];
      budget_.spend(5);
      const int32_t* targets = nfa_.targets.data() + node.begin;
      switch (node.kind) {
        case Nfa::Kind::bytes:
          if (takes_bytes) members_.push_back(static_cast<int32_t>(at));
          break;
        case Nfa::Kind::split:
          stack_.insert(stack_.end(), targets, targets + node.count);
          break;
        case Nfa::Kind::start:
          if (is_start) stack_.push_back(*targets);
          break;
        case Nfa::Kind::end:
          (takes_bytes ? ends_ : stack_).push_back(*targets);
          break;
        case Nfa::Kind::final:
          accepts = true;
          break;
      }
    }
    return accepts;
  }

  // The number of the set in `members_`; an open table of sets by hash.
  int32_t intern(bool accepts) {
    uint64_t hash = accepts ? 0x9E3779B97F4A7C15u : 1;
    for (const int32_t member : members_)
      hash = (hash ^ static_cast<uint32_t>(member)) * 0x9FB21C651E98DF25u, hash ^= hash >> 32;
    size_t at = hash & (slots_.size() - 1);
    for (; slots_[at] >= 0; at = (at + 1) & (slots_.size() - 1)) {
      const auto state = static_cast<size_t>(slots_[at]);
      if (hashes_[state] == hash && is_set(state, accepts)) return slots_[at];
    }
    const size_t state = hashes_.size();
    if (state >= kMaxStates || sets_.size() + members_.size() > kMaxMembers)
      throw TooLarge("its automaton is too large");
    slots_[at] = static_cast<int32_t>(state);
    hashes_.push_back(hash);
    sets_.insert(sets_.end(), members_.begin(), members_.end());
    set_begins_.push_back(static_cast<uint32_t>(sets_.size()));
    result_.accepts.push_back(accepts);
    if (2 * hashes_.size() > slots_.size()) widen();
    return static_cast<int32_t>(state);
  }
  bool is_set(size_t state, bool accepts) const {
    const uint32_t begin = set_begins_[state], end = set_begins_[state + 1];
    return (result_.accepts[state] != 0) == accepts && end - begin == members_.size() &&
           std::equal(members_.begin(), members_.end(), sets_.begin() + begin);
  }
  void widen() {
    slots_.assign(4 * slots_.size(), -1);
    for (size_t state = 0; state < hashes_.size(); ++state) {
      size_t at = hashes_[state] & (slots_.size() - 1);
      while (slots_[at] >= 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = static_cast<int32_t>(state);
    }
  }

  // The edges of a state: its nodes' edges cut where any of them begins or ends, and a state for what each
  // piece reaches.
  void grow(size_t state) {
    std::array<bool, 257> cuts{};
    const std::vector<int32_t> set(sets_.begin() + set_begins_[state],
                                   sets_.begin() + set_begins_[state + 1]);
    const auto each_edge = [&](auto&& visit) {
      for (const int32_t member : set) {
        const Nfa::Node& node = nfa_.nodes[static_cast<size_t>(member)];
        for (uint32_t i = node.begin; i < node.begin + node.count; ++i) visit(nfa_.edges[i]);
      }
    };
    each_edge([&](const Edge& e) { cuts[e.lo] = cuts[e.hi + 1u] = true; });
    std::array<uint8_t, 256> piece_of;  // and the first and last bytes of each piece
    std::array<uint8_t, 256> first, last;
    int num_pieces = 0;
    for (int byte = 0; byte < 256; ++byte) {
      if (byte == 0 || cuts[static_cast<size_t>(byte)])
        first[static_cast<size_t>(num_pieces++)] = static_cast<uint8_t>(byte);
      piece_of[static_cast<size_t>(byte)] = static_cast<uint8_t>(num_pieces - 1);
      last[static_cast<size_t>(num_pieces - 1)] = static_cast<uint8_t>(byte);
    }
    for (int piece = 0; piece < num_pieces; ++piece) reached_[static_cast<size_t>(piece)].clear();
    size_t num_reached = 0;
    each_edge([&](const Edge& e) {
      num_reached += 1u + piece_of[e.hi] - piece_of[e.lo];
      if (num_reached > kMaxMembers) throw TooLarge("its automaton is too large");
      for (size_t piece = piece_of[e.lo]; piece <= piece_of[e.hi]; ++piece) reached_[piece].push_back(e.to);
    });
    edges_.clear();
    budget_.spend(100 + 5 * num_reached);
    for (size_t piece = 0; piece < static_cast<size_t>(num_pieces); ++piece) {
      if (reached_[piece].empty()) continue;
      append(edges_, edge(first[piece], last[piece], state_of(reached_[piece], false)));
    }
    result_.edges.insert(result_.edges.end(), edges_.begin(), edges_.end());
    result_.begins.push_back(static_cast<uint32_t>(result_.edges.size()));
  }

  const Nfa& nfa_;
  Budget& budget_;
  Growing result_;
  std::vector<uint32_t> seen_;  // by node: the stamp of the closure that last met it
  uint32_t stamp_ = 0;
  std::vector<int32_t> alone_;  // by node: the state of it alone
  std::vector<int32_t> slots_, sets_;
  std::vector<uint64_t> hashes_;
  std::vector<uint32_t> set_begins_{0};
  std::vector<int32_t> members_, ends_, stack_;  // of the closure being made
  std::array<std::vector<int32_t>, 256> reached_;
  std::vector<Edge> edges_;
};

// Which states can reach an accepting one.
std::vector<uint8_t> live_states(const Growing& from) {
  const size_t n = from.accepts.size();
  std::vector<uint32_t> begins(n + 2, 0);
  for (const Edge& e : from.edges) ++begins[static_cast<size_t>(e.to) + 2];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<int32_t> sources(from.edges.size());
  for (size_t s = 0; s < n; ++s) {
    for (uint32_t i = from.begins[s]; i < from.begins[s + 1]; ++i)
      sources[begins[static_cast<size_t>(from.edges[i].to) + 1]++] = static_cast<int32_t>(s);
  }
  std::vector<uint8_t> live = from.accepts;
  std::vector<size_t> stack;
  for (size_t s = 0; s < n; ++s) {
    if (live[s]) stack.push_back(s);
  }
  while (!stack.empty()) {
    const size_t s = stack.back();
    stack.pop_back();
    for (uint32_t i = begins[s]; i < begins[s + 1]; ++i) {
      const auto source = static_cast<size_t>(sources[i]);
      if (!live[source]) live[source] = 1, stack.push_back(source);
    }
  }
  return live;
}

// Bytes that no edge tells apart are one label.
struct Labels {
  std::array<uint8_t, 256> of;
  explicit Labels(const std::vector<Edge>& edges) {
    std::array<bool, 257> cuts{};
    for (const Edge& e : edges) cuts[e.lo] = cuts[e.hi + 1u] = true;
    uint8_t label = 0;
    for (size_t byte = 0; byte < 256; ++byte) {
      if (byte > 0 && cuts[byte]) ++label;
      of[byte] = label;
    }
  }
};

// The coarsest partition of the live states in which equals go on to equals, after Hopcroft (1971), by the
// transitions that are there (Valmari 2012): blocks of states and bundles of transitions (same label, into
// the same block) refine each other.
Partition equal_states(const Growing& from, const std::vector<uint8_t>& live, Budget& budget) {
  const Labels labels(from.edges);
  std::vector<uint32_t> tails, heads;
  std::vector<uint8_t> label_of;
  for (size_t s = 0; s < from.accepts.size(); ++s) {
    for (uint32_t i = from.begins[s]; live[s] && i < from.begins[s + 1]; ++i) {
      const Edge& e = from.edges[i];
      if (!live[static_cast<size_t>(e.to)]) continue;
      for (int label = labels.of[e.lo]; label <= labels.of[e.hi]; ++label) {
        tails.push_back(static_cast<uint32_t>(s));
        heads.push_back(static_cast<uint32_t>(e.to));
        label_of.push_back(static_cast<uint8_t>(label));
      }
      if (tails.size() > kMaxTransitions) throw TooLarge("its automaton is too large");
    }
  }
  const size_t n = from.accepts.size(), m = tails.size();
  budget.spend(20 * m);
  Partition blocks(n), bundles(m);
  for (const std::vector<uint8_t>& property : {live, from.accepts}) {
    for (uint32_t s = 0; s < n; ++s) {
      if (property[s]) blocks.mark(s);
    }
    blocks.split();
  }
  std::vector<std::vector<uint32_t>> by_label(256);
  for (uint32_t t = 0; t < m; ++t) by_label[label_of[t]].push_back(t);
  for (const std::vector<uint32_t>& same : by_label) {
    for (const uint32_t t : same) bundles.mark(t);
    bundles.split();
  }
  std::vector<uint32_t> begins(n + 2, 0), into(m);  // transitions by their heads
  for (const uint32_t head : heads) ++begins[head + 2];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  for (uint32_t t = 0; t < m; ++t) into[begins[heads[t] + 1]++] = t;

  // Each block but one tells transitions apart; each bundle tells the states apart that have one of it.
  uint32_t num_blocks = 1;
  for (uint32_t bundle = 0; bundle < bundles.num_sets(); ++bundle) {
    budget.spend(10 * bundles.size(bundle));
    for (const uint32_t* t = bundles.begin(bundle); t < bundles.end(bundle); ++t) blocks.mark(tails[*t]);
    blocks.split();
    for (; num_blocks < blocks.num_sets(); ++num_blocks) {
      for (const uint32_t* s = blocks.begin(num_blocks); s < blocks.end(num_blocks); ++s) {
        budget.spend(10 * (begins[*s + 1] - begins[*s]));
        for (uint32_t i = begins[*s]; i < begins[*s + 1]; ++i) bundles.mark(into[i]);
      }
      bundles.split();
    }
  }
  return blocks;
}

// One state for each block, numbered as they are met from the start.
Automaton quotient(const Growing& from, const std::vector<uint8_t>& live, const Partition& blocks) {
  Automaton result;
  result.begins.push_back(0);
  if (from.accepts.empty() || !live[0]) return result;
  std::vector<int32_t> number(blocks.num_sets(), -1);
  std::vector<uint32_t> met{0};  // a state of each block
  number[blocks.set_of(0)] = 0;
  std::vector<Edge> edges;
  for (size_t at = 0; at < met.size(); ++at) {
    const uint32_t s = met[at];
    edges.clear();
    for (uint32_t i = from.begins[s]; i < from.begins[s + 1]; ++i) {
      const auto target = static_cast<uint32_t>(from.edges[i].to);
      if (!live[target]) continue;
      int32_t& to = number[blocks.set_of(target)];
      if (to < 0) {
        to = static_cast<int32_t>(met.size());
        met.push_back(target);
      }
      append(edges, edge(from.edges[i].lo, from.edges[i].hi, to));
    }
    result.edges.insert(result.edges.end(), edges.begin(), edges.end());
    result.begins.push_back(static_cast<uint32_t>(result.edges.size()));
    result.accepts.push_back(from.accepts[s]);
  }
  result.edges.shrink_to_fit();
  return result;
}

}  // namespace

void append(std::vector<Edge>& edges, const Edge& next) {
  if (!edges.empty() && edges.back().to == next.to && edges.back().hi + 1 == next.lo) {
    edges.back().hi = next.hi;
  } else {
    edges.push_back(next);
  }
}

Automaton make_automaton(const int32_t* program, size_t size) {
  Budget budget(kMaxWork);
  const Growing all = Subsets(make_nfa(program, size, budget), budget).run();
  const std::vector<uint8_t> live = live_states(all);
  return quotient(all, live, equal_states(all, live, budget));
}

}  // namespace ramet
