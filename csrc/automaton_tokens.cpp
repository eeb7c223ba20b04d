#include "automaton_tokens.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>

namespace ramet {
namespace {

// Steps of an automaton for many bytes in a few states: the last states met have all of their bytes laid out.
class Stepper {
public:
  Stepper() : laid_(kNumLaid) { forget(); }

  // From here on the steps are those of this automaton, whose number no other one has.
  void begin(const Automaton& automaton, uint64_t number) {
    if (number != number_) forget();
    automaton_ = &automaton;
    number_ = number;
  }

  // Where the bytes from a state lead, -1 for nowhere; until the next call.
  const int32_t* operator()(int32_t state) {
    Laid& laid = laid_[static_cast<size_t>(state) % kNumLaid];
    if (laid.state != state) {
      laid.state = state;
      laid.to.fill(-1);
      for (const Edge* e = automaton_->first(state); e < automaton_->past(state); ++e)
        std::fill(laid.to.begin() + e->lo, laid.to.begin() + e->hi + 1, e->to);
    }
    return laid.to.data();
  }

private:
  static constexpr size_t kNumLaid = 512;  // of 1 KiB: what a second-level cache holds
  struct Laid {
    int32_t state;
    std::array<int32_t, 256> to;
  };
  void forget() {
    for (Laid& laid : laid_) laid.state = -1;
  }

  const Automaton* automaton_ = nullptr;
  uint64_t number_ = ~uint64_t{0};
  std::vector<Laid> laid_;
};

void set_bit(uint32_t* row, int32_t id) { row[id / 32] |= uint32_t{1} << (id % 32); }

// Sets the bits of a trie's tokens that lead from a state to a state.
void add_row(const Trie& trie, const Automaton& automaton, uint64_t number, int32_t state, uint32_t* row) {
  thread_local Stepper step;  // one row's states are met again in the next one
  step.begin(automaton, number);
  std::vector<int32_t> states(trie.max_depth + 1);  // by depth, along the path to the node
  states[0] = state;
  const auto sentinel = static_cast<uint32_t>(trie.nodes.size() - 1);
  for (uint32_t i = 0; i < sentinel;) {
    const Trie::Node& node = trie.nodes[i];
    const int32_t to = step(states[node.depth])[node.byte];
    if (to < 0) {
      i = node.past;
      continue;
    }
    states[node.depth + 1] = to;
    ++i;
    for (uint32_t token = node.first_token; token < trie.nodes[i].first_token; ++token)
      set_bit(row, trie.tokens[token]);
  }
}

constexpr size_t kShortOf64 = 63;             // of 64 tokens, how many are short
constexpr size_t kMaxWork = size_t{4} << 20;  // some 20 ms to find out which states are alike

}  // namespace

RowTable::RowTable(size_t num_words, size_t max_bytes)
    : num_words_(num_words), max_slots_(std::max<size_t>(1, max_bytes / (num_words * sizeof(uint32_t)))) {}

bool RowTable::copy(int32_t slot, const Key& key, uint32_t* row) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = static_cast<size_t>(slot);
  if (slot < 0 || !(slots_[at].key == key)) return false;
  slots_[at].is_used = true;
  std::memcpy(row, words(at), num_words_ * sizeof(uint32_t));
  return true;
}

int32_t RowTable::keep(const Key& key, const uint32_t* row) {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t slot = slots_.size();
  if (slot < max_slots_) {
    if (slot % kChunk == 0) chunks_.push_back(std::make_unique<uint32_t[]>(kChunk * num_words_));
    slots_.push_back({key, true});
  } else {
    for (; slots_[hand_].is_used; hand_ = (hand_ + 1) % max_slots_) slots_[hand_].is_used = false;
    slot = hand_;
    hand_ = (hand_ + 1) % max_slots_;
    slots_[slot] = {key, true};
  }
  std::memcpy(words(slot), row, num_words_ * sizeof(uint32_t));
  return static_cast<int32_t>(slot);
}

size_t RowTable::num_kept() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return slots_.size();
}

Vocabulary::Vocabulary(const std::vector<std::string_view>& pieces, size_t num_words, size_t max_row_bytes)
    : num_words_(num_words), begins_{0}, rows_(num_words, max_row_bytes) {
  for (const std::string_view piece : pieces) {
    bytes_ += piece;
    begins_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  std::vector<int32_t> ids, lengths;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].empty()) continue;
    ids.push_back(static_cast<int32_t>(id));
    lengths.push_back(static_cast<int32_t>(pieces[id].size()));
  }
  if (!ids.empty()) {
    const auto place = lengths.begin() + static_cast<std::ptrdiff_t>((lengths.size() - 1) * kShortOf64 / 64);
    std::nth_element(lengths.begin(), place, lengths.end());
    short_length_ = static_cast<size_t>(*place);
  }
  const auto longer = std::stable_partition(ids.begin(), ids.end(), [&](int32_t id) {
    return piece(static_cast<size_t>(id)).size() <= short_length_;
  });
  long_ = trie_of({longer, ids.end()});
  short_ = trie_of({ids.begin(), longer});
}

