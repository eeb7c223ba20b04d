// A step's arrays as Python sees them: laid out from its sequences, and held against the memory that they may
// touch.
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "bind.h"
#include "inputs.h"

namespace ramet {
namespace {

Ids to_ids(const nb::handle& values, const char* what) {
  Ids found;
  if (!nb::try_cast(values, found, false)) throw std::invalid_argument(what);
  return found;
}

// The arrays of a step in one piece of memory, in the order in which BatchArrays has them.
nb::bytes lay_out_shares(int64_t page_size, const nb::list& starts, const nb::list& tokens,
                         const nb::list& tables, const nb::list& num_sampled) {
  const size_t num_seqs = starts.size();
  require(page_size > 0, "page_size is at least 1");
  require(tokens.size() == num_seqs && tables.size() == num_seqs && num_sampled.size() == num_seqs,
          "there is one of each for each sequence");
  std::vector<Share> shares;
  shares.reserve(num_seqs);
  for (size_t i = 0; i < num_seqs; ++i) {
    const Ids rows = to_ids(tokens[i], "tokens are int32[n]"),
              pages = to_ids(tables[i], "tables are int32[n]");
    shares.push_back({nb::cast<int64_t>(starts[i]), rows.data(), dim(rows, 0), pages.data(), dim(pages, 0),
                      nb::cast<int64_t>(num_sampled[i])});  // the caller's lists keep the arrays
  }
  const BatchSizes sizes = sizes_of(shares, page_size);
  const nb::bytes laid = nb::steal<nb::bytes>(
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(sizes.total() * sizeof(int32_t))));
  if (!laid.is_valid()) nb::raise_python_error();
  lay_out(shares, page_size, sizes, reinterpret_cast<int32_t*>(PyBytes_AS_STRING(laid.ptr())));
  return laid;
}

Ints to_ints(const char* name, const Ids& values) { return {name, values.data(), values.size()}; }

std::string range_fault(const char* name, const Ids& values, int64_t end) {
  return out_of_range(to_ints(name, values), end);
}

std::string find_layout_fault(const Ids& query_indptr, const Ids& context_lens, const Ids& token_ids,
                              const Ids& positions, const Ids& slots, const Ids& page_indptr,
                              const Ids& page_ids, const Ids& sample_rows, int64_t page_size,
                              int64_t num_pages) {
  require(page_size > 0, "page_size is at least 1");
  const BatchLayout layout{to_ints("query_indptr", query_indptr),
                           to_ints("context_lens", context_lens),
                           to_ints("token_ids", token_ids),
                           to_ints("positions", positions),
                           to_ints("slots", slots),
                           to_ints("page_indptr", page_indptr),
                           to_ints("page_ids", page_ids),
                           to_ints("sample_rows", sample_rows)};
  return layout_fault(layout, page_size, num_pages);
}

}  // namespace

void bind_batch(nb::module_& m) {
  m.def("lay_out", &lay_out_shares,
        "A step's arrays from its sequences' rows and page tables, one behind the other, as bytes of int32.");
  m.def("range_fault", &range_fault, "Which value is not in [0, end), or nothing.");
  m.def("layout_fault", &find_layout_fault,
        "What is wrong with a batch's rows, positions, slots, page tables and sampled rows, or nothing.");
}

}  // namespace ramet
