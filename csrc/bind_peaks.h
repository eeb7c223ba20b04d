#pragma once
#include <nanobind/nanobind.h>

namespace ramet {

void bind_peaks(nanobind::module_& m);

}  // namespace ramet
