#include "kernels.h"

#include <algorithm>
#include <cstring>

namespace ramet {
namespace {

constexpr int64_t kPanelGrain = 2;  // panels are done in pairs

template <class T>
void pack_dense(const T* src, int64_t num, int64_t k, T* dst) {
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t lane = 0; lane < num; ++lane) dst[i * kPanel + lane] = src[lane * k + i];
  }
}

void pack_pairs(const uint16_t* src, int64_t num, int64_t k, uint16_t* dst) {
  for (int64_t lane = 0; lane < num; ++lane) {
    for (int64_t i = 0; i < k; ++i) dst[(i / 2 * kPanel + lane) * 2 + i % 2] = src[lane * k + i];
  }
}

void pack_int8(const uint8_t* src, int64_t num, int64_t k, uint8_t* dst) {
  for (int64_t lane = 0; lane < num; ++lane) {
    const uint8_t* row = src + lane * k;
    for (int64_t i = 0; i < k; i += 8) {
      for (int64_t r = 0; r < 2; ++r) {
        const uint8_t* x = row + i + 2 * r;
        const uint8_t four[4] = {x[0], x[4], x[1], x[5]};
        std::memcpy(dst + (i + 4 * r) * kPanel + lane * 4, four, 4);
      }
    }
  }
}

void pack_nibbles(const uint8_t* src, int64_t num, int64_t k, uint8_t* dst) {
  for (int64_t lane = 0; lane < num; ++lane) {
    const uint8_t* row = src + lane * k;
    for (int64_t i = 0; i < k; i += 8) {
      for (int64_t b = 0; b < 4; ++b) {  // byte b is half of word b / 2
        const int64_t at = i + b % 2 * 4 + b / 2;
        const int low = row[at] & 15, high = row[at + 2] & 15;
        dst[i / 8 * 64 + lane * 4 + b] = static_cast<uint8_t>(low | high << 4);
      }
    }
  }
}

void pack_scales(const uint16_t* src, int64_t num, int64_t groups, uint16_t* dst, int64_t stride) {
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t lane = 0; lane < num; ++lane) dst[g * stride + lane] = src[lane * groups + g];
  }
}

void pack_panel(const Part& part, int64_t panel, uint8_t* dst) {
  const int64_t n0 = panel * kPanel, num = std::min(kPanel, part.n - n0), k = part.k, groups = k / kGroup;
  auto* scales = reinterpret_cast<uint16_t*>(dst + code_bytes(part.format, k));
  const auto* bytes = static_cast<const uint8_t*>(part.data) + n0 * k;
  std::memset(dst, 0, panel_bytes(part.format, k));
  switch (part.format) {
    case Format::f32:
      pack_dense(static_cast<const uint32_t*>(part.data) + n0 * k, num, k, reinterpret_cast<uint32_t*>(dst));
      break;
    case Format::f16:
      pack_dense(static_cast<const uint16_t*>(part.data) + n0 * k, num, k, reinterpret_cast<uint16_t*>(dst));
      break;
    case Format::bf16:
      pack_pairs(static_cast<const uint16_t*>(part.data) + n0 * k, num, k, reinterpret_cast<uint16_t*>(dst));
      break;
    case Format::q8:
      pack_int8(bytes, num, k, dst);
      pack_scales(part.scales + n0 * groups, num, groups, scales, kPanel);
      break;
    case Format::q4:
      pack_nibbles(bytes, num, k, dst);
      pack_scales(part.scales + n0 * groups, num, groups, scales, 2 * kPanel);
      pack_scales(part.mins + n0 * groups, num, groups, scales + kPanel, 2 * kPanel);
      break;
  }
}

}  // namespace

void Kernels::extend(Format format, int64_t n, int64_t k, PackedWeight& to, int64_t rows) {
  if (to.parts.empty() || !to.parts.back().takes(format, n)) {
    Matrix m{format, 0, k, panel_bytes(format, k), nullptr};
    const int64_t capacity = (std::max(n, rows - to.n) + kPanel - 1) / kPanel;
    Quarry::Piece bytes = weights_.cut(static_cast<size_t>(capacity) * m.panel_bytes);
    m.data = bytes.get();
    to.parts.push_back({m, std::move(bytes), to.n, to.num_panels, capacity});
    to.reads[static_cast<size_t>(ops_.input_of(format))] = true;
  }
  PackedWeight::Stacked& part = to.parts.back();
  const size_t before = part.num_bytes();
  part.matrix.n += n;
  to.n += n;
  to.k = k;
  to.num_panels = part.first_panel + part.matrix.num_panels();
  to.num_bytes += part.num_bytes() - before;
}

