#include "automaton_nfa.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace ramet {
namespace {

constexpr size_t kMaxNodes = 400'000;  // with their edges some 20 MB
constexpr int kMaxDepth = 2'500;       // of operations: some 300 bytes of the machine's stack each

void require(bool holds) {
  if (!holds) throw std::invalid_argument("the program of an automaton is malformed");
}

// A program as a tree: each item has its operation's numbers and its operands.
class Tree {
public:
  struct Item {
    Op op;
    const int32_t* numbers;
    size_t count;         // of numbers
    uint32_t begin, end;  // in operands
  };

  Tree(const int32_t* program, size_t size) : at_(program), past_(program + size) {
    std::vector<std::pair<int32_t, int>> results;  // items that await their operation, and their depths
    while (at_ < past_) {
      Item item{static_cast<Op>(*at_++), nullptr, 0, 0, 0};
      const size_t num_operands = read(item);
      require(num_operands <= results.size());
      item.begin = static_cast<uint32_t>(operands_.size());
      int depth = 0;
      for (size_t i = results.size() - num_operands; i < results.size(); ++i) {
        operands_.push_back(results[i].first);
        depth = std::max(depth, results[i].second);
      }
      item.end = static_cast<uint32_t>(operands_.size());
      if (depth >= kMaxDepth) throw TooLarge("it is nested too deeply");
      results.resize(results.size() - num_operands);
      results.emplace_back(static_cast<int32_t>(items_.size()), depth + 1);
      items_.push_back(item);
    }
    require(results.size() == 1);
  }

  int32_t root() const { return static_cast<int32_t>(items_.size()) - 1; }
  const Item& operator[](int32_t item) const { return items_[static_cast<size_t>(item)]; }
  int32_t operand(uint32_t at) const { return operands_[at]; }

private:
  int32_t next() {
    require(at_ < past_);
    return *at_++;
  }
  size_t next_count() {
    const int32_t count = next();
    require(count >= 0);
    return static_cast<size_t>(count);
  }
  void take(Item& item, size_t count) {
    require(count <= static_cast<size_t>(past_ - at_));
    item.numbers = at_;
    item.count = count;
    at_ += count;
  }
  // Reads the numbers of an operation, checks them, and gives the number of its operands.
  size_t read(Item& item) {
    switch (item.op) {
      case Op::characters: {
        take(item, 2 * next_count());
        for (size_t i = 0; i < item.count; ++i) {
          const int32_t point = item.numbers[i];
          require(point >= 0 && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF));
          require(i == 0 || (i % 2 == 0 ? point > item.numbers[i - 1] + 1 : point >= item.numbers[i - 1]));
          require(i % 2 == 0 || item.numbers[i - 1] > 0xDFFF || point < 0xD800);
        }
        return 0;
      }
      case Op::literal:
        take(item, next_count());
        for (size_t i = 0; i < item.count; ++i) require(item.numbers[i] >= 0 && item.numbers[i] <= 255);
        return 0;
      case Op::concat:
      case Op::either:
        return next_count();
      case Op::repeat:
        take(item, 2);
        require(item.numbers[0] >= 0 && (item.numbers[1] == -1 || item.numbers[1] >= item.numbers[0]));
        return 1;
      case Op::start:
      case Op::end:
        return 0;
    }
    require(false);
    return 0;
  }

  const int32_t *at_, *past_;
  std::vector<Item> items_;
  std::vector<int32_t> operands_;
};

// Writes nodes from the end to the start: each piece is given the node that follows it.
class Writer {
public:
  Writer(Nfa& nfa, const Tree& tree, Budget& budget) : nfa_(nfa), tree_(tree), budget_(budget) {}

  int32_t final() { return add(Nfa::Kind::final, 0, 0); }

  // The node at which `item`, then what `next` takes, begins.
  int32_t write(int32_t index, int32_t next) {
    budget_.spend(10);
    const Tree::Item& item = tree_[index];
    switch (item.op) {
      case Op::characters:
        return characters(item, next);
      case Op::literal:
        for (size_t i = item.count; i-- > 0;) next = bytes({edge(item.numbers[i], item.numbers[i], next)});
        return next;
      case Op::concat:
        for (uint32_t i = item.end; i-- > item.begin;) next = write(tree_.operand(i), next);
        return next;
      case Op::either: {
        std::vector<int32_t> targets;
        for (uint32_t i = item.begin; i < item.end; ++i) targets.push_back(write(tree_.operand(i), next));
        return split(Nfa::Kind::split, targets);
      }
      case Op::repeat:
        return repeat(tree_.operand(item.begin), item.numbers[0], item.numbers[1], next);
      case Op::start:
        return split(Nfa::Kind::start, {next});
      case Op::end:
        break;
    }
    return split(Nfa::Kind::end, {next});
  }

private:
  using Ranges = std::vector<std::pair<int32_t, int32_t>>;

