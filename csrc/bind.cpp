// With the other bind_*.cpp all of csrc that knows Python: checks dims, types and bounds, releases the GIL,
// does no arithmetic.
#include "bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "bind_peaks.h"
#include "prefix.h"
#include "program.h"

namespace ramet {
namespace {

using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Loaded = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require_below(const Ids& ids, int64_t limit, const char* what) {
  ramet::require_below(ids.data(), dim(ids, 0), limit, what);
}

template <class Work>
void without_gil(Kernels& kernels, const Work& work) {
  const nb::gil_scoped_release release;
  const Kernels::Turn turn(kernels);
  work();
}

struct FormatInfo {
  const char* name;
  Format format;
  nb::dlpack::dtype dtype;
};

const FormatInfo kFormats[] = {
    {"f32", Format::f32, nb::dtype<float>()},      {"f16", Format::f16, {2, 16, 1}},
    {"bf16", Format::bf16, nb::dtype<uint16_t>()}, {"q8", Format::q8, nb::dtype<int8_t>()},
    {"q4", Format::q4, nb::dtype<uint8_t>()},
};

const FormatInfo& find_format(const std::string& name) {
  for (const FormatInfo& info : kFormats) {
    if (name == info.name) return info;
  }
  throw std::invalid_argument("unknown weight format " + name);
}

const char* format_name(Format format) {
  for (const FormatInfo& info : kFormats) {
    if (format == info.format) return info.name;
  }
  return "";
}

const uint16_t* group_values(const std::optional<Loaded>& values, bool wanted, const Part& part,
                             const char* name) {
  if (!wanted) return nullptr;
  const std::string shape =
      "float16[" + std::to_string(part.n) + ", " + std::to_string(part.k / kGroup) + "]";
  if (!values || values->dtype() != nb::dlpack::dtype{2, 16, 1} || dim(*values, 0) != part.n ||
      dim(*values, 1) != part.k / kGroup) {
    throw std::invalid_argument(std::string(name) + " are " + shape);
  }
  return static_cast<const uint16_t*>(values->data());
}

Part to_part(const nb::tuple& loaded) {
  const FormatInfo& info = find_format(nb::cast<std::string>(loaded[0]));
  const auto data = nb::cast<Loaded>(loaded[1]);
  require(data.dtype() == info.dtype, "the data's type is not the format's");
  Part part{info.format, dim(data, 0), dim(data, 1), data.data(), nullptr, nullptr};
  require(part.n > 0 && part.k > 0, "a matrix has at least one row and one column");
  require(!is_quantized(part.format) || part.k % kGroup == 0, "K of a quantised matrix is a multiple of 32");
  const auto scales = nb::cast<std::optional<Loaded>>(loaded[2]),
             mins = nb::cast<std::optional<Loaded>>(loaded[3]);
  part.scales = group_values(scales, is_quantized(part.format), part, "scales");
  part.mins = group_values(mins, part.format == Format::q4, part, "mins");
  return part;  // points into arrays that the caller's tuple keeps
}

// Each part is asked for when the one before is laid out, so that few are there at once.
PackedWeight pack(Kernels& self, const nb::iterable& loaded, int64_t rows) {
  PackedWeight packed;
  for (const nb::handle one : loaded) {
    const Part part = to_part(nb::cast<nb::tuple>(one));
    require(packed.parts.empty() || part.k == packed.k, "matrices that are packed together have one K");
    const nb::gil_scoped_release release;
    const Kernels::Turn turn(self);
    self.pack(part, packed, rows);
  }
  require(!packed.parts.empty(), "pack needs at least one matrix");
  return packed;
}

// A weight of such pieces, (format, n), whose bytes are still to be written.
PackedWeight room_for(Kernels& self, const std::vector<std::pair<std::string, int64_t>>& pieces, int64_t k) {
  constexpr int64_t kMost = int64_t{1} << 30;  // so that no product of sizes overflows
  PackedWeight packed;
  require(!pieces.empty() && k > 0 && k < kMost, "a weight has at least one piece and one column");
  for (const auto& [name, n] : pieces) {
    const Format format = find_format(name).format;
    require(n > 0 && n < kMost, "a piece has at least one row");
    require(!is_quantized(format) || k % kGroup == 0, "K of a quantised matrix is a multiple of 32");
    const nb::gil_scoped_release release;
    const Kernels::Turn turn(self);
    self.extend(format, n, k, packed);
  }
  return packed;
}

// The bytes of each piece, to be read and, where `room_for` made it, written.
nb::list pieces(const nb::object& weight) {
  nb::list found;
  for (const PackedWeight::Stacked& part : nb::cast<const PackedWeight&>(weight).parts) {
    const nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> bytes(part.bytes.get(), {part.num_bytes()}, weight);
    found.append(nb::make_tuple(format_name(part.matrix.format), part.matrix.n, bytes));
  }
  return found;
}

}  // namespace

KV to_kv(const Store& keys, const Store& values) {
  const auto format = [&] {
    if (keys.dtype() == nb::dtype<float>()) return KVFormat::f32;
    if (keys.dtype() == nb::dtype<uint16_t>()) return KVFormat::bf16;
    require(keys.dtype() == nb::dtype<int8_t>(),
            "keys are float32, uint16 holding bfloat16, or int8 codes with their scale");
    return KVFormat::int8;
  }();
  require(values.dtype() == keys.dtype(), "keys and values are of one type");
  for (size_t i = 0; i < 3; ++i)
    require(keys.shape(i) == values.shape(i), "keys and values are of one shape");
  const int64_t head_dim = dim(keys, 2) - kv_row_items(format, 0);
  require(head_dim >= 0, "a row of int8 keys ends with its scale");
  return {keys.data(), values.data(), format, dim(keys, 0), dim(keys, 1), head_dim};
}

Scoring to_scoring(float scale, std::optional<int64_t> window, std::optional<float> cap) {
  require(!window || (*window >= 1 && *window <= kNoWindow), "a window is of at least one position");
  require(!cap || *cap > 0, "a cap is over 0");
  return {scale, window.value_or(kNoWindow), cap.value_or(0.0f)};
}

namespace {

void embed(Kernels& self, const PackedWeight& table, const Ids& ids, const Array<float, 2>& out) {
  require_below(ids, table.n, "token ids");
  require(out.shape(0) == ids.size() && dim(out, 1) == table.k, "out is float32[T, K]");
  without_gil(self,
              [&] { self.embed(table, ids.data(), static_cast<int64_t>(ids.size()), 1.0f, out.data()); });
}

void linear(Kernels& self, const Array<const float, 2>& x, const PackedWeight& weight,
            const std::optional<Array<const float, 1>>& bias, const Array<float, 2>& out) {
  require(dim(x, 1) == weight.k, "x is float32[T, K] with the weight's K");
  require(!bias || dim(*bias, 0) == weight.n, "bias is float32[N]");
  require(out.shape(0) == x.shape(0) && dim(out, 1) == weight.n, "out is float32[T, N]");
  without_gil(self, [&] {
    self.product({x.data(), dim(x, 0), weight.k}, Prologue(), weight,
                 {bias ? bias->data() : nullptr, out.data(), weight.n, false});
  });
}

void rms_norm(Kernels& self, const Floats& x, const Array<const float, 1>& weight, float eps,
              const nb::ndarray<float, nb::c_contig, nb::device::cpu>& out) {
  require(x.ndim() > 0 && x.shape(x.ndim() - 1) == weight.size(), "the last dim of x is the weight's");
  require(x.size() == out.size(), "out is of x's shape");
  const int64_t width = dim(weight, 0), rows = width == 0 ? 0 : static_cast<int64_t>(x.size()) / width;
  without_gil(self, [&] { self.rms_norm(x.data(), weight.data(), eps, rows, width, out.data()); });
}

void add(Kernels& self, const nb::ndarray<float, nb::c_contig, nb::device::cpu>& x, const Floats& y) {
  require(x.size() == y.size(), "x and y are of one shape");
  without_gil(self, [&] { self.add(x.data(), y.data(), static_cast<int64_t>(x.size())); });
}

template <class SomeGate>
void gate_mul(Kernels& self, const Array<const float, 2>& gate_up, const Array<float, 2>& out) {
  require(gate_up.shape(0) == out.shape(0) && gate_up.shape(1) == 2 * out.shape(1),
          "gate_up is float32[T, 2 F]");
  without_gil(self, [&] { self.gate_mul(SomeGate(), gate_up.data(), dim(out, 0), dim(out, 1), out.data()); });
}

void soft_cap(Kernels& self, const Array<float, 2>& x, float limit) {
  without_gil(self, [&] { self.soft_cap(x.data(), limit, static_cast<int64_t>(x.size())); });
}

void choose_experts(Kernels& self, const Array<float, 2>& scores, int64_t num_chosen, bool is_normalized) {
  require(dim(scores, 1) <= kMaxExperts, "experts are at most 1024");
  require(num_chosen >= 1 && num_chosen <= dim(scores, 1),
          "of the experts at least one is chosen, at most all");
  without_gil(self, [&] {
    self.choose_experts(scores.data(), dim(scores, 0), dim(scores, 1), num_chosen, is_normalized);
  });
}

void rope(Kernels& self, const Array<float, 3>& x, const Array<const float, 2>& cos,
          const Array<const float, 2>& sin) {
  require(cos.shape(0) == x.shape(0) && sin.shape(0) == x.shape(0),
          "cos and sin have a row for each row of x");
  require(cos.shape(1) == sin.shape(1) && 2 * cos.shape(1) <= x.shape(2),
          "cos and sin are float32[T, D_rot / 2]");
  without_gil(self, [&] {
    self.rope(x.data(), cos.data(), sin.data(), dim(x, 0), dim(x, 1), dim(x, 2), dim(cos, 1));
  });
}

void write_kv(Kernels& self, const Store& layer_keys, const Store& layer_values,
              const Array<const float, 3>& keys, const Array<const float, 3>& values, const Ids& slots) {
  const KV layer = to_kv(layer_keys, layer_values);
  for (const auto* rows : {&keys, &values}) {
    require(
        rows->shape(0) == slots.size() && dim(*rows, 1) == layer.num_heads && dim(*rows, 2) == layer.head_dim,
        "keys and values are float32[T, Hkv, D] with a slot for each row");
  }
  require_below(slots, layer.num_slots, "slots");
  without_gil(self, [&] { self.write_kv(layer, keys.data(), values.data(), slots.data(), dim(slots, 0)); });
}

void copy_pages(const std::vector<Store>& stores, const Ids& src, const Ids& dst, const Ids& num_tokens,
                int64_t page_size) {
  require(src.size() == dst.size() && src.size() == num_tokens.size(),
          "src, dst and num_tokens are of one length");
  require(page_size > 0, "page_size is at least 1");
  require_below(num_tokens, page_size + 1, "copied tokens");
  for (const Store& store : stores) {
    require_below(src, dim(store, 0) / page_size, "pages");
    require_below(dst, dim(store, 0) / page_size, "pages");
  }
  const nb::gil_scoped_release release;
  for (const Store& store : stores) {
    const size_t slot_bytes = store.shape(1) * store.shape(2) * store.itemsize();
    const size_t page_bytes = static_cast<size_t>(page_size) * slot_bytes;
    auto* base = static_cast<uint8_t*>(store.data());
    for (size_t i = 0; i < src.size(); ++i) {
      std::memmove(base + static_cast<size_t>(dst.data()[i]) * page_bytes,
                   base + static_cast<size_t>(src.data()[i]) * page_bytes,
                   static_cast<size_t>(num_tokens.data()[i]) * slot_bytes);
    }
  }
}

void make_plan(Plan* self, int64_t page_size, const Ids& query_indptr, const Ids& positions,
               const Ids& page_indptr, const Ids& page_ids) {
  require(query_indptr.size() > 0 && page_indptr.size() == query_indptr.size(),
          "the two indptr are of length B + 1");
  const BatchView view{dim(positions, 0),   dim(query_indptr, 0) - 1, dim(page_ids, 0),   page_size,
                       query_indptr.data(), positions.data(),         page_indptr.data(), page_ids.data()};
  new (self) Plan(view);
}

void attention(Kernels& self, const Array<const float, 3>& q, const Store& keys, const Store& values,
               const Plan& plan, float scale, std::optional<int64_t> window, std::optional<float> cap,
               const Array<float, 2>& out) {
  const KV layer = to_kv(keys, values);
  require(dim(q, 0) == plan.num_rows(), "q is float32[T, Hq, D] with the plan's rows");
  require(layer.num_heads > 0 && dim(q, 1) % layer.num_heads == 0, "Hq is a multiple of Hkv");
  require(dim(q, 2) == layer.head_dim, "queries and keys have one head dim");
  require(layer.head_dim > 0 && layer.head_dim % 8 == 0 && layer.head_dim <= 256,
          "the head dim is a multiple of 8 up to 256");
  require(plan.num_slots <= layer.num_slots, "the page table names pages beyond the KV pool");
  const Scoring scoring = to_scoring(scale, window, cap);
  require(out.shape(0) == q.shape(0) && out.shape(1) == q.shape(1) * q.shape(2), "out is float32[T, Hq * D]");
  without_gil(self, [&] {
    self.attention({q.data(), dim(q, 0), dim(q, 1) * dim(q, 2)}, dim(q, 1), layer, plan, scoring, out.data());
  });
}

// Bytes objects keep their data at a multiple of 8, so whole tokens can be read in place.
TokenRow to_tokens(const nb::bytes& data) {
  require(data.size() % sizeof(int32_t) == 0, "tokens are whole int32");
  return {static_cast<const int32_t*>(data.data()), data.size() / sizeof(int32_t)};
}

// These two count in bytes, offsets and results alike, as the caches that call them do.
size_t common_prefix_at(const nb::bytes& tokens, int64_t start, const nb::bytes& other) {
  const TokenRow row = to_tokens(tokens);
  require(start >= 0 && start <= static_cast<int64_t>(tokens.size()) && start % sizeof(int32_t) == 0,
          "start is a token's, or the end");
  const size_t at = static_cast<size_t>(start) / sizeof(int32_t);
  return common_prefix({row.data + at, row.size - at}, to_tokens(other)) * sizeof(int32_t);
}

nb::tuple nearest_of(const nb::list& keys, const nb::bytes& probe) {
  const auto key_at = [&](size_t i) {
    const nb::object key = keys[i];
    if (!nb::isinstance<nb::bytes>(key)) throw nb::type_error("keys are bytes");
    return to_tokens(nb::borrow<nb::bytes>(key));
  };
  const Nearest found = nearest(keys.size(), key_at, to_tokens(probe));
  return nb::make_tuple(found.index, found.num_common * sizeof(int32_t));
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Ops* const* ops = available_ops(); *ops != nullptr; ++ops) names.emplace_back((*ops)->name);
  return names;
}

void make_kernels(Kernels* self, const std::string& isa, int num_threads) {
  const Ops* ops = find_ops(isa.c_str());
  if (ops == nullptr) throw std::invalid_argument("this machine has no instruction set " + isa);
  require(num_threads >= 1 && num_threads <= 1024, "threads are from 1 to 1024");
  new (self) Kernels(*ops, num_threads);
}

}  // namespace
}  // namespace ramet

