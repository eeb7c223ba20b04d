// Lays a step's arrays out, and holds them against the memory that they may touch before anything is
// computed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace ramet {

// One sequence's part of a step: its rows' tokens, the first of which stands at position `start`, and its
// page table. The last `num_sampled` rows are sampled.
struct Share {
  int64_t start;
  const int32_t* tokens;
  int64_t num_rows;
  const int32_t* pages;
  int64_t num_pages;
  int64_t num_sampled;

  int64_t end() const { return start + num_rows; }
};

struct BatchSizes {
  int64_t num_seqs, num_rows, num_pages, num_sampled;

  // query_indptr, context_lens, token_ids, positions, slots, page_indptr, page_ids, sample_rows
  size_t total() const {
    return static_cast<size_t>(3 * num_seqs + 2 + 3 * num_rows + num_pages + num_sampled);
  }
};

inline int64_t pages_of(const Share& share, int64_t page_size) {
  return (share.end() + page_size - 1) / page_size;
}

// Throws std::invalid_argument where a sequence's pages do not cover its rows.
inline BatchSizes sizes_of(const std::vector<Share>& shares, int64_t page_size) {
  BatchSizes sizes{static_cast<int64_t>(shares.size()), 0, 0, 0};
  for (const Share& share : shares) {
    if (share.start < 0 || share.num_sampled < 0 || share.num_sampled > share.num_rows ||
        pages_of(share, page_size) > share.num_pages) {
      throw std::invalid_argument("a page table is shorter than its sequence's context");
    }
    sizes.num_rows += share.num_rows;
    sizes.num_pages += pages_of(share, page_size);
    sizes.num_sampled += share.num_sampled;
  }
  return sizes;
}

// Writes the arrays that BatchSizes::total names, one behind the other.
inline void lay_out(const std::vector<Share>& shares, int64_t page_size, const BatchSizes& sizes,
                    int32_t* query_indptr) {
  int32_t* const context_lens = query_indptr + sizes.num_seqs + 1;
  int32_t* token_ids = context_lens + sizes.num_seqs;
  int32_t* positions = token_ids + sizes.num_rows;
  int32_t* slots = positions + sizes.num_rows;
  int32_t* const page_indptr = slots + sizes.num_rows;
  int32_t* page_ids = page_indptr + sizes.num_seqs + 1;
  int32_t* sample_rows = page_ids + sizes.num_pages;
  int64_t row = 0, page = 0;
  query_indptr[0] = page_indptr[0] = 0;
  for (size_t s = 0; s < shares.size(); ++s) {
    const Share& share = shares[s];
    for (int64_t i = 0; i < share.num_rows; ++i) {
      const int64_t position = share.start + i;
      *token_ids++ = share.tokens[i];
      *positions++ = static_cast<int32_t>(position);
      *slots++ = static_cast<int32_t>(share.pages[position / page_size] * page_size + position % page_size);
    }
    row += share.num_rows;
    page += pages_of(share, page_size);
    for (int64_t i = share.num_sampled; i > 0; --i) *sample_rows++ = static_cast<int32_t>(row - i);
    for (int64_t i = 0; i < pages_of(share, page_size); ++i) *page_ids++ = share.pages[i];
    query_indptr[s + 1] = static_cast<int32_t>(row);
    context_lens[s] = static_cast<int32_t>(share.end());
    page_indptr[s + 1] = static_cast<int32_t>(page);
  }
}

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
  Ints query_indptr, context_lens, token_ids, positions, slots, page_indptr, page_ids, sample_rows;
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
  if (fault.empty()) fault = out_of_range(b.sample_rows, static_cast<int64_t>(num_rows));
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
