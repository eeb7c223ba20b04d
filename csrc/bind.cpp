// The only file of csrc that knows Python: checks dims and types, does no arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace nb = nanobind;
using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

NB_MODULE(_native, m) {
    m.def(
        "common_prefix",
        [](Tokens a, Tokens b) {
            size_t n = a.size() < b.size() ? a.size() : b.size(), i = 0;
            while (i < n && a.data()[i] == b.data()[i]) ++i;
            return i;
        },
        "Length of the common head of two int32 arrays.");
}
