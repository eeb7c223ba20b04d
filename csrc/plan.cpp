#include "plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ramet {
namespace {

constexpr int32_t kFewRows = 8;  // a sequence with fewer is split by spans

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

bool is_indptr(const int32_t* p, int64_t n, int64_t total) {
  if (p[0] != 0 || p[n] != total) return false;
  return std::is_sorted(p, p + n + 1);
}

}  // namespace

Plan::Plan(const BatchView& batch)
    : page_size(batch.page_size),
      positions(batch.positions, batch.positions + batch.num_rows),
      page_ids(batch.page_ids, batch.page_ids + batch.num_page_ids),
      partial_of_row(static_cast<size_t>(batch.num_rows), -1) {
  check(batch);
  for (const int32_t page : page_ids) num_slots = std::max(num_slots, (page + int64_t{1}) * page_size);
  std::vector<Sequence> split;
  for (int64_t b = 0; b < batch.num_seqs; ++b) {
    const int32_t first = batch.query_indptr[b], num = batch.query_indptr[b + 1] - first;
    const Sequence seq{first, num, batch.page_indptr[b]};
    if (num >= kFewRows) add_tiles(seq);
    if (num > 0 && num < kFewRows) split.push_back(seq);
  }
  add_spans(split);
  // Long tasks first, so that none is left for the end while other threads have nothing to do.
  std::stable_sort(tasks.begin(), tasks.end(), [this](const AttentionTask& a, const AttentionTask& b) {
    const auto cost = [this](const AttentionTask& t) {
      const int64_t last =
          positions[static_cast<size_t>(task_rows[static_cast<size_t>(t.first_row + t.num_rows - 1)])];
      return t.num_rows * std::min(last + 1, t.num_spans * kSpan);
    };
    return cost(a) > cost(b);
  });
}

void Plan::check(const BatchView& batch) const {
  if (page_size < 1 || page_size > 1 << 20) refuse("page_size is " + std::to_string(page_size));
  if (!is_indptr(batch.query_indptr, batch.num_seqs, batch.num_rows))
    refuse("query_indptr does not cover the rows");
  if (!is_indptr(batch.page_indptr, batch.num_seqs, batch.num_page_ids))
    refuse("page_indptr does not cover page_ids");
  for (const int32_t page : page_ids) {
    if (page < 0) refuse("page id " + std::to_string(page) + " is negative");
  }
  for (int64_t b = 0; b < batch.num_seqs; ++b) {
    const int64_t capacity = int64_t{batch.page_indptr[b + 1] - batch.page_indptr[b]} * page_size;
    int64_t before = -1;
    for (int32_t t = batch.query_indptr[b]; t < batch.query_indptr[b + 1]; ++t) {
      const int64_t p = batch.positions[t];
      if (p <= before)
        refuse("positions of a sequence rise from 0; row " + std::to_string(t) + " is at " +
               std::to_string(p));
      if (p >= capacity) {
        refuse("row " + std::to_string(t) + " is at position " + std::to_string(p) + ", beyond its " +
               std::to_string(capacity) + " slots");
      }
      before = p;
    }
  }
}

int32_t Plan::last_span(const Sequence& seq) const {
  return static_cast<int32_t>(positions[static_cast<size_t>(seq.first_row + seq.num_rows - 1)] / kSpan);
}

void Plan::add_task(const std::vector<int32_t>& rows, int32_t first_span, int32_t num_spans,
                    int32_t first_page) {
  const auto num = static_cast<int32_t>(rows.size());
  tasks.push_back({static_cast<int32_t>(task_rows.size()), num, first_span, num_spans, first_page});
  task_rows.insert(task_rows.end(), rows.begin(), rows.end());
  max_task_rows = std::max<int64_t>(max_task_rows, num);
}

void Plan::add_tiles(const Sequence& seq) {
  for (int32_t i = 0; i < seq.num_rows; i += kMaxTaskRows) {
    std::vector<int32_t> rows;
    for (int32_t j = i; j < seq.num_rows && j < i + kMaxTaskRows; ++j) rows.push_back(seq.first_row + j);
    add_task(rows, 0, static_cast<int32_t>(positions[static_cast<size_t>(rows.back())] / kSpan) + 1,
             seq.first_page);
  }
}

void Plan::add_spans(const std::vector<Sequence>& seqs) {
  int32_t num_spans = 0;
  for (const Sequence& seq : seqs) {
    num_spans = std::max(num_spans, last_span(seq) + 1);
    for (int32_t row = seq.first_row; row < seq.first_row + seq.num_rows; ++row) {
      const auto n = static_cast<int32_t>(positions[static_cast<size_t>(row)] / kSpan) + 1;
      partial_of_row[static_cast<size_t>(row)] = num_partials;
      split_rows.push_back({row, n, num_partials});
      num_partials += n;
    }
  }
  for (int32_t span = 0; span < num_spans; ++span) {
    std::vector<std::vector<const Sequence*>> groups;  // that see the same pages
    for (const Sequence& seq : seqs) {
      if (last_span(seq) < span) continue;
      const auto mates = std::find_if(
          groups.begin(), groups.end(),
          [&](const std::vector<const Sequence*>& group) { return same_pages(span, *group.front(), seq); });
      if (mates == groups.end()) {
        groups.push_back({&seq});
      } else {
        mates->push_back(&seq);
      }
    }
    for (const auto& group : groups) add_shared_span(span, group);
  }
}

void Plan::add_shared_span(int32_t span, const std::vector<const Sequence*>& seqs) {
  std::vector<int32_t> rows;
  const int32_t first_page = seqs.front()->first_page;
  for (const Sequence* seq : seqs) {
    for (int32_t row = seq->first_row; row < seq->first_row + seq->num_rows; ++row) {
      if (positions[static_cast<size_t>(row)] < span * kSpan) continue;
      rows.push_back(row);
      if (static_cast<int64_t>(rows.size()) == kMaxTaskRows) {
        add_task(rows, span, 1, first_page);
        rows.clear();
      }
    }
  }
  if (!rows.empty()) add_task(rows, span, 1, first_page);
}

// Both see the whole span, all their rows, through the same pages.
bool Plan::same_pages(int32_t span, const Sequence& a, const Sequence& b) const {
  const int64_t begin = span * kSpan, end = begin + kSpan;
  if (positions[static_cast<size_t>(a.first_row)] < end - 1) return false;
  if (positions[static_cast<size_t>(b.first_row)] < end - 1) return false;
  const auto first = begin / page_size, last = (end - 1) / page_size;
  const int32_t *pa = page_ids.data() + a.first_page, *pb = page_ids.data() + b.first_page;
  return std::equal(pa + first, pa + last + 1, pb + first);
}

}  // namespace ramet
