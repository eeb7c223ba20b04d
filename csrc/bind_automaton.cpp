// Automata as Python sees them. To make one, and to find a row that is not kept, takes milliseconds and lets
// other threads run.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "automaton_tokens.h"
#include "bind.h"

namespace ramet {
namespace {

using Tokens = std::shared_ptr<TokenAutomaton>;

void make_vocabulary(Vocabulary* self, const nb::list& pieces, size_t num_words, size_t max_row_bytes) {
  std::vector<std::string_view> texts;
  size_t size = 0;
  for (const nb::handle piece : pieces) {
    require(nb::isinstance<nb::bytes>(piece), "pieces are bytes");
    const nb::bytes text = nb::borrow<nb::bytes>(piece);
    texts.emplace_back(text.c_str(), text.size());  // the list keeps it
    size += text.size();
  }
  require(texts.size() <= 32 * num_words && num_words > 0, "a row has a bit for each token");
  require(size < size_t{1} << 31, "all tokens together are under 2 GiB");
  new (self) Vocabulary(texts, num_words, max_row_bytes);
}

void make_tokens(TokenAutomaton* self, const std::shared_ptr<Vocabulary>& vocabulary, const Ids& program) {
  const nb::gil_scoped_release release;
  new (self) TokenAutomaton(vocabulary, make_automaton(program.data(), program.size()));
}

// False where no token can come next although the output may not end: the vocabulary lacks bytes.
bool fill_row(const Walk& self, const Array<uint32_t, 1>& row) {
  if (row.size() != self.of().vocabulary().num_words()) {
    throw std::invalid_argument("the row has a buffer size of " + std::to_string(row.size()) +
                                " words, not " + std::to_string(self.of().vocabulary().num_words()));
  }
  if (self.is_lost()) return false;
  if (!self.of().copy_row(self.state(), row.data())) {
    const nb::gil_scoped_release release;
    self.of().make_row(self.state(), row.data());
  }
  self.finish_row(row.data());
  if (self.is_accepting()) return true;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row.data()[i] != 0) return true;
  }
  return false;
}

// Where each state's edges begin, the edges (to, from byte, to byte), and which states accept.
auto automaton(const Ids& program) {
  Automaton made;
  {
    const nb::gil_scoped_release release;
    made = make_automaton(program.data(), program.size());
  }
  std::vector<std::tuple<int, int, int>> edges;
  for (const Edge& edge : made.edges) edges.emplace_back(edge.to, edge.lo, edge.hi);
  return std::make_tuple(made.begins, edges, std::vector<bool>(made.accepts.begin(), made.accepts.end()));
}

nb::bytes forced(const Walk& self, size_t most) {
  const std::string text = self.forced(most);
  return nb::bytes(text.data(), text.size());
}

}  // namespace

void bind_automaton(nb::module_& m) {
  nb::exception<TooLarge>(m, "TooLarge", PyExc_ValueError);
  m.def("automaton", &automaton, nb::arg("program").noconvert());
  nb::class_<Vocabulary>(m, "Vocabulary")
      .def("__init__", &make_vocabulary)
      .def_prop_ro("num_rows", [](Vocabulary& self) { return self.rows().num_kept(); });
  nb::class_<TokenAutomaton>(m, "TokenAutomaton")
      .def("__init__", &make_tokens, nb::arg(), nb::arg("program").noconvert())
      .def_prop_ro("num_states", [](const TokenAutomaton& self) { return self.automaton().num_states(); })
      .def_prop_ro("num_edges", [](const TokenAutomaton& self) { return self.automaton().edges.size(); })
      .def_prop_ro("num_bytes", &TokenAutomaton::num_bytes);
  nb::class_<Walk>(m, "Walk")
      .def("__init__", [](Walk* self, const Tokens& of,
                          std::vector<int32_t> ending) { new (self) Walk(of, std::move(ending)); })
      .def("__init__", [](Walk* self, const Walk& other) { new (self) Walk(other); })
      .def_prop_ro("is_accepting", &Walk::is_accepting)
      .def_prop_ro("is_finished", &Walk::is_finished)
      .def("fill_row", &fill_row, nb::arg("row").noconvert())
      .def("accept", &Walk::accept)
      .def("rollback", &Walk::rollback)
      .def("forced", &forced)
      .def("count_allowed", [](const Walk& self, const std::vector<int32_t>& ids) {
        return self.count_allowed(ids.data(), ids.size());
      });
}

}  // namespace ramet