void Kernels::pack(const Part& part, PackedWeight& to, int64_t rows) {
  extend(part.format, part.n, part.k, to, rows);
  const PackedWeight::Stacked& where = to.parts.back();
  const int64_t num = (part.n + kPanel - 1) / kPanel, first = where.matrix.num_panels() - num;
  uint8_t* panels = where.bytes.get() + static_cast<size_t>(first) * where.matrix.panel_bytes;
  pool_.run(num, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      pack_panel(part, i, panels + static_cast<size_t>(i) * where.matrix.panel_bytes);
  });
}

void Kernels::embed(const PackedWeight& table, const int32_t* ids, int64_t n, float scale, float* y) {
  over_rows(n, table.k, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      auto part = table.parts.rbegin();
      while (ids[t] < part->first_output) ++part;
      ops_.embed(part->matrix, ids[t] - part->first_output, y + t * table.k);
      ops_.scale(y + t * table.k, scale, table.k, y + t * table.k);
    }
  });
}

Activations Kernels::reserve(Inputs& inputs, int64_t rows, const PackedWeight& weight) {
  const int64_t k = weight.k;
  Activations a{rows, k, nullptr, {}, {}, {}};
  inputs.row.get<float>(static_cast<size_t>(k));
  if (weight.reads_as(Input::floats)) a.x = inputs.rows.get<float>(static_cast<size_t>(rows * k));
  if (weight.reads_as(Input::halves)) a.halves = {rows, k, inputs.halves.get<uint16_t>(num_halves(rows, k))};
  const auto reserve_codes = [&](Input kind, Inputs::Rounded& memory, Codes& codes) {
    if (!weight.reads_as(kind)) return;
    const size_t num = num_codes(rows, k);
    codes = {kind, rows, k, memory.codes.get<int16_t>(num), memory.groups.get<GroupScale>(num / kGroup)};
  };
  reserve_codes(Input::codes16, inputs.codes16, a.codes16);
  reserve_codes(Input::codes12, inputs.codes12, a.codes12);
  return a;
}

// Columns of row `at`, which begin at `row`.
void Kernels::round_off(const float* row, const PackedWeight& weight, const Activations& to, int64_t at,
                        Columns columns) {
  if (weight.reads_as(Input::codes16)) ops_.quantize(row, to.codes16, at, columns);
  if (weight.reads_as(Input::codes12)) ops_.quantize(row, to.codes12, at, columns);
  if (weight.reads_as(Input::halves)) ops_.split(row, to.halves, at, columns);
  if (weight.reads_as(Input::floats)) {
    std::memcpy(const_cast<float*>(to.x) + at * weight.k + columns.begin, row,
                static_cast<size_t>(columns.num()) * sizeof(float));
  }
}

// Makes and rounds rows begin to end; `space` has room for one of them.
void Kernels::prepare(const Rows& x, const Prologue& prologue, const PackedWeight& weight,
                      const Activations& to, float* space, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    round_off(prologue.apply(ops_, x.x + row * x.ld, weight.k, space), weight, to, row, {0, weight.k});
}

void Kernels::multiply(const PackedWeight& weight, const Activations& a, const Output& to, int64_t begin,
                       int64_t end) {
  for (const PackedWeight::Stacked& part : weight.parts) {
    const int64_t first = std::max(begin - part.first_panel, int64_t{0});
    const int64_t last = std::min(end - part.first_panel, part.matrix.num_panels());
    if (first >= last) continue;
    const float* bias = to.bias == nullptr ? nullptr : to.bias + part.first_output;
    ops_.linear(part.matrix, a, {bias, to.y + part.first_output, to.ldy, to.adds}, first, last);
  }
}

