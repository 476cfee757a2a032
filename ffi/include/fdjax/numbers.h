// Integers in a row, as Python writes what has parts of several kinds: a program, or
// which kernel multiplies.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace fdjax {

class Numbers {
 public:
  explicit Numbers(xla::ffi::Span<const int64_t> numbers)
      : next_(numbers.begin()), end_(numbers.end()) {}

  bool has_more() const { return next_ != end_; }
  // What is wrong with what has been read; empty: nothing.
  const std::string& problem() const { return problem_; }

  // For numbers that do not go together.
  void refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }

  int64_t integer() {
    if (has_more()) return *next_++;
    problem_ = "the numbers end too early";
    return 0;
  }

  int number(const char* name, int64_t low,
             int64_t high = std::numeric_limits<int>::max()) {
    const int64_t value = integer();
    if (value < low || value > high) {
      problem_ = std::string(name) + " is " + std::to_string(value) +
                 "; the handler takes " + std::to_string(low) + " to " +
                 std::to_string(high);
      return static_cast<int>(low);
    }
    return static_cast<int>(value);
  }

  // The bits of a float.
  float real() { return std::bit_cast<float>(static_cast<int32_t>(integer())); }

 protected:
  std::string problem_;

 private:
  const int64_t *next_, *end_;
};

}  // namespace fdjax