Trie Vocabulary::trie_of(std::vector<int32_t> ids) const {
  Trie trie;
  trie.tokens = std::move(ids);
  std::sort(trie.tokens.begin(), trie.tokens.end(), [&](int32_t a, int32_t b) {
    const int order = piece(static_cast<size_t>(a)).compare(piece(static_cast<size_t>(b)));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<uint32_t> path;  // nodes of the text before
  std::string_view before;
  const auto leave = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back())
      trie.nodes[path.back()].past = static_cast<uint32_t>(trie.nodes.size());
  };
  for (size_t i = 0; i < trie.tokens.size(); ++i) {
    const std::string_view text = piece(static_cast<size_t>(trie.tokens[i]));
    const size_t common = static_cast<size_t>(
        std::mismatch(text.begin(), text.begin() + std::min(text.size(), before.size()), before.begin())
            .first -
        text.begin());
    leave(common);
    for (size_t depth = common; depth < text.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back(
          {0, static_cast<uint32_t>(i), static_cast<uint32_t>(depth), static_cast<uint8_t>(text[depth])});
    }
    trie.max_depth = std::max(trie.max_depth, text.size());
    before = text;
  }
  leave(0);
  trie.nodes.push_back({0, static_cast<uint32_t>(trie.tokens.size()), 0, 0});
  return trie;
}

void Vocabulary::find_short(const Automaton& automaton, uint64_t number, int32_t state, uint32_t* row) const {
  std::memset(row, 0, num_words_ * sizeof(uint32_t));
  add_row(short_, automaton, number, state, row);
}

void Vocabulary::add_long(const Automaton& automaton, uint64_t number, int32_t state, uint32_t* row) const {
  add_row(long_, automaton, number, state, row);
}

TokenAutomaton::TokenAutomaton(std::shared_ptr<Vocabulary> vocabulary, Automaton automaton)
    : vocabulary_(std::move(vocabulary)),
      automaton_(std::move(automaton)),
      like_(alike(automaton_, vocabulary_->short_length(), kMaxWork)),
      is_shared_(automaton_.num_states()),
      slots_(automaton_.num_states()),
      short_slots_(automaton_.num_states()) {
  static std::atomic<uint64_t> next_number{0};
  number_ = next_number++;
  for (size_t state = 0; state < like_.size(); ++state) {
    const auto first = static_cast<size_t>(like_[state]);
    if (first != state) is_shared_[first] = true;
  }
  for (std::atomic<int32_t>& slot : slots_) slot = -1;
  for (std::atomic<int32_t>& slot : short_slots_) slot = -1;
}

size_t TokenAutomaton::num_bytes() const {
  return sizeof *this + automaton_.edges.size() * sizeof(Edge) +
         automaton_.num_states() * (sizeof(uint32_t) + 1 + sizeof like_[0] + 2 * sizeof slots_[0]);
}

bool TokenAutomaton::copy_row(int32_t state, uint32_t* row) const {
  return vocabulary_->rows().copy(slots_[static_cast<size_t>(state)], {number_, state}, row);
}

void TokenAutomaton::make_row(int32_t state, uint32_t* row) const {
  RowTable& rows = vocabulary_->rows();
  const int32_t first = like_[static_cast<size_t>(state)];
  std::atomic<int32_t>& slot = short_slots_[static_cast<size_t>(first)];
  if (!rows.copy(slot, {number_, ~first}, row)) {
    vocabulary_->find_short(automaton_, number_, first, row);
    if (is_shared_[static_cast<size_t>(first)]) slot = rows.keep({number_, ~first}, row);
  }
  vocabulary_->add_long(automaton_, number_, state, row);
  slots_[static_cast<size_t>(state)] = rows.keep({number_, state}, row);
}

Walk::Walk(std::shared_ptr<const TokenAutomaton> of, std::vector<int32_t> ending)
    : of_(std::move(of)), ending_(std::move(ending)) {
  if (of_->automaton().num_states() == 0) throw std::invalid_argument("no text is in the language");
  std::sort(ending_.begin(), ending_.end());
  for (const int32_t id : ending_) {
    if (id < 0 || static_cast<size_t>(id) >= 32 * of_->vocabulary().num_words())
      throw std::invalid_argument("an id that ends the output is beyond the masks");
  }
}

void Walk::finish_row(uint32_t* row) const {
  const bool accepts = is_accepting();
  for (const int32_t id : ending_) {
    const uint32_t bit = uint32_t{1} << (id % 32);
    if (accepts) {
      row[id / 32] |= bit;
    } else {
      row[id / 32] &= ~bit;
    }
  }
}

int32_t Walk::after(int32_t state, int32_t id) const {
  const Vocabulary& vocabulary = of_->vocabulary();
  if (id < 0 || static_cast<size_t>(id) >= vocabulary.num_tokens()) return -1;
  const std::string_view piece = vocabulary.piece(static_cast<size_t>(id));
  if (piece.empty() || std::binary_search(ending_.begin(), ending_.end(), id)) return -1;
  for (const char byte : piece) {
    if (state < 0) break;
    state = of_->automaton().step(state, static_cast<uint8_t>(byte));
  }
  return state;
}

bool Walk::accept(int32_t id) {
  states_.push_back(is_lost() ? -1 : after(states_.back(), id));
  return !is_lost();
}

bool Walk::rollback(size_t num_tokens) {
  if (num_tokens >= states_.size()) return false;
  states_.resize(states_.size() - num_tokens);
  return true;
}

std::string Walk::forced(size_t most) const {
  const Automaton& automaton = of_->automaton();
  std::string text;
  for (int32_t state = states_.back(); state >= 0 && text.size() < most;) {
    const Edge* only = automaton.first(state);
    if (automaton.accepts[static_cast<size_t>(state)] || only + 1 != automaton.past(state) ||
        only->lo != only->hi)
      break;
    text += static_cast<char>(only->lo);
    state = only->to;
  }
  return text;
}

size_t Walk::count_allowed(const int32_t* ids, size_t count) const {
  int32_t state = states_.back();
  size_t num_allowed = 0;
  while (num_allowed < count && state >= 0) {
    state = after(state, ids[num_allowed]);
    if (state >= 0) ++num_allowed;
  }
  return num_allowed;
}

}  // namespace ramet