// Makes a product's rows and calls work(rows, begin, end, thread) on ranges of items.
template <class Work>
void Kernels::over_rows_made(const Rows& x, const Prologue& prologue, const PackedWeight& weight,
                             int64_t num_items, int64_t grain, const Work& work) {
  constexpr int64_t kFew = 32768;  // numbers
  if (x.num * weight.k <= kFew) {  // each thread makes the rows for itself: sooner done than shared out
    for (Inputs& own : own_) reserve(own, x.num, weight);
    pool_.share(num_items, grain, [&](Pool::Ranges& ranges) {
      Inputs& own = own_[static_cast<size_t>(ranges.thread)];
      const Activations a = reserve(own, x.num, weight);
      prepare(x, prologue, weight, a, own.row.get<float>(static_cast<size_t>(weight.k)), 0, x.num);
      do work(a, ranges.begin, ranges.end, ranges.thread);
      while (ranges.next());
    });
    return;
  }
  for (Inputs& own : own_) own.row.get<float>(static_cast<size_t>(weight.k));
  const Activations a = reserve(shared_, x.num, weight);
  over_rows(x.num, weight.k, [&](int64_t begin, int64_t end, int thread) {
    float* space = own_[static_cast<size_t>(thread)].row.get<float>(static_cast<size_t>(weight.k));
    prepare(x, prologue, weight, a, space, begin, end);
  });
  pool_.run(num_items, grain, [&](int64_t begin, int64_t end, int thread) { work(a, begin, end, thread); });
}

void Kernels::product(const Rows& x, const Prologue& prologue, const PackedWeight& weight, const Output& to) {
  over_rows_made(
      x, prologue, weight, weight.num_panels, kPanelGrain,
      [&](const Activations& a, int64_t begin, int64_t end, int) { multiply(weight, a, to, begin, end); });
}

// A thread that has computed both halves of some of the result makes the next rows of it at once: it is in
// its cache, and nobody else reads it.
void Kernels::product_for(const Gated& next, const Rows& x, const Prologue& prologue,
                          const PackedWeight& weight, const Output& to) {
  const int64_t width = next.weight.k, panels = kGroup / kPanel, half = width / kPanel;
  const Activations made = reserve(gated_, x.num, next.weight);
  for (Inputs& own : own_) own.gated.get<float>(static_cast<size_t>(width));
  over_rows_made(x, prologue, weight, width / kGroup, 1,
                 [&](const Activations& a, int64_t begin, int64_t end, int thread) {
                   multiply(weight, a, to, begin * panels, end * panels);
                   multiply(weight, a, to, half + begin * panels, half + end * panels);
                   const Columns columns{begin * kGroup, end * kGroup};
                   float* space =
                       own_[static_cast<size_t>(thread)].gated.get<float>(static_cast<size_t>(width));
                   for (int64_t row = 0; row < x.num; ++row) {
                     const float* gate = to.y + row * to.ldy + columns.begin;
                     next.gate.multiply(ops_, gate, gate + width, columns.num(), space);
                     round_off(space, next.weight, made, row, columns);
                   }
                 });
}

void Kernels::product_of_made(int64_t rows, const PackedWeight& weight, const Output& to) {
  const Activations made = reserve(gated_, rows, weight);
  pool_.run(weight.num_panels, kPanelGrain,
            [&](int64_t begin, int64_t end, int) { multiply(weight, made, to, begin, end); });
}

// Panels are of few rows, so each row is done by itself; its bits are those of any number of rows.
void Kernels::product_where(const Rows& x, const Prologue& prologue, const PackedWeight& weight,
                            const Wanted& wanted, const Output& to) {
  for (Inputs& own : own_) reserve(own, 1, weight);
  pool_.run(x.num, 1, [&](int64_t begin, int64_t end, int thread) {
    Inputs& own = own_[static_cast<size_t>(thread)];
    const Activations a = reserve(own, 1, weight);
    float* space = own.row.get<float>(static_cast<size_t>(weight.k));
    for (int64_t row = begin; row < end; ++row) {
      prepare({x.x + row * x.ld, 1, x.ld}, prologue, weight, a, space, 0, 1);
      float* y = to.y + row * to.ldy;
      for (const PackedWeight::Stacked& part : weight.parts) {
        for (int64_t panel = 0; panel < part.matrix.num_panels(); ++panel) {
          const int64_t at = part.first_panel + panel;
          if (wanted.any(row, part.first_output + panel * kPanel, kPanel))
            multiply(weight, a, {to.bias, y, to.ldy, false}, at, at + 1);
        }
      }
    }
  });
}

void Kernels::rms_norm(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                       float* y) {
  over_rows(rows, width,
            [&](int64_t begin, int64_t end, int) { ops_.rms_norm(x, weight, eps, width, y, begin, end); });
}

