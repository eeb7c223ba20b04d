#include "steps.h"

#include <cstring>
#include <stdexcept>

namespace ramet {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void require_width(const std::vector<int64_t>& widths, int id, int64_t width, const char* what) {
  const int64_t has = widths.at(static_cast<size_t>(id));
  if (has != width) {
    refuse(std::string(what) + ": a register of " + std::to_string(has) + " numbers a row, not of " +
           std::to_string(width));
  }
}

void require_product(const std::vector<int64_t>& widths, const Product& product, int source, int out) {
  const PackedWeight& weight = product.weight;
  require_width(widths, source, product.prologue.width_in(weight.k), "what a product is of");
  require_width(widths, out, weight.n, "where a product goes");
  if (!product.bias.empty() && static_cast<int64_t>(product.bias.size()) != weight.n) {
    refuse("bias is float32[N]");
  }
}

void require_heads(const Heads& heads) {
  if (heads.num_kv_heads < 1 || heads.num_heads < 1 || heads.num_heads % heads.num_kv_heads != 0) {
    refuse("Hq is a multiple of Hkv");
  }
  if (heads.head_dim < 8 || heads.head_dim % 8 != 0 || heads.head_dim > 256) {
    refuse("the head dim is a multiple of 8 up to 256");
  }
}

void require_layer(const Feed& feed, size_t layer, const Heads& heads) {
  if (feed.plan == nullptr || feed.layers == nullptr || layer >= feed.layers->size()) {
    refuse("the program needs an attention plan and the KV of layer " + std::to_string(layer));
  }
  const KV& kv = (*feed.layers)[layer];
  if (kv.num_heads != heads.num_kv_heads || kv.head_dim != heads.head_dim) {
    refuse("keys and values are [slots, Hkv, D] of the model");
  }
  if (feed.plan->num_rows() != feed.num_rows) refuse("the attention plan is of another batch");
  if (feed.plan->num_slots > kv.num_slots) refuse("the page table names pages beyond the KV pool");
}

}  // namespace

void require_below(const int32_t* ids, int64_t num, int64_t limit, const char* what) {
  for (int64_t i = 0; i < num; ++i) {
    if (ids[i] < 0 || ids[i] >= limit) {
      refuse(std::string(what) + " are from 0 to " + std::to_string(limit - 1) + ", not " +
             std::to_string(ids[i]));
    }
  }
}

void Embed::check_widths(const std::vector<int64_t>& widths) const {
  require_width(widths, writes, table_.k, "where tokens are embedded");
}

void Embed::check(const Feed& feed) const {
  if (feed.token_ids == nullptr) refuse("the program needs token ids");
  require_below(feed.token_ids, feed.num_rows, table_.n, "token ids");
}

void Embed::run(Frame& frame) const {
  frame.kernels.embed(table_, frame.feed.token_ids + frame.begin, frame.num, scale_, frame.out(writes));
}

void Load::check_widths(const std::vector<int64_t>& widths) const {
  require_width(widths, writes, width_, "where rows are loaded");
}

void Load::check(const Feed& feed) const {
  if (feed.loaded == nullptr || feed.loaded_width != width_) {
    refuse("the program needs rows of " + std::to_string(width_) + " numbers to load");
  }
}

void Load::run(Frame& frame) const {
  std::memcpy(frame.out(writes), frame.feed.loaded + frame.begin * width_,
              static_cast<size_t>(frame.num * width_) * sizeof(float));
}

void ProductStep::check_widths(const std::vector<int64_t>& widths) const {
  require_product(widths, product_, reads[0], writes);
}

bool ProductStep::join(ProductStep& next) {
  const auto gated = Gated::of(next.product_.prologue, next.product_.weight, product_.weight);
  if (next.reads[0] != writes || !gated) return false;
  next_.emplace(*gated);
  return next.is_joined_ = true;
}

void ProductStep::multiply(Frame& frame, bool adds) const {
  const auto& [prologue, weight, bias] = product_;
  const Rows rows = frame.rows(reads[0]);
  const Output to{bias.empty() ? nullptr : bias.data(), frame.out(writes), weight.n, adds};
  const bool may_join = frame.feed.adapters.empty() && frame.feed.outputs.bits == nullptr;
  if (is_joined_ && may_join) return frame.kernels.product_of_made(rows.num, weight, to);
  if (!next_ || !may_join) return frame.kernels.product(rows, prologue, weight, to);
  frame.kernels.product_for(*next_, rows, prologue, weight, to);
}

void Project::run(Frame& frame) const {
  const Wanted& all = frame.feed.outputs;
  if (all.bits == nullptr) return multiply(frame, false);
  const Wanted block{all.bits + frame.begin * all.num_words, all.num_words};
  const float* bias = product_.bias.empty() ? nullptr : product_.bias.data();
  frame.kernels.product_where(frame.rows(reads[0]), product_.prologue, product_.weight, block,
                              {bias, frame.out(writes), frame.rows(writes).ld, false});
}

void join_products(const std::vector<std::unique_ptr<Step>>& steps) {
  ProductStep* before = nullptr;
  for (const auto& step : steps) {
    if (dynamic_cast<Adapt*>(step.get()) != nullptr) continue;
    auto* const product = dynamic_cast<ProductStep*>(step.get());
    const bool is_joined = before != nullptr && product != nullptr && before->join(*product);
    before = is_joined ? nullptr : product;
  }
}

void Add::check_widths(const std::vector<int64_t>& widths) const {
  const int64_t width = widths.at(static_cast<size_t>(writes));
  require_width(widths, reads[0], prologue_.width_in(width), "what is added");
}

void Add::run(Frame& frame) const {
  frame.kernels.add_made(frame.rows(reads[0]), prologue_, frame.rows(writes).ld, frame.out(writes));
}

