// What self-checks say of what they find.
#pragma once
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace ramet {

inline int failures = 0;

inline void expect(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

inline void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance,
                        const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(std::fabs(got[i] - want[i]) <= tolerance * (1 + std::fabs(want[i])))) {
      return expect(false, what + ": " + std::to_string(got[i]) + " for " + std::to_string(want[i]));
    }
  }
}

}  // namespace ramet
