// Programs as Python sees them.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>

#include "bind.h"
#include "steps.h"

namespace ramet {
namespace {

using Vector = Array<const float, 1>;

std::vector<float> copied(const std::optional<Vector>& values) {
  if (!values) return {};
  return {values->data(), values->data() + values->size()};
}

void make_rms_norm(RmsNorm* self, const Vector& weight, float eps) {
  new (self) RmsNorm(copied(weight), eps);
}

// The KV memory of all layers, checked once.
struct Layers {
  std::vector<KV> kv;
};

void make_layers(Layers* self, const std::vector<std::pair<Store, Store>>& stores) {
  Layers layers;
  for (const auto& [keys, values] : stores) layers.kv.push_back(to_kv(keys, values));
  new (self) Layers(std::move(layers));
}

// For each product of a model what is done to it, or nothing: (down, ups), an up being (weight, first rank,
// first output, scale). The caller keeps the weights.
void make_adapter(Adapter* self, const nb::list& given) {
  Adapter adapter;
  for (const nb::handle one : given) {
    LowRank& change = adapter.changes.emplace_back();
    if (one.is_none()) continue;
    const auto pair = nb::cast<nb::tuple>(one);
    change.down = &nb::cast<const PackedWeight&>(pair[0]);
    for (const nb::handle up : nb::cast<nb::list>(pair[1])) {
      const auto four = nb::cast<nb::tuple>(up);
      const auto& weight = nb::cast<const PackedWeight&>(four[0]);
      const auto first_rank = nb::cast<int64_t>(four[1]), first_output = nb::cast<int64_t>(four[2]);
      require(weight.parts.size() == 1, "an up is one matrix");
      require(first_rank >= 0 && first_rank + weight.k <= change.down->n && first_output >= 0,
              "an up reads ranks that down gives");
      change.ups.push_back({&weight, first_rank, first_output, nb::cast<float>(four[3])});
    }
  }
  new (self) Adapter(std::move(adapter));
}

// A step as its name and arguments; what it points to is kept by the caller.
std::unique_ptr<Step> to_step(const nb::tuple& given, const std::vector<int64_t>& widths) {
  const auto name = nb::cast<std::string>(given[0]);
  const auto id = [&](size_t i) { return nb::cast<int>(given[i]); };
  const auto heads = [&](size_t i) {
    const auto [num_heads, num_kv_heads, head_dim] = nb::cast<std::tuple<int, int, int>>(given[i]);
    return Heads{num_heads, num_kv_heads, head_dim};
  };
  const auto prologue = [&](size_t i) -> const Prologue& { return nb::cast<const Prologue&>(given[i]); };
  const auto weight = [&](size_t i) -> const PackedWeight& {
    return nb::cast<const PackedWeight&>(given[i]);
  };
  const auto product = [&]() -> Product {
    return {prologue(2), weight(3), copied(nb::cast<std::optional<Vector>>(given[4]))};
  };
  if (name == "embed") return std::make_unique<Embed>(weight(1), nb::cast<float>(given[2]), id(3));
  if (name == "load") return std::make_unique<Load>(widths.at(static_cast<size_t>(id(1))), id(1));
  if (name == "project") return std::make_unique<Project>(id(1), product(), id(5));
  if (name == "project_add") return std::make_unique<ProjectAdd>(id(1), product(), id(5));
  if (name == "add") return std::make_unique<Add>(id(1), prologue(2), id(3));
  if (name == "soft_cap") return std::make_unique<SoftCap>(id(1), nb::cast<float>(given[2]));
  if (name == "rotate_and_store") {
    const auto [first, num] = nb::cast<std::tuple<int64_t, int64_t>>(given[5]);
    return std::make_unique<RotateAndStore>(id(1), heads(2), prologue(3), prologue(4), Pairs{first, num},
                                            nb::cast<size_t>(given[6]));
  }
  if (name == "attend") {
    const auto [scale, window, cap] =
        nb::cast<std::tuple<float, std::optional<int64_t>, std::optional<float>>>(given[3]);
    return std::make_unique<Attend>(id(1), heads(2), to_scoring(scale, window, cap),
                                    nb::cast<size_t>(given[4]), id(5));
  }
  if (name == "choose_experts") {
    return std::make_unique<ChooseExperts>(id(1), nb::cast<int64_t>(given[2]), nb::cast<bool>(given[3]));
  }
  if (name == "mix_experts") {
    std::vector<Expert> experts;
    for (const nb::handle one : nb::cast<nb::list>(given[4])) {
      const auto pair = nb::cast<nb::tuple>(one);
      experts.push_back({nb::cast<const PackedWeight&>(pair[0]), nb::cast<const PackedWeight&>(pair[1])});
    }
    return std::make_unique<MixExperts>(id(1), prologue(2), id(3), std::move(experts), prologue(5), id(6));
  }
  if (name == "adapt") {
    return std::make_unique<Adapt>(id(1), prologue(2), nb::cast<size_t>(given[3]), id(4), widths);
  }
  if (name == "take_rows") return std::make_unique<TakeRows>(id(1), id(2));
  throw std::invalid_argument("unknown step " + name);
}

void make_program(Program* self, const std::vector<int64_t>& widths, const nb::tuple& given, int result) {
  std::vector<std::unique_ptr<Step>> steps;
  for (const nb::handle step : given) steps.push_back(to_step(nb::cast<nb::tuple>(step), widths));
  join_products(steps);
  new (self) Program(widths, std::move(steps), result);
}

// `choosing`, where it is not None, is what `to_sample_args` takes: the result's rows are logits then.
void run(Program& self, Kernels& kernels, const Feed& feed, const Array<float, 2>& out,
         const std::optional<nb::tuple>& choosing) {
  self.check(feed);
  require(dim(out, 0) == self.num_results(feed) && dim(out, 1) == self.result_width(),
          "out has the rows and the width of the result");
  std::optional<SampleArgs> chosen;
  if (choosing) {
    chosen = to_sample_args(out.data(), out.shape(0), out.shape(1), *choosing);
    chosen->there = feed.outputs.bits;
    chosen->there_words = feed.outputs.num_words;
  }
  const nb::gil_scoped_release release;
  const Kernels::Turn turn(kernels);
  self.run(kernels, feed, out.data());
  if (chosen) kernels.sample(*chosen);
}

void run_tokens(Program& self, Kernels& kernels, const Ids& token_ids, const Ids& slots, const Ids& wanted,
                const Array<const float, 2>& cos, const Array<const float, 2>& sin, const Plan& plan,
                const Layers& layers, const Ids& adapter_of, const nb::list& adapters,
                const Array<float, 2>& out, const std::optional<nb::tuple>& choosing) {
  require(slots.size() == token_ids.size(), "there is a slot for each token");
  require(cos.shape(0) == sin.shape(0) && cos.shape(1) == sin.shape(1), "cos and sin are of one shape");
  Feed feed;
  feed.num_rows = dim(token_ids, 0);
  feed.token_ids = token_ids.data();
  feed.slots = slots.data();
  feed.wanted = wanted.data();
  feed.num_wanted = dim(wanted, 0);
  feed.angles = {cos.data(), sin.data(), dim(cos, 0), dim(cos, 1)};
  feed.plan = &plan;
  feed.layers = &layers.kv;
  for (const nb::handle adapter : adapters) feed.adapters.push_back(&nb::cast<const Adapter&>(adapter));
  require(adapters.size() == 0 || adapter_of.size() == token_ids.size(), "each token has an adapter or none");
  feed.adapter_of = adapter_of.data();
  run(self, kernels, feed, out, choosing);
}

void run_rows(Program& self, Kernels& kernels, const Array<const float, 2>& rows,
              const std::optional<Array<const uint32_t, 2>>& outputs, const Array<float, 2>& out,
              const std::optional<nb::tuple>& choosing) {
  Feed feed;
  if (outputs) {
    require(dim(*outputs, 0) == dim(rows, 0), "outputs have a row for each row");
    feed.outputs = {outputs->data(), dim(*outputs, 1)};
  }
  feed.num_rows = dim(rows, 0);
  feed.loaded = rows.data();
  feed.loaded_width = dim(rows, 1);
  run(self, kernels, feed, out, choosing);
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Prologue>(m, "Prologue").def(nb::init<>());
  nb::class_<RmsNorm, Prologue>(m, "RmsNorm").def("__init__", &make_rms_norm);
  nb::class_<SiluMul, Prologue>(m, "SiluMul").def(nb::init<>());
  nb::class_<GeluMul, Prologue>(m, "GeluMul").def(nb::init<>());
  nb::class_<Scale, Prologue>(m, "Scale").def(nb::init<float>());
  nb::class_<Layers>(m, "Layers").def("__init__", &make_layers, nb::keep_alive<1, 2>());
  nb::class_<Adapter>(m, "Adapter").def("__init__", &make_adapter, nb::keep_alive<1, 2>());
  nb::class_<Program>(m, "Program")
      .def("__init__", &make_program, nb::keep_alive<1, 3>())
      .def("run_tokens", &run_tokens, nb::arg(), nb::arg().noconvert(), nb::arg().noconvert(),
           nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg(), nb::arg(),
           nb::arg().noconvert(), nb::arg(), nb::arg().noconvert(), nb::arg().none())
      .def("run_rows", &run_rows, nb::arg(), nb::arg().noconvert(), nb::arg().noconvert().none(),
           nb::arg().noconvert(), nb::arg().none())
      .def("profile", &Program::profile)
      .def("profiled", &Program::profiled);
}

}  // namespace ramet