  int32_t add(Nfa::Kind kind, size_t begin, size_t count) {
    if (nfa_.nodes.size() >= kMaxNodes || begin >= 4 * kMaxNodes)
      throw TooLarge("its automaton is too large");
    budget_.spend(10 + count);
    nfa_.nodes.push_back({kind, static_cast<uint32_t>(begin), static_cast<uint32_t>(count)});
    return static_cast<int32_t>(nfa_.nodes.size()) - 1;
  }
  int32_t split(Nfa::Kind kind, const std::vector<int32_t>& targets) {
    const size_t begin = nfa_.targets.size();
    nfa_.targets.insert(nfa_.targets.end(), targets.begin(), targets.end());
    return add(kind, begin, targets.size());
  }
  int32_t bytes(const std::vector<Edge>& edges) {
    const size_t begin = nfa_.edges.size();
    nfa_.edges.insert(nfa_.edges.end(), edges.begin(), edges.end());
    return add(Nfa::Kind::bytes, begin, edges.size());
  }

  // x{2,4} is xx(x(x)?)?, and x{2,} is x(x)+, whose end leads back.
  int32_t repeat(int32_t body, int32_t least, int32_t most, int32_t next) {
    int32_t entry = next;
    if (most < 0) {
      const int32_t loop = split(Nfa::Kind::split, {next, next});
      const int32_t again = write(body, loop);
      nfa_.targets[nfa_.nodes[static_cast<size_t>(loop)].begin] = again;
      entry = least > 0 ? again : loop;
      least = std::max(0, least - 1);
    } else {
      for (int32_t i = least; i < most; ++i) entry = split(Nfa::Kind::split, {write(body, entry), next});
    }
    for (int32_t i = 0; i < least; ++i) entry = write(body, entry);
    return entry;
  }

  // Code points by the lengths of their UTF-8, each a lead byte and then six bits a byte; equal tails are one
  // node.
  int32_t characters(const Tree::Item& item, int32_t next) {
    struct Length {
      int32_t first, last;
      int lead, num_tail;
    };
    static constexpr Length kLengths[] = {
        {0, 0x7F, 0, 0}, {0x80, 0x7FF, 0xC0, 1}, {0x800, 0xFFFF, 0xE0, 2}, {0x10000, 0x10FFFF, 0xF0, 3}};
    budget_.spend(20 * item.count);
    tails_.clear();
    std::vector<Edge> edges;
    for (const Length& length : kLengths) {
      Ranges part;
      for (size_t i = 0; i < item.count; i += 2) {
        const int32_t lo = std::max(item.numbers[i], length.first),
                      hi = std::min(item.numbers[i + 1], length.last);
        if (lo <= hi) part.emplace_back(lo, hi);
      }
      chunks(part, length.num_tail, length.lead, next, edges);
    }
    return bytes(edges);
  }

  // Edges for values whose bits above the last 6 * num_tail, added to `prefix`, are the next byte.
  void chunks(const Ranges& ranges, int num_tail, int prefix, int32_t next, std::vector<Edge>& edges) {
    const int32_t size = int32_t{1} << (6 * num_tail);
    int32_t open = -1;  // the chunk that `part` belongs to
    Ranges part;
    const auto close = [&] {
      if (open >= 0) append(edges, edge(prefix + open, prefix + open, tail(part, num_tail, next)));
      open = -1;
      part.clear();
    };
    for (const auto& [first, last] : ranges) {
      for (int32_t lo = first; lo <= last;) {
        const int32_t chunk = lo / size;
        const int32_t num_whole = lo % size == 0 ? (last + 1) / size - chunk : 0;
        if (chunk != open) close();
        if (num_whole > 0) {
          const Ranges whole{{0, size - 1}};
          append(edges, edge(prefix + chunk, prefix + chunk + num_whole - 1, tail(whole, num_tail, next)));
          lo += num_whole * size;
        } else {
          const int32_t hi = std::min(last, chunk * size + size - 1);
          open = chunk;
          part.emplace_back(lo % size, hi % size);
          lo = hi + 1;
        }
      }
    }
    close();
  }

  int32_t tail(const Ranges& ranges, int num_tail, int32_t next) {
    if (num_tail == 0) return next;
    std::vector<Edge> edges;
    chunks(ranges, num_tail - 1, 0x80, next, edges);
    std::string key(reinterpret_cast<const char*>(edges.data()), edges.size() * sizeof(Edge));
    const auto [at, is_new] = tails_.emplace(std::move(key), 0);
    if (is_new) at->second = bytes(edges);
    return at->second;
  }

  Nfa& nfa_;
  const Tree& tree_;
  Budget& budget_;
  std::unordered_map<std::string, int32_t> tails_;  // of the characters being written
};

}  // namespace

Nfa make_nfa(const int32_t* program, size_t size, Budget& budget) {
  const Tree tree(program, size);
  Nfa nfa;
  Writer writer(nfa, tree, budget);
  nfa.entry = writer.write(tree.root(), writer.final());
  return nfa;
}

}  // namespace ramet
