// What the files that know Python share.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <stdexcept>

#include "kernels.h"
#include "sampling.h"

namespace ramet {

namespace nb = nanobind;

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Ids = Array<const int32_t, 1>;
using Store = nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>;

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class A>
int64_t dim(const A& array, size_t i) {
  return static_cast<int64_t>(array.shape(i));
}

KV to_kv(const Store& keys, const Store& values);
Scoring to_scoring(float scale, std::optional<int64_t> window, std::optional<float> cap);
// What choosing a token of each row of logits takes and gives, backend.py's Choosing and Picks in one:
// sampling, rows, draws, token ids, faults and their sizes. The caller keeps them.
SampleArgs to_sample_args(const float* logits, size_t num_rows, size_t vocab_size, const nb::tuple& choosing);
void bind_automaton(nb::module_& m);
void bind_batch(nb::module_& m);
void bind_program(nb::module_& m);
void bind_sampling(nb::module_& m, nb::class_<Kernels>& kernels);

}  // namespace ramet
