// The nondeterministic automaton of a program.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "automaton.h"

namespace ramet {

// Nodes: `bytes` goes on by its edges; `split` is all of its targets at once; `start` and `end` are their one
// target, at that place of the text alone; `final` accepts.
struct Nfa {
  enum class Kind : uint8_t { bytes, split, start, end, final };
  struct Node {
    Kind kind;
    uint32_t begin, count;  // in edges or in targets
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::vector<int32_t> targets;
  int32_t entry = 0;
};

Nfa make_nfa(const int32_t* program, size_t size, Budget& budget);

}  // namespace ramet
