#include "plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ramet {
namespace {

constexpr int32_t kFewRows = 8;         // a sequence with fewer is split by spans
constexpr int32_t kPartingRows = 8;     // in a task whose rows part: enough tasks for some threads
constexpr int32_t kFewestShared = 128;  // rows that share fewer gain more of their KV heads side by side

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
      page_of_row(static_cast<size_t>(batch.num_rows)),
      partial_of_row(static_cast<size_t>(batch.num_rows), -1) {
  check(batch);
  for (const int32_t page : page_ids) num_slots = std::max(num_slots, (page + int64_t{1}) * page_size);
  std::vector<Sequence> split;
  for (int64_t b = 0; b < batch.num_seqs; ++b) {
    const int32_t first = batch.query_indptr[b], num = batch.query_indptr[b + 1] - first;
    const Sequence seq{first, num, batch.page_indptr[b]};
    std::fill_n(page_of_row.begin() + first, num, seq.first_page);
    if (num >= kFewRows) add_tiles(seq);
    if (num > 0 && num < kFewRows) split.push_back(seq);
  }
  add_spans(split);
  // Long tasks first, so that none is left for the end while other threads have nothing to do.
  const auto cost = [this](const AttentionTask& t) {
    const int64_t last =
        positions[static_cast<size_t>(task_rows[static_cast<size_t>(t.first_row + t.num_rows - 1)])];
    return t.num_rows * std::min(last + 1 - t.first_span * kSpan, t.num_spans * kSpan);
  };
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const AttentionTask& a, const AttentionTask& b) { return cost(a) > cost(b); });
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

void Plan::add_task(int32_t first_span, int32_t num_spans, int32_t first_page, int32_t num_shared) {
  const int32_t first_row = tasks.empty() ? 0 : tasks.back().first_row + tasks.back().num_rows;
  const auto num = static_cast<int32_t>(task_rows.size()) - first_row;
  if (num == 0) return;
  tasks.push_back({first_row, num, first_span, num_spans, first_page, num_shared});
  max_task_rows = std::max<int64_t>(max_task_rows, num);
}

void Plan::add_tiles(const Sequence& seq) {
  for (int32_t i = 0; i < seq.num_rows; i += kMaxTaskRows) {
    for (int32_t j = i; j < seq.num_rows && j < i + kMaxTaskRows; ++j) task_rows.push_back(seq.first_row + j);
    add_task(0, num_spans_of(task_rows.back()), seq.first_page);
  }
}

void Plan::add_spans(const std::vector<Sequence>& seqs) {
  int32_t num_spans = 0;
  for (const Sequence& seq : seqs) {
    num_spans = std::max(num_spans, num_spans_of(seq.last_row()));
    for (int32_t row = seq.first_row; row <= seq.last_row(); ++row) {
      const int32_t n = num_spans_of(row);
      if (n == 1) continue;  // its only task finishes it
      partial_of_row[static_cast<size_t>(row)] = num_partials;
      split_rows.push_back({row, n, num_partials});
      num_partials += n;
    }
  }
  std::vector<Visit> visits;
  std::vector<const Sequence*> together, alone;
  for (int32_t span = 0; span < num_spans; ++span) {
    visits.clear();
    alone.clear();
    for (const Sequence& seq : seqs) {
      if (num_spans_of(seq.last_row()) > span) visits.push_back({last_page(span, seq), &seq});
    }
    // Page tables that meet in a page are alike before it, so those that share the span stand side by side.
    std::sort(visits.begin(), visits.end());
    for (auto from = visits.begin(); from != visits.end();) {
      together.clear();
      auto to = from;
      do together.push_back((to++)->second);
      while (to != visits.end() && same_pages(span, *from, *to));
      if (together.size() > 1) {
        add_shared_span(span, together, kSpan);
      } else {
        alone.push_back(together[0]);
      }
      from = to;
    }
    add_parting_spans(span, alone);
  }
}