NB_MODULE(_native, m) {
  using namespace ramet;
  nb::set_leak_warnings(false);  // an interpreter that ends in the midst of work still holds its objects
  m.def("common_prefix", &common_prefix_at,
        "How far `tokens` from `start` on agree with `other`, in bytes of whole tokens.");
  m.def("nearest", &nearest_of,
        "Index of the sorted key that shares the longest head with `probe`, and its bytes of whole tokens.");
  m.def("isas", &isas, "Instruction sets of this machine that the kernels are built for, best first.");
  m.def("copy_pages", &copy_pages);
  bind_peaks(m);
  bind_batch(m);
  nb::class_<PackedWeight>(m, "PackedWeight")
      .def_prop_ro("shape", [](const PackedWeight& w) { return nb::make_tuple(w.n, w.k); })
      .def_prop_ro("nbytes", [](const PackedWeight& w) { return w.num_bytes; });
  m.def("pieces", &pieces);
  m.attr("packing_version") = kPackingVersion;
  nb::class_<Plan>(m, "Plan").def("__init__", &make_plan).def_prop_ro("num_tasks", [](const Plan& plan) {
    return plan.tasks.size();
  });
  nb::class_<Kernels> kernels(m, "Kernels");
  kernels.def("__init__", &make_kernels)
      .def_prop_ro("isa", [](const Kernels& k) { return k.ops().name; })
      .def_prop_ro("threads", &Kernels::num_threads)
      .def("pack", &pack, nb::arg(), nb::arg() = 0)
      .def("room_for", &room_for)
      .def("embed", &embed)
      .def("linear", &linear, nb::arg("x").noconvert(), nb::arg(), nb::arg().noconvert().none(),
           nb::arg().noconvert())
      .def("rms_norm", &rms_norm, nb::arg("x").noconvert(), nb::arg().noconvert(), nb::arg(),
           nb::arg().noconvert())
      .def("add", &add, nb::arg("x").noconvert(), nb::arg().noconvert())
      .def("silu_mul", &gate_mul<SiluMul>, nb::arg("gate_up").noconvert(), nb::arg().noconvert())
      .def("gelu_mul", &gate_mul<GeluMul>, nb::arg("gate_up").noconvert(), nb::arg().noconvert())
      .def("soft_cap", &soft_cap, nb::arg("x").noconvert(), nb::arg())
      .def("choose_experts", &choose_experts, nb::arg("scores").noconvert(), nb::arg(), nb::arg())
      .def("rope", &rope, nb::arg("x").noconvert(), nb::arg().noconvert(), nb::arg().noconvert())
      .def("write_kv", &write_kv, nb::arg("layer_keys").noconvert(), nb::arg().noconvert(),
           nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert())
      .def("attention", &attention, nb::arg("q").noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
           nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().noconvert());
  bind_automaton(m);
  bind_program(m);
  bind_sampling(m, kernels);
}
