// Python's `Weight` (fdjax/kernels/weight.py) in C++: where the arrays of a matrix lie,
// by the format that it has. Handlers read a WeightView and hand it on whole; the
// launch of a GEMM takes the kernel that is compiled for its format.
#pragma once

#include <variant>

namespace fdjax {

// Its elements, row-major without padding, in the type of the activations.
struct DenseView {
  const void* values;
};

// In the order of FORMATS in weight.py. Where a format is added, what visits this and
// has no case for it does not compile.
using WeightView = std::variant<DenseView>;

}  // namespace fdjax
