// Holds a step's arrays against the memory that they may touch, before anything is computed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace ramet {

struct Ints {
  const char* name;
  const int32_t* data;
  size_t size;

  int64_t operator[](size_t i) const { return data[i]; }
};

// Says which value of `values` is not in [0, end); empty where all are.
inline std::string out_of_range(const Ints& values, int64_t end) {
  for (size_t i = 0; i < values.size; ++i) {
    if (values[i] < 0 || values[i] >= end) {
      return std::string(values.name) + " holds " + std::to_string(values[i]) + ", outside 0 to " +
             std::to_string(end - 1);
    }
  }
  return {};
}

struct BatchLayout {
  Ints query_indptr, context_lens, token_ids, positions, slots, page_indptr, page_ids;
};

// What is wrong with B sequences' rows, positions and slots, or empty: a sequence's rows are the last of its
// context, in order, and each slot is the one that its own page table gives.
inline std::string layout_fault(const BatchLayout& b, int64_t page_size, int64_t num_pages) {
  const size_t num_seqs = b.context_lens.size, num_rows = b.token_ids.size;
  const char* const uneven = "rows and sequences do not add up";
  if (b.query_indptr.size != num_seqs + 1 || b.page_indptr.size != num_seqs + 1 ||
      b.positions.size != num_rows || b.slots.size != num_rows) {
    return uneven;
  }
  std::string fault = out_of_range(b.page_ids, num_pages);
  if (fault.empty()) fault = out_of_range(b.query_indptr, static_cast<int64_t>(num_rows) + 1);
  if (fault.empty()) fault = out_of_range(b.page_indptr, static_cast<int64_t>(b.page_ids.size) + 1);
  if (!fault.empty()) return fault;
  if (b.query_indptr[0] != 0 || b.query_indptr[num_seqs] != static_cast<int64_t>(num_rows)) return uneven;
  for (size_t s = 0; s < num_seqs; ++s) {
    const int64_t first = b.query_indptr[s], end = b.query_indptr[s + 1], context = b.context_lens[s];
    if (end - first < 1 || end - first > context) return uneven;
    const int64_t first_page = b.page_indptr[s];
    if ((b.page_indptr[s + 1] - first_page) * page_size < context) {
      return "a page table is shorter than its sequence's context";
    }
    for (int64_t row = first, position = context - (end - first); row < end; ++row, ++position) {
      if (b.positions.data[row] != position) {
        return "positions of a sequence are not those that end its context";
      }
      const int64_t page = b.page_ids.data[first_page + position / page_size];
      if (b.slots.data[row] != page * page_size + position % page_size) {
        return "a slot is not the one that its sequence's page table gives";
      }
    }
  }
  return {};
}

}  // namespace ramet