void SoftCap::run(Frame& frame) const {
  frame.kernels.soft_cap(frame.out(writes), limit_, frame.num * frame.rows(writes).ld);
}

void ChooseExperts::check_widths(const std::vector<int64_t>& widths) const {
  const int64_t num = widths.at(static_cast<size_t>(writes));
  if (num > kMaxExperts) refuse("experts are at most " + std::to_string(kMaxExperts));
  if (num_chosen_ < 1 || num_chosen_ > num) refuse("of the experts at least one is chosen, at most all");
}

void ChooseExperts::run(Frame& frame) const {
  frame.kernels.choose_experts(frame.out(writes), frame.num, frame.rows(writes).ld, num_chosen_,
                               is_normalized_);
}

void MixExperts::check_widths(const std::vector<int64_t>& widths) const {
  if (experts_.empty()) refuse("there is at least one expert");
  const Expert& first = experts_[0];
  require_width(widths, reads[0], prologue_.width_in(first.gate_up.k), "what experts work on");
  require_width(widths, reads[1], static_cast<int64_t>(experts_.size()), "weights of experts");
  require_width(widths, writes, first.down.n, "what experts give");
  for (const Expert& e : experts_) {
    if (e.gate_up.k != first.gate_up.k || e.gate_up.n != first.gate_up.n || e.down.n != first.down.n ||
        gate_.width_in(e.down.k) != e.gate_up.n) {
      refuse("experts are of one shape, and down takes what gate and up give");
    }
  }
}

void MixExperts::run(Frame& frame) const {
  frame.kernels.mix_experts(frame.rows(reads[0]), prologue_, frame.rows(reads[1]), experts_, gate_,
                            frame.out(writes));
}

void Adapt::check(const Feed& feed) const {
  for (const Adapter* adapter : feed.adapters) {
    if (number_ >= adapter->changes.size()) refuse("an adapter is of a model with fewer products");
    const LowRank& change = adapter->changes[number_];
    if (change.down == nullptr) continue;
    if (prologue_.width_in(change.down->k) != width_) refuse("an adapter takes what its product is of");
    for (const LowRank::Up& up : change.ups) {
      if (up.first_output + up.weight->n > num_outputs_) refuse("an adapter gives more than its product");
    }
  }
}

void Adapt::run(Frame& frame) const {
  std::vector<Adapted> groups;
  for (size_t a = 0; a < frame.feed.adapters.size(); ++a) {
    const LowRank& change = frame.feed.adapters[a]->changes[number_];
    if (change.down == nullptr) continue;
    std::vector<int64_t> rows;
    for (int64_t row = 0; row < frame.num; ++row) {
      if (frame.adapter_of(writes, row) == static_cast<int32_t>(a) + 1) rows.push_back(row);
    }
    if (!rows.empty()) groups.push_back({&change, std::move(rows)});
  }
  if (groups.empty()) return;
  frame.kernels.adapt(frame.rows(reads[0]), prologue_, groups, frame.rows(writes).ld, frame.out(writes));
}

// A norm that fits no head is of all heads, or of none: check_widths says so.
HeadNorm RotateAndStore::to_head_norm(const Prologue& norm, int64_t num_heads) const {
  const int64_t dim = heads_.head_dim;
  return {norm, norm.width_in(dim) == dim ? dim : num_heads * dim};
}

void RotateAndStore::check_widths(const std::vector<int64_t>& widths) const {
  require_heads(heads_);
  require_width(widths, writes, heads_.width(), "q, k and v");
  for (const HeadNorm* n : {&q_norm_, &k_norm_}) {
    if (n->norm.width_in(n->width) != n->width) refuse("a norm of heads is as long as one head, or as all");
  }
  if (pairs_.first < 0 || pairs_.num < 0 || 2 * pairs_.num > heads_.head_dim) {
    refuse("pairs that turn are some of a head's");
  }
}

void RotateAndStore::check(const Feed& feed) const {
  require_layer(feed, layer_, heads_);
  if (feed.slots == nullptr) refuse("the program needs slots");
  if (feed.angles.num_positions == 0 || pairs_.first + pairs_.num > feed.angles.num_columns) {
    refuse("cos and sin have a column for each pair that turns");
  }
}

void RotateAndStore::run(Frame& frame) const {
  const Feed& feed = frame.feed;
  frame.kernels.rotate_and_store(frame.out(writes), frame.num, heads_, q_norm_, k_norm_, feed.angles, pairs_,
                                 feed.plan->positions.data() + frame.begin, (*feed.layers)[layer_],
                                 feed.slots + frame.begin);
}

void Attend::check_widths(const std::vector<int64_t>& widths) const {
  require_heads(heads_);
  require_width(widths, reads[0], heads_.width(), "q, k and v");
  require_width(widths, writes, heads_.num_heads * heads_.head_dim, "what attention gives");
}

void Attend::check(const Feed& feed) const { require_layer(feed, layer_, heads_); }

void Attend::run(Frame& frame) const {
  const Feed& feed = frame.feed;
  frame.kernels.attention(frame.rows(reads[0]), heads_.num_heads, (*feed.layers)[layer_], *feed.plan,
                          scoring_, frame.out(writes));
}

void TakeRows::check_widths(const std::vector<int64_t>& widths) const {
  require_width(widths, writes, widths.at(static_cast<size_t>(reads[0])), "where rows are taken to");
}

void TakeRows::run(Frame& frame) const {
  const Rows from = frame.rows(reads[0]);
  float* to = frame.out(writes);
  for (int64_t i = 0; i < frame.num; ++i) {
    std::memcpy(to + i * from.ld, from.x + frame.feed.wanted[i] * from.ld,
                static_cast<size_t>(from.ld) * sizeof(float));
  }
}

}  // namespace ramet
