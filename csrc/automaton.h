// Regular languages over bytes. A program of operations on texts becomes a nondeterministic automaton
// (automaton_nfa), then a deterministic one by the subset construction, without dead ends, and minimal
// (automaton_dfa).
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace ramet {

// The operations of a program, in postfix order: each is its number and then
//   characters  n, and n pairs (first, last) of code points: one character of these, rising and disjoint
//   literal     n, and n bytes
//   concat      n: the last n results, one after the other; 0 is the empty text
//   either      n: one of the last n results; 0 is no text at all
//   repeat      least, most (-1: without end): the last result over and over
//   start, end  the empty text, at the start or the end of the whole text alone
enum class Op : int32_t { characters, literal, concat, either, repeat, start, end };

// The automaton, or the work to make it, is over a limit. Limits are counted and not timed, so that a program
// has the same fate on every machine.
class TooLarge : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

// What may still be spent on making one automaton: about a nanosecond each, or ten of a byte in store.
class Budget {
public:
  explicit Budget(int64_t work) : left_(work) {}
  void spend(size_t work) {
    left_ -= static_cast<int64_t>(work);
    if (left_ < 0) throw TooLarge("making its automaton takes too much work");
  }

private:
  int64_t left_;
};

// On the bytes lo to hi, to state `to`.
struct Edge {
  int32_t to;
  uint8_t lo, hi;
  uint16_t zero;  // so that equal edges have equal bytes
};

inline Edge edge(int lo, int hi, int32_t to) {
  return {to, static_cast<uint8_t>(lo), static_cast<uint8_t>(hi), 0};
}

// Adds an edge behind all bytes of those before, or widens the last one.
void append(std::vector<Edge>& edges, const Edge& next);

// A deterministic automaton whose every state can reach an accepting one: state 0 is the start, and there is
// no state where the language is empty. Edges of a state are sorted and disjoint; two neighbours that meet
// lead apart.
struct Automaton {
  std::vector<uint32_t> begins;  // the edges of state s are those from begins[s] to begins[s + 1]
  std::vector<Edge> edges;
  std::vector<uint8_t> accepts;

  size_t num_states() const { return accepts.size(); }
  const Edge* first(int32_t state) const { return edges.data() + begins[static_cast<size_t>(state)]; }
  const Edge* past(int32_t state) const { return edges.data() + begins[static_cast<size_t>(state) + 1]; }
  bool is_final(int32_t state) const {  // nothing can follow
    return first(state) == past(state);
  }
  // Where a byte leads, or -1.
  int32_t step(int32_t state, uint8_t byte) const {
    const Edge *lo = first(state), *hi = past(state);
    while (lo < hi) {  // the first edge that does not end before the byte
      const Edge* middle = lo + (hi - lo) / 2;
      if (middle->hi < byte) {
        lo = middle + 1;
      } else {
        hi = middle;
      }
    }
    return lo < past(state) && lo->lo <= byte ? lo->to : -1;
  }
};

// Throws std::invalid_argument where the program is none, TooLarge where it costs too much.
Automaton make_automaton(const int32_t* program, size_t size);

// For each state the first one that goes on as it does for so many bytes: the same of these lead to some
// state from both. Where that takes more than `max_work` edges each state is its own.
std::vector<int32_t> alike(const Automaton& automaton, size_t num_bytes, size_t max_work);

}  // namespace ramet
