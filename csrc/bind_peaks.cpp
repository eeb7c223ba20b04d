// The machine's limits for Python: checks arguments, releases the GIL.
#include "bind_peaks.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "peaks.h"

namespace nb = nanobind;

namespace ramet {
namespace {

void require_sane(int num_threads, double seconds) {
  if (num_threads < 1 || num_threads > 1024) throw std::invalid_argument("threads are from 1 to 1024");
  if (!(seconds > 0 && seconds <= 60)) throw std::invalid_argument("seconds are over 0 and at most 60");
}

using Named = std::tuple<std::string, std::string, std::string>;
std::vector<Named> peaks() {
  std::vector<Named> names;
  for (const Peak* peak : available_peaks()) names.emplace_back(peak->isa, peak->numbers, peak->instruction);
  return names;
}

double measure_peak(const std::string& isa, const std::string& numbers, int num_threads, double seconds) {
  require_sane(num_threads, seconds);
  for (const Peak* peak : available_peaks()) {
    if (peak->isa == isa && peak->numbers == numbers) {
      const nb::gil_scoped_release release;
      return peak_rate(*peak, num_threads, seconds);
    }
  }
  throw std::invalid_argument("this machine has no peak of " + numbers + " in " + isa);
}

void make_stream(Stream* self, int64_t num_bytes, int num_threads) {
  require_sane(num_threads, 1);
  if (num_bytes < 1) throw std::invalid_argument("a stream has at least one byte");
  const nb::gil_scoped_release release;
  new (self) Stream(static_cast<size_t>(num_bytes), num_threads);
}

double stream_rate(const Stream& self, double seconds) {
  require_sane(1, seconds);
  const nb::gil_scoped_release release;
  return self.rate(seconds);
}

}  // namespace

void bind_peaks(nb::module_& m) {
  m.def("peaks", &peaks,
        "(instruction set, numbers, instruction) of each kind of arithmetic that can be timed here.");
  m.def("measure_peak", &measure_peak, "Operations a second; a multiply-add is two.");
  nb::class_<Stream>(m, "Stream")
      .def("__init__", &make_stream)
      .def_prop_ro("num_bytes", &Stream::num_bytes)
      .def("rate", &stream_rate, "Bytes a second.");
}

}  // namespace ramet