void Kernels::add(float* x, const float* y, int64_t n) {
  over_rows(n, 1, [&](int64_t begin, int64_t end, int) { ops_.add(x, y, begin, end); });
}

void Kernels::gate_mul(const Gate& gate, const float* gate_up, int64_t rows, int64_t width, float* y) {
  over_rows(rows, width, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) gate.apply(ops_, gate_up + t * 2 * width, width, y + t * width);
  });
}

void Kernels::soft_cap(float* x, float limit, int64_t n) {
  over_rows(n, 1, [&](int64_t begin, int64_t end, int) { ops_.soft_cap(x, limit, begin, end); });
}

void Kernels::choose_experts(float* scores, int64_t rows, int64_t n, int64_t k, bool is_normalized) {
  over_rows(rows, n * k, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) ops_.choose_experts(scores + row * n, n, k, is_normalized);
  });
}

// Expert by expert, the rows that chose it together: a row's products are the same whoever is beside it, and
// it meets its experts in their order.
void Kernels::mix_experts(const Rows& x, const Prologue& prologue, const Rows& routing,
                          const std::vector<Expert>& experts, const Prologue& gate, float* y) {
  const int64_t k = experts[0].gate_up.k, inner_width = experts[0].gate_up.n, n = experts[0].down.n;
  const auto floats = [&](Scratch& memory, int64_t width) {
    return memory.get<float>(static_cast<size_t>(x.num * width));
  };
  float *rows = floats(mixing_.rows, k), *chosen = floats(mixing_.chosen, k);
  float *inner = floats(mixing_.inner, inner_width), *made = floats(mixing_.made, n);
  const auto row_bytes = static_cast<size_t>(k) * sizeof(float);
  over_rows(x.num, k, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* row = prologue.apply(ops_, x.x + t * x.ld, k, rows + t * k);
      if (row != rows + t * k) std::memcpy(rows + t * k, row, row_bytes);
    }
  });
  std::fill(y, y + x.num * n, 0.0f);
  std::vector<int64_t> who;
  for (size_t e = 0; e < experts.size(); ++e) {
    who.clear();
    for (int64_t t = 0; t < x.num; ++t) {
      if (routing.x[t * routing.ld + static_cast<int64_t>(e)] == 0.0f) continue;
      std::memcpy(chosen + static_cast<int64_t>(who.size()) * k, rows + t * k, row_bytes);
      who.push_back(t);
    }
    if (who.empty()) continue;
    const auto num = static_cast<int64_t>(who.size());
    const auto& [gate_up, down] = experts[e];
    const Output to_inner{nullptr, inner, inner_width, false}, to_made{nullptr, made, n, false};
    if (const auto next = Gated::of(gate, down, gate_up)) {
      product_for(*next, {chosen, num, k}, Prologue(), gate_up, to_inner);
      product_of_made(num, down, to_made);
    } else {
      product({chosen, num, k}, Prologue(), gate_up, to_inner);
      product({inner, num, inner_width}, gate, down, to_made);
    }
    over_rows(num, n, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = who[static_cast<size_t>(i)];
        ops_.scale(made + i * n, routing.x[t * routing.ld + static_cast<int64_t>(e)], n, made + i * n);
        ops_.add(y + t * n, made + i * n, 0, n);
      }
    });
  }
}

void Kernels::add_made(const Rows& x, const Prologue& prologue, int64_t width, float* sum) {
  const auto size = static_cast<size_t>(width);
  for (Inputs& own : own_) own.row.get<float>(size);
  over_rows(x.num, width, [&](int64_t begin, int64_t end, int thread) {
    float* space = own_[static_cast<size_t>(thread)].row.get<float>(size);
    for (int64_t row = begin; row < end; ++row) {
      ops_.add(sum + row * width, prologue.apply(ops_, x.x + row * x.ld, width, space), 0, width);
    }
  });
}

void Kernels::rope(float* x, const float* cos, const float* sin, int64_t rows, int64_t heads,
                   int64_t head_dim, int64_t half) {
  over_rows(rows, heads * head_dim, [&](int64_t begin, int64_t end, int) {
    ops_.rope(x, cos, sin, heads, head_dim, half, begin, end);
  });
}

