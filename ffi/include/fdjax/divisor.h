// Division by a number that only the host knows, as a multiplication. A division of
// integers is some 30 instructions, each waiting for the one before: 0.1 us, at the
// start and the end of kernels that take 10.
#pragma once

#include <cstdint>

namespace fdjax {

struct Divisor {
  uint32_t value = 1;
  uint32_t reciprocal = 0;  // ceil(2^32 / value); of 1: 0

  Divisor() = default;
  explicit Divisor(uint32_t divisor)
      : value(divisor),
        reciprocal(divisor <= 1 ? 0
                                : static_cast<uint32_t>(
                                      ((uint64_t{1} << 32) + divisor - 1) / divisor)) {}
};

}  // namespace fdjax
