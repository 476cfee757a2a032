// A Divisor's use on the device.
#pragma once

#include <cstdint>

#include "fdjax/divisor.h"

namespace fdjax {

// dividend / divisor, for dividends below 2^32 / divisor.
__device__ inline uint32_t quotient(uint32_t dividend, const Divisor& divisor) {
  const uint32_t upper = __umulhi(dividend, divisor.reciprocal);
  return divisor.reciprocal == 0 ? dividend : upper;
}

}  // namespace fdjax
