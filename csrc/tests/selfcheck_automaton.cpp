// Checks automata without Python, for runs under sanitizers: random programs against a matcher that tries
// everything, rows against tokens walked one by one, and programs that are none.
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "automaton_tokens.h"
#include "tests/expect.h"

namespace {

using namespace ramet;

// A random program beside what it takes: all ends in `text` of a match from `at`.
struct Language {
  using Ends = std::set<size_t>;
  std::vector<int32_t> program;
  std::function<Ends(const std::string&, size_t)> ends;
};

void add(std::vector<int32_t>& program, const std::vector<int32_t>& numbers) {
  program.insert(program.end(), numbers.begin(), numbers.end());
}

Language repeated(const Language& body, int32_t least, int32_t most) {
  Language made = body;
  add(made.program, {static_cast<int32_t>(Op::repeat), least, most});
  made.ends = [inner = body.ends, least, most](const std::string& text, size_t at) {
    Language::Ends found, reached{at};
    for (int32_t turn = 0;; ++turn) {
      const size_t num_found = found.size();
      if (turn >= least) found.insert(reached.begin(), reached.end());
      const bool is_done = most < 0 ? turn > least && found.size() == num_found : turn == most;
      if (is_done) return found;
      Language::Ends next;
      for (const size_t from : reached) next.merge(inner(text, from));
      reached = std::move(next);
    }
  };
  return made;
}

Language random_language(std::mt19937& random, int depth) {
  const int32_t kind = static_cast<int32_t>(random() % (depth > 0 ? 7 : 4));
  Language made;
  if (kind == 0) {
    made.program = {static_cast<int32_t>(Op::characters), 2, 'a', 'b', 0xE9, 0x7FF};
    made.ends = [](const std::string& text, size_t at) {
      if (at >= text.size()) return Language::Ends{};
      const auto byte = static_cast<uint8_t>(text[at]);
      if (byte == 'a' || byte == 'b') return Language::Ends{at + 1};
      if (byte == 0xC3 && at + 1 < text.size() && static_cast<uint8_t>(text[at + 1]) == 0xA9)
        return Language::Ends{at + 2};
      return Language::Ends{};
    };
  } else if (kind <= 2) {
    const std::string word = kind == 1 ? "a" : "bc";
    made.program = {static_cast<int32_t>(Op::literal), static_cast<int32_t>(word.size())};
    for (const char byte : word) made.program.push_back(byte);
    made.ends = [word](const std::string& text, size_t at) {
      return text.compare(at, word.size(), word) == 0 ? Language::Ends{at + word.size()} : Language::Ends{};
    };
  } else if (kind == 3) {
    const bool is_start = random() % 2 == 0;
    made.program = {static_cast<int32_t>(is_start ? Op::start : Op::end)};
    made.ends = [is_start](const std::string& text, size_t at) {
      return at == (is_start ? 0 : text.size()) ? Language::Ends{at} : Language::Ends{};
    };
  } else if (kind == 4) {
    const auto least = static_cast<int32_t>(random() % 3);
    made = repeated(random_language(random, depth - 1), least,
                    random() % 2 ? -1 : least + static_cast<int32_t>(random() % 3));
  } else {
    const Language a = random_language(random, depth - 1), b = random_language(random, depth - 1);
    made.program = a.program;
    add(made.program, b.program);
    add(made.program, {static_cast<int32_t>(kind == 5 ? Op::concat : Op::either), 2});
    made.ends = [a = a.ends, b = b.ends, kind](const std::string& text, size_t at) {
      Language::Ends found;
      if (kind == 6) {
        found = a(text, at);
        found.merge(b(text, at));
      } else {
        for (const size_t middle : a(text, at)) found.merge(b(text, middle));
      }
      return found;
    };
  }
  return made;
}

int32_t walk(const Automaton& automaton, const std::string& text) {
  int32_t state = automaton.num_states() > 0 ? 0 : -1;
  for (const char byte : text) {
    if (state >= 0) state = automaton.step(state, static_cast<uint8_t>(byte));
  }
  return state;
}

std::vector<std::string> all_texts(size_t length) {
  const std::string letters[] = {"a", "b", "c", "\xC3\xA9", "\xC3"};
  std::vector<std::string> texts{""};
  for (size_t begin = 0, turn = 0; turn < length; ++turn) {
    const size_t end = texts.size();
    for (; begin < end; ++begin) {
      for (const std::string& letter : letters) texts.push_back(texts[begin] + letter);
    }
  }
  return texts;
}

void check_languages() {
  std::mt19937 random(1);
  const std::vector<std::string> texts = all_texts(4);
  for (int turn = 0; turn < 300; ++turn) {
    const Language language = random_language(random, 4);
    const Automaton automaton = make_automaton(language.program.data(), language.program.size());
    for (const std::string& text : texts) {
      const int32_t state = walk(automaton, text);
      const bool takes = state >= 0 && automaton.accepts[static_cast<size_t>(state)] != 0;
      expect(takes == (language.ends(text, 0).count(text.size()) > 0),
             "program " + std::to_string(turn) + " on " + text);
    }
  }
}

std::shared_ptr<Vocabulary> make_vocabulary(const std::vector<std::string>& pieces, size_t num_rows) {
  const size_t num_words = (pieces.size() + 31) / 32;
  return std::make_shared<Vocabulary>(std::vector<std::string_view>(pieces.begin(), pieces.end()), num_words,
                                      num_rows * num_words * 4);
}

// Rows are those of tokens tried one by one, in a table that holds three of them, by two threads at once.
void check_rows() {
  std::vector<std::string> pieces = all_texts(3);
  pieces.push_back("a");
  pieces.push_back(std::string(700, 'a'));
  const auto vocabulary = make_vocabulary(pieces, 3);
  std::mt19937 random(2);
  for (int turn = 0; turn < 40; ++turn) {
    const Language language = random_language(random, 5);
    const TokenAutomaton tokens(vocabulary, make_automaton(language.program.data(), language.program.size()));
    const auto check = [&] {
      std::vector<uint32_t> row(vocabulary->num_words());
      for (int32_t state = 0; state < static_cast<int32_t>(tokens.automaton().num_states()); ++state) {
        if (!tokens.copy_row(state, row.data())) tokens.make_row(state, row.data());
        for (size_t id = 0; id < pieces.size(); ++id) {
          int32_t to = state;
          for (const char byte : pieces[id])
            to = to < 0 ? to : tokens.automaton().step(to, static_cast<uint8_t>(byte));
          const bool is_set = (row[id / 32] >> (id % 32) & 1) != 0;
          if (is_set != (to >= 0 && !pieces[id].empty())) return false;
        }
      }
      return true;
    };
    bool is_right[2] = {false, false};
    std::thread other([&] { is_right[1] = check() && check(); });
    is_right[0] = check() && check();
    other.join();
    expect(is_right[0] && is_right[1], "rows");
  }
  expect(vocabulary->rows().num_kept() <= 3, "rows are bounded");
}

void check_walks() {
  const auto vocabulary = make_vocabulary({"a", "b", "ab", "", "abab"}, 10);
  const int32_t program[] = {1, 4, 'a', 'b', 'a', 'b', 1, 2, 'a', 'a', 3, 2};  // abab|aa
  const Walk start(
      std::make_shared<const TokenAutomaton>(vocabulary, make_automaton(program, std::size(program))), {1});
  const int32_t ids[] = {2, 0, 3};
  expect(start.forced(10) == "a" && start.count_allowed(ids, 3) == 2 && !start.is_accepting(),
         "a walk's start");
  Walk walk = start;
  uint32_t row = 0;
  walk.of().make_row(walk.state(), &row);
  walk.finish_row(&row);
  expect(row == 0b10101, "a row");
  expect(!Walk(walk).accept(3) && !Walk(walk).accept(-1) && !Walk(walk).accept(99) && !Walk(walk).accept(1),
         "ids that are not allowed");
  expect(walk.accept(4) && walk.is_finished() && walk.forced(10).empty(), "a walk's end");
  expect(!walk.accept(0) && walk.is_lost() && !walk.is_accepting() && walk.forced(10).empty(),
         "a walk that is lost");
  expect(walk.rollback(2) && walk.state() == start.state() && !walk.rollback(1), "a walk back");
}

// Whatever the numbers are, they are a program or refused.
void check_malformed() {
  std::mt19937 random(3);
  int num_made = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    std::vector<int32_t> program(random() % 12);
    for (int32_t& number : program)
      number = static_cast<int32_t>(random() % 12) - (random() % 8 == 0 ? 1 << (random() % 31) : 0);
    try {
      make_automaton(program.data(), program.size());
      ++num_made;
    } catch (const std::invalid_argument&) {
    } catch (const TooLarge&) {
    }
  }
  expect(num_made > 100, "some random programs are programs");
  std::vector<int32_t> deep{static_cast<int32_t>(Op::start)};
  for (int i = 0; i < 100000; ++i) add(deep, {static_cast<int32_t>(Op::concat), 1});
  bool is_refused = false;
  try {
    make_automaton(deep.data(), deep.size());
  } catch (const TooLarge&) {
    is_refused = true;
  }
  expect(is_refused, "depth is bounded");
}

}  // namespace

int main() {
  check_languages();
  check_rows();
  check_walks();
  check_malformed();
  std::printf("automata checked\n");
  return failures == 0 ? 0 : 1;
}
