// The steps that programs are made of.
#pragma once
#include "program.h"

namespace ramet {

// Rows of a matrix, by the batch's token ids, times a number.
class Embed final : public Step {
public:
  Embed(const PackedWeight& table, float scale, int out)
      : Step("embed", Extent::each_row, {}, out), table_(table), scale_(scale) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>& widths) const override;
  void check(const Feed& feed) const override;

private:
  const PackedWeight& table_;
  const float scale_;
};

// Rows that the caller has.
class Load final : public Step {
public:
  Load(int64_t width, int out) : Step("load", Extent::each_row, {}, out), width_(width) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>& widths) const override;
  void check(const Feed& feed) const override;

private:
  const int64_t width_;
};

// What a product needs besides its registers.
struct Product {
  const Prologue& prologue;
  const PackedWeight& weight;
  std::vector<float> bias;  // [N], or empty
};

// prologue(source) times the weight, plus bias. Two of them may be joined, where the second one is of what a
// gate makes of the first one's result: the first then makes the second one's rows.
class ProductStep : public Step {
public:
  void check_widths(const std::vector<int64_t>& widths) const override;
  // Whether `next`, which is the next step but for adapters, has been joined to this one.
  bool join(ProductStep& next);

protected:
  ProductStep(const char* name, std::vector<int> reads, Product product, int out)
      : Step(name, Extent::each_row, std::move(reads), out), product_(std::move(product)) {}
  void multiply(Frame& frame, bool adds) const;
  const Product product_;

private:
  std::optional<Gated> next_;  // whose rows this one makes
  bool is_joined_ = false;     // to the one before
};

// out = the product.
class Project final : public ProductStep {
public:
  Project(int source, Product product, int out) : ProductStep("project", {source}, std::move(product), out) {}
  void run(Frame& frame) const override;
};

// The same, added to what is in `sum`.
class ProjectAdd final : public ProductStep {
public:
  ProjectAdd(int source, Product product, int sum)
      : ProductStep("project_add", {source, sum}, std::move(product), sum) {}
  void run(Frame& frame) const override { multiply(frame, true); }
};

// sum += prologue(source).
class Add final : public Step {
public:
  Add(int source, const Prologue& prologue, int sum)
      : Step("add", Extent::each_row, {source, sum}, sum), prologue_(prologue) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>& widths) const override;

private:
  const Prologue& prologue_;
};

// limit * tanh(x / limit), in place.
class SoftCap final : public Step {
public:
  SoftCap(int values, float limit) : Step("soft_cap", Extent::each_row, {values}, values), limit_(limit) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>&) const override {}

private:
  const float limit_;
};

// Heads of q and k are normed and rotated in place, k and v stored in a layer at the batch's slots.
class RotateAndStore final : public Step {
public:
  RotateAndStore(int qkv, const Heads& heads, const Prologue& q_norm, const Prologue& k_norm,
                 const Pairs& pairs, size_t layer)
      : Step("rotate_and_store", Extent::each_row, {qkv}, qkv),
        heads_(heads),
        q_norm_(to_head_norm(q_norm, heads.num_heads)),
        k_norm_(to_head_norm(k_norm, heads.num_kv_heads)),
        pairs_(pairs),
        layer_(layer) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>& widths) const override;
  void check(const Feed& feed) const override;

private:
  HeadNorm to_head_norm(const Prologue& norm, int64_t num_heads) const;

  const Heads heads_;
  const HeadNorm q_norm_, k_norm_;
  const Pairs pairs_;
  const size_t layer_;
};

// Attention of the q in rows of q, k and v over a layer.
class Attend final : public Step {
public:
  Attend(int qkv, const Heads& heads, const Scoring& scoring, size_t layer, int out)
      : Step("attend", Extent::all_rows, {qkv}, out), heads_(heads), scoring_(scoring), layer_(layer) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>& widths) const override;
  void check(const Feed& feed) const override;

private:
  const Heads heads_;
  const Scoring scoring_;
  const size_t layer_;
};

// A router's scores become weights of the chosen experts, in place.
class ChooseExperts final : public Step {
public:
  ChooseExperts(int routing, int64_t num_chosen, bool is_normalized)
      : Step("choose_experts", Extent::each_row, {routing}, routing),
        num_chosen_(num_chosen),
        is_normalized_(is_normalized) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>& widths) const override;

private:
  const int64_t num_chosen_;
  const bool is_normalized_;
};

// out = the sum of what experts make of prologue(source), by their weights in `routing`.
class MixExperts final : public Step {
public:
  MixExperts(int source, const Prologue& prologue, int routing, std::vector<Expert> experts,
             const Prologue& gate, int out)
      : Step("mix_experts", Extent::each_row, {source, routing}, out),
        prologue_(prologue),
        experts_(std::move(experts)),
        gate_(gate) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>& widths) const override;

private:
  const Prologue& prologue_;
  const std::vector<Expert> experts_;
  const Prologue& gate_;
};

// sum += what rows' adapters do to product `number`, which is of prologue(source).
class Adapt final : public Step {
public:
  Adapt(int source, const Prologue& prologue, size_t number, int sum, const std::vector<int64_t>& widths)
      : Step("adapt", Extent::each_row, {source, sum}, sum),
        prologue_(prologue),
        number_(number),
        width_(widths.at(static_cast<size_t>(source))),
        num_outputs_(widths.at(static_cast<size_t>(sum))) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>&) const override {}
  void check(const Feed& feed) const override;

private:
  const Prologue& prologue_;
  const size_t number_;
  const int64_t width_, num_outputs_;
};

// The wanted rows of a register that has them all.
class TakeRows final : public Step {
public:
  TakeRows(int source, int out) : Step("take_rows", Extent::all_rows, {source}, out) {}
  void run(Frame& frame) const override;
  void check_widths(const std::vector<int64_t>& widths) const override;
  bool takes_rows() const override { return true; }
};

// Joins products of a program's steps where that can be done. Adapters change what lies between two of them,
// and where only some outputs are wanted not all of it is there: such batches are computed as if they were
// apart, with the same bits.
void join_products(const std::vector<std::unique_ptr<Step>>& steps);

}  // namespace ramet
