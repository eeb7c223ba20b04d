#include "kernels.h"

#include <algorithm>
#include <cstring>

namespace ramet {
namespace {

template <class T>
void pack_dense(const T* src, int64_t num, int64_t k, T* dst) {
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t lane = 0; lane < num; ++lane) dst[i * kPanel + lane] = src[lane * k + i];
  }
}

void pack_int8(const uint8_t* src, int64_t num, int64_t k, uint8_t* dst) {
  for (int64_t lane = 0; lane < num; ++lane) {
    const uint8_t* row = src + lane * k;
    for (int64_t i = 0; i < k; i += 4) {
      const uint8_t four[4] = {row[i], row[i + 2], row[i + 1], row[i + 3]};
      std::memcpy(dst + i * kPanel + lane * 4, four, 4);
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
    case Format::bf16:
      pack_dense(static_cast<const uint16_t*>(part.data) + n0 * k, num, k, reinterpret_cast<uint16_t*>(dst));
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

PackedWeight Kernels::pack(const std::vector<Part>& parts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  PackedWeight packed;
  for (const Part& part : parts) {
    Matrix m{part.format, part.n, part.k, panel_bytes(part.format, part.k), nullptr};
    const size_t num_bytes = static_cast<size_t>(m.num_panels()) * m.panel_bytes;
    Bytes bytes = allocate(num_bytes);
    m.data = bytes.get();
    pool_.run(m.num_panels(), 8, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        pack_panel(part, i, bytes.get() + static_cast<size_t>(i) * m.panel_bytes);
    });
    packed.parts.push_back({m, std::move(bytes), packed.n, packed.num_panels});
    packed.n += part.n;
    packed.k = part.k;
    packed.num_panels += m.num_panels();
    packed.num_bytes += num_bytes;
    packed.has_quantized |= is_quantized(part.format);
  }
  return packed;
}

void Kernels::embed(const PackedWeight& table, const int32_t* ids, int64_t n, float* y) {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_rows(n, table.k, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      auto part = table.parts.rbegin();
      while (ids[t] < part->first_output) ++part;
      ops_.embed(part->matrix, ids[t] - part->first_output, y + t * table.k);
    }
  });
}

void Kernels::linear(const float* x, int64_t rows, const PackedWeight& weight, const float* bias, float* y) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Activations a{rows, weight.k, x, {}};
  if (weight.has_quantized) {
    const size_t num = num_codes(rows, weight.k);
    a.codes = {rows, weight.k, codes_.get<int16_t>(num), groups_.get<GroupScale>(num / kGroup)};
    over_rows(rows, weight.k, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) ops_.quantize(x + row * weight.k, a.codes, row);
    });
  }
  const int64_t grain = (weight.num_panels / (16 * pool_.num_threads()) + 1) * 2;  // panels are done in pairs
  pool_.run(weight.num_panels, grain, [&](int64_t begin, int64_t end, int) {
    for (const PackedWeight::Stacked& part : weight.parts) {
      const int64_t first = std::max(begin - part.first_panel, int64_t{0});
      const int64_t last = std::min(end - part.first_panel, part.matrix.num_panels());
      if (first >= last) continue;
      const float* part_bias = bias == nullptr ? nullptr : bias + part.first_output;
      ops_.linear(part.matrix, a, {part_bias, y + part.first_output, weight.n, false}, first, last);
    }
  });
}

void Kernels::rms_norm(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                       float* y) {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_rows(rows, width,
            [&](int64_t begin, int64_t end, int) { ops_.rms_norm(x, weight, eps, width, y, begin, end); });
}

void Kernels::add(float* x, const float* y, int64_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_rows(n, 1, [&](int64_t begin, int64_t end, int) { ops_.add(x, y, begin, end); });
}

void Kernels::silu_mul(const float* gate_up, int64_t rows, int64_t width, float* y) {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_rows(rows, width,
            [&](int64_t begin, int64_t end, int) { ops_.silu_mul(gate_up, width, y, begin, end); });
}

void Kernels::rope(float* x, const float* cos, const float* sin, int64_t rows, int64_t heads,
                   int64_t head_dim, int64_t half) {
  const std::lock_guard<std::mutex> lock(mutex_);
  over_rows(rows, heads * head_dim, [&](int64_t begin, int64_t end, int) {
    ops_.rope(x, cos, sin, heads, head_dim, half, begin, end);
  });
}

void Kernels::write_kv(const KV& layer, const float* keys, const float* values, const int32_t* slots,
                       int64_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t width = layer.num_heads * layer.head_dim;
  const auto write = [&](void* store, const float* row, int64_t slot) {
    if (layer.is_bf16) {
      ops_.store_bf16(static_cast<uint16_t*>(store) + slot * width, row, width);
    } else {
      std::memcpy(static_cast<float*>(store) + slot * width, row, static_cast<size_t>(width) * sizeof(float));
    }
  };
  for (int64_t t = 0; t < n; ++t) {  // in order: of rows that share a slot the last one stays
    write(layer.keys, keys + t * width, slots[t]);
    write(layer.values, values + t * width, slots[t]);
  }
}

void Kernels::attention(const float* q, int64_t num_heads, const KV& layer, const Plan& plan, float scale,
                        float* out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto floats = static_cast<size_t>(plan.num_partials * num_heads * partial_floats(layer.head_dim));
  const AttentionArgs args{q,
                           num_heads * layer.head_dim,
                           out,
                           layer.keys,
                           layer.values,
                           layer.is_bf16,
                           num_heads,
                           layer.num_heads,
                           layer.head_dim,
                           plan.page_size,
                           scale,
                           plan.task_rows.data(),
                           plan.positions.data(),
                           plan.page_ids.data(),
                           plan.partial_of_row.data(),
                           partials_.get<float>(floats)};
  const int64_t queries = plan.max_task_rows * (num_heads / layer.num_heads);
  const auto scratch = static_cast<size_t>(attention_scratch_floats(queries, layer.head_dim));
  const auto num_tasks = static_cast<int64_t>(plan.tasks.size());
  pool_.run(num_tasks * layer.num_heads, 1, [&](int64_t begin, int64_t end, int thread) {
    auto* own = attention_[static_cast<size_t>(thread)].get<float>(scratch);
    for (int64_t i = begin; i < end; ++i) {
      ops_.attend(args, plan.tasks[static_cast<size_t>(i / layer.num_heads)], i % layer.num_heads, own);
    }
  });
  const auto num_merges = static_cast<int64_t>(plan.split_rows.size()) * num_heads;
  pool_.run(num_merges, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      ops_.merge(args, plan.split_rows[static_cast<size_t>(i / num_heads)], i % num_heads);
    }
  });
}

}  // namespace ramet
