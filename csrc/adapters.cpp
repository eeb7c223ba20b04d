// Adapters: a product's rows meet one more matrix of small rank, which of them has which being up to the row.
#include <algorithm>

#include "kernels.h"

namespace ramet {
namespace {

// Items of several jobs, one job's after the other's, so that threads share all of them at once.
class Jobs {
public:
  void add(int64_t num) { ends_.push_back(num_items() + num); }
  int64_t num_items() const { return ends_.empty() ? 0 : ends_.back(); }

  // Calls work(job, begin, end) with a job's own items for each that has some of begin to end.
  template <class Work>
  void each(int64_t begin, int64_t end, const Work& work) const {
    auto job = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    for (; begin < end; ++job) {
      const int64_t first = job == 0 ? 0 : ends_[job - 1], last = std::min(end, ends_[job]);
      if (begin < last) work(job, begin - first, last - first);
      begin = last;
    }
  }

private:
  std::vector<int64_t> ends_;
};

// One `up` for one group's rows.
struct Raised {
  const LowRank::Up* up;
  const std::vector<int64_t>* rows;
  Rows ranks;
  float* made;
};

}  // namespace

// Three jobs, whatever the number of adapters: rows are made ready, all downs, all ups. A row's sums are
// those that it would have alone.
void Kernels::adapt(const Rows& x, const Prologue& prologue, const std::vector<Adapted>& groups, int64_t ldy,
                    float* y) {
  constexpr int64_t kGrain = 2;  // panels are done in pairs
  const int64_t k = groups[0].change->down->k;
  if (ranks_.size() < groups.size()) ranks_.resize(groups.size());
  for (Inputs& own : own_) own.row.get<float>(static_cast<size_t>(k));
  Jobs rows, downs, ups;
  std::vector<Activations> ready;
  std::vector<float*> ranks;
  std::vector<Raised> raised;
  size_t num_made = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const LowRank& change = *groups[g].change;
    const auto num = static_cast<int64_t>(groups[g].rows.size());
    ready.push_back(reserve(ranks_[g].inputs, num, *change.down));
    ranks.push_back(ranks_[g].made.get<float>(static_cast<size_t>(num * change.down->n)));
    rows.add(num);
    downs.add(change.down->num_panels);
    for (const LowRank::Up& up : change.ups) {
      raised.push_back({&up, &groups[g].rows, {ranks[g] + up.first_rank, num, change.down->n}, nullptr});
      num_made += static_cast<size_t>(num * up.weight->n);
      ups.add(up.weight->num_panels);
      for (Inputs& own : own_) reserve(own, num, *up.weight);
    }
  }
  float* made = adapted_.get<float>(num_made);
  for (Raised& one : raised) {
    one.made = made;
    made += one.ranks.num * one.up->weight->n;
  }
  over_rows(rows.num_items(), k, [&](int64_t begin, int64_t end, int thread) {
    float* space = own_[static_cast<size_t>(thread)].row.get<float>(static_cast<size_t>(k));
    rows.each(begin, end, [&](size_t g, int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {  // row i of the group stands further down in x
        const float* from = x.x + (groups[g].rows[static_cast<size_t>(i)] - i) * x.ld;
        prepare({from, i + 1, x.ld}, prologue, *groups[g].change->down, ready[g], space, i, i + 1);
      }
    });
  });
  pool_.run(downs.num_items(), kGrain, [&](int64_t begin, int64_t end, int) {
    downs.each(begin, end, [&](size_t g, int64_t first, int64_t last) {
      const PackedWeight& down = *groups[g].change->down;
      multiply(down, ready[g], {nullptr, ranks[g], down.n, false}, first, last);
    });
  });
  pool_.share(ups.num_items(), kGrain, [&](Pool::Ranges& ranges) {
    Inputs& own = own_[static_cast<size_t>(ranges.thread)];
    size_t at = raised.size();  // whose ranks are ready in `own`
    Activations a{};
    do {
      ups.each(ranges.begin, ranges.end, [&](size_t i, int64_t first, int64_t last) {
        const Raised& one = raised[i];
        const PackedWeight& weight = *one.up->weight;
        if (i != at) {  // few numbers: each thread makes them for itself
          a = reserve(own, one.ranks.num, weight);
          float* space = own.row.get<float>(static_cast<size_t>(weight.k));
          prepare(one.ranks, Scale(one.up->scale), weight, a, space, 0, one.ranks.num);
          at = i;
        }
        multiply(weight, a, {nullptr, one.made, weight.n, false}, first, last);
        const int64_t column = first * kPanel, num = std::min(last * kPanel, weight.n) - column;
        for (int64_t row = 0; row < one.ranks.num; ++row) {
          float* to = y + (*one.rows)[static_cast<size_t>(row)] * ldy + one.up->first_output + column;
          ops_.add(to, one.made + row * weight.n + column, 0, num);
        }
      });
    } while (ranges.next());
  });
}

}  // namespace ramet
