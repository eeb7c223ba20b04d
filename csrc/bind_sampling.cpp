// Sampling as Python sees it: like bind.cpp it checks dims, types and bounds, and does no arithmetic. Ids of
// tokens are checked where they are used, since a wrong one is the fault of its row alone.
#include <string>

#include "bind.h"
#include "sampling.h"

namespace ramet {
namespace {

template <class T>
using Row = Array<const T, 1>;

// The attributes of a core.batch.RowSampling. The caller keeps it, and it keeps its arrays.
class Attributes {
public:
  explicit Attributes(const nb::handle& object) : object_(object) {}

  template <class T>
  Row<T> row(const char* name) const {
    Row<T> found;
    if (!nb::try_cast(object_.attr(name), found, false)) {
      throw std::invalid_argument(std::string("sampling.") + name +
                                  " is not of its type: one row, contiguous");
    }
    return found;
  }
  template <class T>
  const T* values(const char* name, size_t count) const {
    const Row<T> found = row<T>(name);
    if (found.size() != count)
      throw std::invalid_argument(std::string("sampling.") + name + " is too short or long");
    return found.data();
  }
  const int32_t* indptr(const char* name, size_t num_rows, size_t num_values) const {
    const int32_t* at = values<int32_t>(name, num_rows + 1);
    bool rises = at[0] >= 0 && static_cast<size_t>(at[num_rows]) <= num_values;
    for (size_t i = 0; i < num_rows; ++i) rises &= at[i] <= at[i + 1];
    if (!rises) throw std::invalid_argument(std::string("sampling.") + name + " does not rise to its values");
    return at;
  }
  Ragged ragged(const char* indptr_name, const char* ids_name, size_t num_rows) const {
    const Row<int32_t> ids = row<int32_t>(ids_name);
    return {indptr(indptr_name, num_rows, ids.size()), ids.data()};
  }
  Array<const uint32_t, 2> masks() const {
    Array<const uint32_t, 2> found;
    require(nb::try_cast(object_.attr("masks"), found, false), "sampling.masks is uint32[M, W]");
    return found;
  }

private:
  nb::handle object_;
};

SamplingRows to_sampling(const Attributes& of, size_t n) {
  SamplingRows s{};
  s.temperature = of.values<float>("temperature", n);
  s.top_p = of.values<float>("top_p", n);
  s.min_p = of.values<float>("min_p", n);
  s.top_k = of.values<int32_t>("top_k", n);
  s.repetition_penalty = of.values<float>("repetition_penalty", n);
  s.frequency_penalty = of.values<float>("frequency_penalty", n);
  s.presence_penalty = of.values<float>("presence_penalty", n);
  s.bias = of.ragged("bias_indptr", "bias_ids", n);
  s.banned = of.ragged("banned_indptr", "banned_ids", n);
  s.allowed = of.ragged("allowed_indptr", "allowed_ids", n);
  s.history = of.ragged("history_indptr", "history_ids", n);
  s.bias_values = of.values<float>("bias_values", of.row<int32_t>("bias_ids").size());
  s.history_prompt_lens = of.values<int32_t>("history_prompt_lens", n);
  for (size_t i = 0; i < n; ++i) {
    require(s.history_prompt_lens[i] >= 0 &&
                s.history_prompt_lens[i] <= s.history.indptr[i + 1] - s.history.indptr[i],
            "sampling.history_prompt_lens are within the histories");
  }
  const Array<const uint32_t, 2> masks = of.masks();
  s.mask_indptr = of.indptr("mask_indptr", n, masks.shape(0));
  s.masks = masks.data();
  s.mask_words = static_cast<int64_t>(masks.shape(1));
  return s;
}

void sample(Kernels& self, const Array<const float, 2>& logits, const nb::tuple& choosing) {
  const SampleArgs args = to_sample_args(logits.data(), logits.shape(0), logits.shape(1), choosing);
  const nb::gil_scoped_release release;
  const Kernels::Turn turn(self);
  self.sample(args);
}

void logprobs(Kernels& self, const Array<const float, 2>& logits, const Row<int32_t>& token_ids,
              const Row<int32_t>& num_best, const Array<float, 1>& out, const Array<int32_t, 1>& ranks,
              const Array<int32_t, 2>& top_ids, const Array<float, 2>& top_logprobs) {
  const size_t num_rows = logits.shape(0), width = top_ids.shape(1);
  const auto vocab_size = static_cast<int64_t>(logits.shape(1));
  require(vocab_size > 0 && vocab_size < (int64_t{1} << 31), "logits are float32[R, V], V at least 1");
  require(token_ids.size() == num_rows && num_best.size() == num_rows && out.size() == num_rows &&
              ranks.size() == num_rows && top_ids.shape(0) == num_rows,
          "there is one of each for each row of logits");
  require(top_logprobs.shape(0) == num_rows && top_logprobs.shape(1) == width,
          "the best have ids and logprobs");
  for (size_t i = 0; i < num_rows; ++i) {
    const int64_t wanted = num_best.data()[i], id = token_ids.data()[i];
    if (wanted < 0) continue;
    require((wanted < vocab_size ? wanted : vocab_size) <= static_cast<int64_t>(width),
            "the lists are too short");
    if (id < 0 || id >= vocab_size) {
      throw std::out_of_range("token " + std::to_string(id) + " is not in the model's vocabulary of " +
                              std::to_string(vocab_size));
    }
  }
  const LogprobArgs args{logits.data(),   static_cast<int64_t>(num_rows),
                         vocab_size,      token_ids.data(),
                         num_best.data(), static_cast<int64_t>(width),
                         out.data(),      ranks.data(),
                         top_ids.data(),  top_logprobs.data()};
  const nb::gil_scoped_release release;
  const Kernels::Turn turn(self);
  self.logprobs(args);
}

void uniforms(const Row<uint64_t>& seeds, const Row<int32_t>& sample_indices, const Row<int64_t>& positions,
              const Array<double, 1>& out) {
  require(
      sample_indices.size() == seeds.size() && positions.size() == seeds.size() && out.size() == seeds.size(),
      "seeds, sample indices, positions and out are of one length");
  for (size_t i = 0; i < seeds.size(); ++i) {
    out.data()[i] = uniform(seeds.data()[i], static_cast<uint64_t>(sample_indices.data()[i]),
                            static_cast<uint64_t>(positions.data()[i]));
  }
}

template <class T>
Array<T, 1> of_rows(const nb::handle& values, size_t num_rows) {
  Array<T, 1> found;
  require(nb::try_cast(values, found, false) && found.size() == num_rows,
          "rows, draws, token_ids, faults and fault_sizes have one for each row of logits");
  return found;
}

}  // namespace

SampleArgs to_sample_args(const float* logits, size_t num_rows, size_t vocab_size,
                          const nb::tuple& choosing) {
  require(vocab_size > 0 && vocab_size < (size_t{1} << 31), "logits are float32[R, V], V at least 1");
  require(choosing.size() == 6, "choosing is sampling, rows, draws, token_ids, faults and fault_sizes");
  const Attributes attributes(choosing[0]);
  const size_t num_params = attributes.row<float>("temperature").size();
  SampleArgs args{};
  args.logits = logits;
  args.num_rows = static_cast<int64_t>(num_rows);
  args.vocab_size = static_cast<int64_t>(vocab_size);
  args.sampling = to_sampling(attributes, num_params);
  args.rows = of_rows<const int32_t>(choosing[1], num_rows).data();
  args.draws = of_rows<const double>(choosing[2], num_rows).data();
  args.token_ids = of_rows<int32_t>(choosing[3], num_rows).data();
  args.faults = reinterpret_cast<RowFault*>(of_rows<int32_t>(choosing[4], num_rows).data());
  args.fault_sizes = of_rows<int64_t>(choosing[5], num_rows).data();
  for (size_t i = 0; i < num_rows; ++i) {
    require(args.rows[i] >= 0 && static_cast<size_t>(args.rows[i]) < num_params,
            "rows are places in sampling");
  }
  return args;
}

void bind_sampling(nb::module_& m, nb::class_<Kernels>& kernels) {
  m.def("uniforms", &uniforms, nb::arg("seeds").noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
        nb::arg().noconvert(),
        "Random numbers in [0, 1), each a function of its seed, sample index and position.");
  kernels.def("sample", &sample, nb::arg("logits").noconvert(), nb::arg())
      .def("logprobs", &logprobs, nb::arg("logits").noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
           nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert());
}

}  // namespace ramet
