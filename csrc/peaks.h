// What the machine can do at most: streaming reads, and arithmetic that touches no memory. Kernels are held
// against these.
#pragma once
#include <vector>

#include "memory.h"

namespace ramet {

// Multiply-adds of one type of number by one instruction.
struct Peak {
  const char* isa;  // the instruction set of dispatch.cpp that it belongs to
  const char* numbers;
  const char* instruction;
  double ops_per_round;          // a multiply-add counts as two
  void (*run)(int64_t rounds);   // of independent chains, enough to fill the pipeline
  bool (*is_there)() = nullptr;  // where not every machine with the set has it
};

// Those of this machine, best instruction set first.
const std::vector<const Peak*>& available_peaks();
// Operations a second of all threads together, each on its own, for about so long.
double peak_rate(const Peak& peak, int num_threads, double seconds);

// A buffer that is read from end to end, over and over, each thread a part of its own.
class Stream {
public:
  Stream(size_t num_bytes, int num_threads);
  double rate(double seconds) const;  // bytes a second
  size_t num_bytes() const { return num_bytes_; }

private:
  size_t num_bytes_;
  int num_threads_;
  Bytes bytes_;
};

}  // namespace ramet