// Sequences of which no two see the same pages all through the span, but perhaps at its beginning.
void Plan::add_parting_spans(int32_t span, std::vector<const Sequence*>& seqs) {
  const auto pages_of = [&](const Sequence& seq) {
    const int64_t first = span * kSpan / page_size,
                  last = positions[static_cast<size_t>(seq.last_row())] / page_size;
    const int32_t* pages = page_ids.data() + seq.first_page;
    return std::pair(pages + first, pages + std::min(last, ((span + 1) * kSpan - 1) / page_size) + 1);
  };
  std::sort(seqs.begin(), seqs.end(), [&](const Sequence* a, const Sequence* b) {
    const auto [begin, end] = pages_of(*a);
    const auto [other_begin, other_end] = pages_of(*b);
    return std::lexicographical_compare(begin, end, other_begin, other_end);
  });
  for (size_t from = 0, to = 0; from < seqs.size(); from = to) {
    std::vector<const Sequence*> group{seqs[from]};
    int32_t num_shared = kSpan, num_rows = seqs[from]->num_rows;
    for (to = from + 1; to < seqs.size(); ++to) {
      const int32_t alike = std::min(num_shared, num_alike(span, *seqs[from], *seqs[to]));
      num_rows += seqs[to]->num_rows;
      if (num_rows > kPartingRows || alike < kFewestShared || (group.size() > 1 && 2 * alike < num_shared))
        break;
      num_shared = alike;
      group.push_back(seqs[to]);
    }
    add_shared_span(span, group, num_shared);
  }
}

// Positions of the span, in whole steps, that both see in the same pages.
int32_t Plan::num_alike(int32_t span, const Sequence& a, const Sequence& b) const {
  const int64_t begin = span * kSpan;
  const auto end_of = [&](const Sequence& seq) {
    return int64_t{positions[static_cast<size_t>(seq.last_row())]} + 1;
  };
  const int64_t end = std::min({begin + kSpan, end_of(a), end_of(b)});
  const int32_t *pa = page_ids.data() + a.first_page, *pb = page_ids.data() + b.first_page;
  int64_t page = begin / page_size;
  while (page * page_size < end && pa[page] == pb[page]) ++page;
  const int64_t alike = std::min(page * page_size, end) - begin;
  return alike > 0 ? static_cast<int32_t>(alike) / kShareable * kShareable : 0;
}

void Plan::add_shared_span(int32_t span, const std::vector<const Sequence*>& seqs, int32_t num_shared) {
  std::vector<int32_t> rows;
  for (const Sequence* seq : seqs) {
    for (int32_t row = seq->first_row; row <= seq->last_row(); ++row) {
      if (num_spans_of(row) > span) rows.push_back(row);
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [this](int32_t a, int32_t b) {
    return positions[static_cast<size_t>(a)] < positions[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    task_rows.push_back(rows[i]);
    if ((i + 1) % kMaxTaskRows == 0) add_task(span, 1, seqs[0]->first_page, num_shared);
  }
  add_task(span, 1, seqs[0]->first_page, num_shared);
}

int32_t Plan::num_spans_of(int32_t row) const {
  return static_cast<int32_t>(positions[static_cast<size_t>(row)] / kSpan) + 1;
}

// The page of the span's last position; -1 where not all rows see that.
int32_t Plan::last_page(int32_t span, const Sequence& seq) const {
  const int64_t last = (span + 1) * kSpan - 1;
  if (positions[static_cast<size_t>(seq.first_row)] < last) return -1;
  return page_ids[static_cast<size_t>(seq.first_page + last / page_size)];
}

bool Plan::same_pages(int32_t span, const Visit& a, const Visit& b) const {
  if (a.first != b.first || a.first < 0) return false;
  const int64_t first = span * kSpan / page_size, last = ((span + 1) * kSpan - 1) / page_size;
  const int32_t *pa = page_ids.data() + a.second->first_page, *pb = page_ids.data() + b.second->first_page;
  return std::equal(pa + first, pa + last, pb + first);
}

}  // namespace ramet