void Kernels::store_kv(const KV& layer, int64_t slot, const float* key, const float* value) {
  const int64_t width = layer.num_heads * layer.head_dim, row = kv_row_items(layer.format, layer.head_dim);
  const int64_t at = slot * layer.num_heads * row;
  const auto store = [&](void* stored, const float* x) {
    switch (layer.format) {
      case KVFormat::f32:
        std::memcpy(static_cast<float*>(stored) + at, x, static_cast<size_t>(width) * sizeof(float));
        break;
      case KVFormat::bf16:
        ops_.store_bf16(static_cast<uint16_t*>(stored) + at, x, width);
        break;
      case KVFormat::int8:
        for (int64_t h = 0; h < layer.num_heads; ++h) {
          ops_.store_int8(static_cast<int8_t*>(stored) + at + h * row, x + h * layer.head_dim,
                          layer.head_dim);
        }
        break;
    }
  };
  store(layer.keys, key);
  store(layer.values, value);
}

void Kernels::write_kv(const KV& layer, const float* keys, const float* values, const int32_t* slots,
                       int64_t n) {
  const int64_t width = layer.num_heads * layer.head_dim;
  for (int64_t t = 0; t < n; ++t) {  // in order: of rows that share a slot the last one stays
    store_kv(layer, slots[t], keys + t * width, values + t * width);
  }
}

void Kernels::rotate_and_store(float* qkv, int64_t rows, const Heads& heads, const HeadNorm& q_norm,
                               const HeadNorm& k_norm, const Angles& angles, const Pairs& pairs,
                               const int32_t* positions, const KV& layer, const int32_t* slots) {
  const int64_t dim = heads.head_dim, num_rotated = heads.num_heads + heads.num_kv_heads;
  const auto norm_heads = [&](const HeadNorm& n, float* x, int64_t num) {
    for (const float* end = x + num * dim; x < end; x += n.width) n.norm.apply(ops_, x, n.width, x);
  };
  over_rows(rows, heads.width(), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float *row = qkv + t * heads.width(), *keys = row + heads.num_heads * dim;
      norm_heads(q_norm, row, heads.num_heads);
      norm_heads(k_norm, keys, heads.num_kv_heads);
      const int64_t at = positions[t] * angles.num_columns + pairs.first;
      ops_.rope(row, angles.cos + at, angles.sin + at, num_rotated, dim, pairs.num, 0, 1);
      store_kv(layer, slots[t], keys, row + num_rotated * dim);
    }
  });
}

void Kernels::attention(const Rows& q, int64_t num_heads, const KV& layer, const Plan& plan,
                        const Scoring& scoring, float* out) {
  const auto floats = static_cast<size_t>(plan.num_partials * num_heads * partial_floats(layer.head_dim));
  const AttentionArgs args{q.x,
                           q.ld,
                           out,
                           layer.keys,
                           layer.values,
                           layer.format,
                           num_heads,
                           layer.num_heads,
                           layer.head_dim,
                           plan.page_size,
                           scoring.scale,
                           plan.task_rows.data(),
                           plan.positions.data(),
                           plan.page_ids.data(),
                           plan.page_of_row.data(),
                           plan.partial_of_row.data(),
                           partials_.get<float>(floats),
                           scoring.window,
                           scoring.cap};
  units_.clear();
  const bool are_few = static_cast<int>(plan.tasks.size()) < pool_.num_threads();  // all threads get some
  for (const AttentionTask& task : plan.tasks) {
    const int64_t together = are_few ? 1 : ops_.heads_together(args, task);
    for (int64_t head = 0; head < layer.num_heads; head += together)
      units_.push_back({&task, head, std::min(together, layer.num_heads - head)});
  }
  const int64_t queries = plan.max_task_rows * (num_heads / layer.num_heads);
  const auto scratch = static_cast<size_t>(attention_scratch_floats(queries, layer.head_dim));
  const AttentionUnit* units = units_.data();
  for (Scratch& own : attention_) own.get<float>(scratch);  // here, where it may fail
  pool_.run(static_cast<int64_t>(units_.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    auto* own = attention_[static_cast<size_t>(thread)].get<float>(scratch);
    ops_.attend(args, units + begin, units + end, own);
  });
  const auto num_merges = static_cast<int64_t>(plan.split_rows.size()) * num_heads;
  pool_.run(num_merges, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      ops_.merge(args, plan.split_rows[static_cast<size_t>(i / num_heads)], i % num_heads);
    }
  });
}

}  // namespace ramet
