// A program as Python writes it: one flat array of integers, a launch after the other
// (fdjax/kernels/layer_program/encoding.py). Every operand is checked against the
// memory that it lies in.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fdjax/check.h"
#include "fdjax/numbers.h"
#include "fdjax/weight.h"
#include "layer_program/limits.h"

namespace fdjax::layer_program {

// In the order of the classes of encoding.py.
enum class Code : int64_t {
  kEmbed,
  kNorm,
  kHeadNorm,
  kLinear,
  kActivate,
  kRotate,
  kDecode,
  kPrefill,
  kSum,
  kGather,
  kScatter,
  kShare,
  kEnd,
};

// What operands lie in: buffers, scratch memory, arrays of parameters. In elements.
struct Region {
  void* data;
  int64_t size;
};

// An operand is `region << kOffsetBits | offset`, or kAbsent.
inline constexpr int64_t kAbsent = -1;

class Reader : public Numbers {
 public:
  Reader(ffi::Span<const int64_t> numbers, std::vector<Region> regions,
         int64_t element_bytes)
      : Numbers(numbers), regions_(std::move(regions)), element_bytes_(element_bytes) {}

  Code code() {
    const int64_t code = integer();
    if (code >= 0 && code < static_cast<int64_t>(Code::kEnd)) {
      return static_cast<Code>(code);
    }
    problem_ = "the program has a launch " + std::to_string(code);
    return Code::kEnd;
  }

  // `size` elements, of which the launch reads or writes no more; nullptr where the
  // operand is absent.
  void* optional(int64_t size) {
    const int64_t place = integer();
    if (place == kAbsent) return nullptr;
    const int64_t region = place >> kOffsetBits;
    const int64_t offset = place & ((int64_t{1} << kOffsetBits) - 1);
    if (region < 0 || region >= static_cast<int64_t>(regions_.size()) ||
        offset + size > regions_[region].size) {
      problem_ = "an operand of " + std::to_string(size) + " elements at " +
                 std::to_string(offset) + " is outside region " +
                 std::to_string(region);
      return nullptr;
    }
    return static_cast<char*>(regions_[region].data) + offset * element_bytes_;
  }

  void* operand(int64_t size) {
    void* const data = optional(size);
    if (data == nullptr && problem_.empty()) problem_ = "an operand is missing";
    return data;
  }

  // A weight [n, k]: its format, and the operands that it has.
  WeightView weight(int64_t n, int64_t k) {
    static_assert(std::variant_size_v<WeightView> == 1, "a format has its operands");
    number("format", 0, std::variant_size_v<WeightView> - 1);
    return DenseView{operand(n * k)};
  }

 private:
  std::vector<Region> regions_;
  int64_t element_bytes_;
};

}  // namespace fdjax::layer_program
