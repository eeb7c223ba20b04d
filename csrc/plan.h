// What attention does in a step: found once, used in every layer.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "ops.h"

namespace ramet {

// The attention part of a batch, in CSR form (see core/batch.py).
struct BatchView {
  int64_t num_rows, num_seqs, num_page_ids;
  int64_t page_size;
  const int32_t *query_indptr, *positions, *page_indptr, *page_ids;
};

// A sequence with many rows is cut into tiles of rows, each of which walks all its spans. Of the others
// (decoding, a few drafted or forced tokens) every span is a task of its own, and sequences whose page tables
// name the same pages there are one task: a shared prefix is read once for all its branches, and so are the
// first pages of the span in which they part.
class Plan {
public:
  // Throws std::invalid_argument where the batch does not fit together.
  explicit Plan(const BatchView& batch);

  int64_t num_rows() const { return static_cast<int64_t>(positions.size()); }

  int64_t page_size;
  int64_t num_slots = 0;  // that a KV layer must have at least
  int64_t num_partials = 0;
  int64_t max_task_rows = 0;
  std::vector<int32_t> positions, page_ids, task_rows, page_of_row;
  std::vector<int64_t> partial_of_row;
  std::vector<AttentionTask> tasks;
  std::vector<SplitRow> split_rows;

private:
  struct Sequence {
    int32_t first_row, num_rows, first_page;

    int32_t last_row() const { return first_row + num_rows - 1; }
  };
  using Visit = std::pair<int32_t, const Sequence*>;  // of a sequence to a span, and the span's last page
  using Visits = std::vector<Visit>::const_iterator;

  void check(const BatchView& batch) const;
  void add_tiles(const Sequence& seq);
  void add_spans(const std::vector<Sequence>& seqs);
  void add_shared_span(int32_t span, const std::vector<const Sequence*>& seqs, int32_t num_shared);
  void add_parting_spans(int32_t span, std::vector<const Sequence*>& seqs);
  int32_t num_alike(int32_t span, const Sequence& a, const Sequence& b) const;
  bool same_pages(int32_t span, const Visit& a, const Visit& b) const;
  int32_t last_page(int32_t span, const Sequence& seq) const;
  int32_t num_spans_of(int32_t row) const;
  // Of rows not yet in one.
  void add_task(int32_t first_span, int32_t num_spans, int32_t first_page, int32_t num_shared = kSpan);
};

}  // namespace ramet
