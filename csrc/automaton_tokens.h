// Automata over the tokens of a vocabulary: which tokens can come next in each state, found once and kept.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "automaton.h"

namespace ramet {

// Rows of bits, at most so many bytes of them. Any thread may call.
class RowTable {
public:
  RowTable(size_t num_words, size_t max_bytes);

  struct Key {
    uint64_t automaton;
    int32_t state;  // ~state for the part of its row that is of short tokens
    bool operator==(const Key& other) const { return automaton == other.automaton && state == other.state; }
  };
  // Copies the row in `slot` if it is (still) that of the key.
  bool copy(int32_t slot, const Key& key, uint32_t* row);
  // Keeps a row, in the place of one that was not asked for lately if the table is full; its slot.
  int32_t keep(const Key& key, const uint32_t* row);
  size_t num_kept();

private:
  struct Slot {
    Key key;
    bool is_used;  // since the hand last passed
  };
  uint32_t* words(size_t slot) { return chunks_[slot / kChunk].get() + slot % kChunk * num_words_; }

  static constexpr size_t kChunk = 64;
  const size_t num_words_, max_slots_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<uint32_t[]>> chunks_;
  std::vector<Slot> slots_;
  size_t hand_ = 0;
};

// Texts in preorder.
struct Trie {
  struct Node {
    uint32_t past,
        first_token;  // after all nodes that begin as this one does; its tokens are up to the next one's
    uint32_t depth;   // of its byte: 0 for the first of a text
    uint8_t byte;
  };
  std::vector<Node> nodes;
  std::vector<int32_t> tokens;
  size_t max_depth = 0;
};

// The texts of all tokens, and the rows of all automata over them. Nothing but the rows ever changes.
class Vocabulary {
public:
  // `pieces` are by id; an empty one is never text. A row has `num_words` words of 32 bits.
  Vocabulary(const std::vector<std::string_view>& pieces, size_t num_words, size_t max_row_bytes);

  size_t num_tokens() const { return begins_.size() - 1; }
  size_t num_words() const { return num_words_; }
  std::string_view piece(size_t id) const {
    return std::string_view(bytes_).substr(begins_[id], begins_[id + 1] - begins_[id]);
  }
  // Most tokens have at most so many bytes.
  size_t short_length() const { return short_length_; }
  // Sets the bits of the short tokens that lead from a state to a state, and clears all others. `number` is
  // the automaton's own.
  void find_short(const Automaton& automaton, uint64_t number, int32_t state, uint32_t* row) const;
  // Sets those of the long ones.
  void add_long(const Automaton& automaton, uint64_t number, int32_t state, uint32_t* row) const;
  RowTable& rows() { return rows_; }

private:
  Trie trie_of(std::vector<int32_t> ids) const;

  const size_t num_words_;
  std::string bytes_;
  std::vector<uint32_t> begins_;
  size_t short_length_ = 0;
  Trie short_, long_;
  RowTable rows_;
};

// An automaton over a vocabulary: what all sequences of one constraint share. Any thread may use it.
class TokenAutomaton {
public:
  TokenAutomaton(std::shared_ptr<Vocabulary> vocabulary, Automaton automaton);
  TokenAutomaton(const TokenAutomaton&) = delete;
  TokenAutomaton& operator=(const TokenAutomaton&) = delete;

  const Automaton& automaton() const { return automaton_; }
  Vocabulary& vocabulary() const { return *vocabulary_; }
  size_t num_bytes() const;

  // Copies the row of a state if it is kept.
  bool copy_row(int32_t state, uint32_t* row) const;
  // States that no short token tells apart share that part of their rows.
  void make_row(int32_t state, uint32_t* row) const;

private:
  std::shared_ptr<Vocabulary> vocabulary_;
  Automaton automaton_;
  uint64_t number_;              // no other automaton of the process has it
  std::vector<int32_t> like_;    // by state: the first that no short token tells from it
  std::vector<bool> is_shared_;  // of such a first one: whether it stands for others
  mutable std::vector<std::atomic<int32_t>> slots_, short_slots_;  // of whole rows, and of their short parts
};

// Where one sequence stands: the states it has been in. One thread at a time.
class Walk {
public:
  Walk(std::shared_ptr<const TokenAutomaton> of, std::vector<int32_t> ending);

  const TokenAutomaton& of() const { return *of_; }
  bool is_lost() const { return states_.back() < 0; }  // a token was accepted that could not be
  bool is_accepting() const {
    return !is_lost() && of_->automaton().accepts[static_cast<size_t>(states_.back())] != 0;
  }
  bool is_finished() const { return is_accepting() && of_->automaton().is_final(states_.back()); }
  int32_t state() const { return states_.back(); }
  // The row of the state as it is for this sequence: with the ids that end it where it accepts, and else
  // without.
  void finish_row(uint32_t* row) const;
  bool accept(int32_t id);
  // Whether there were so many tokens.
  bool rollback(size_t num_tokens);
  // The bytes that must come next, at most so many.
  std::string forced(size_t most) const;
  // How many of the ids can come one after the other, none of which ends the output.
  size_t count_allowed(const int32_t* ids, size_t count) const;

private:
  int32_t after(int32_t state, int32_t id) const;

  std::shared_ptr<const TokenAutomaton> of_;
  std::vector<int32_t> ending_;  // sorted
  std::vector<int32_t> states_{0};
};

}  // namespace ramet
