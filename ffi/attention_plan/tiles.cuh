// Which tiles of an item are whose: attention asks for its own, and the plan's kernel
// for everybody's first ones.
#pragma once

#include "attention_plan/plan.h"
#include "fdjax/divisor.cuh"

namespace fdjax::attention_plan {

// Tiles that are neighbours: from `begin` to before `end`.
struct Run {
  int begin, end;
};

// Those of an item that one of its cluster's blocks has. The warps of a head take turns
// within them, so that they read neighbouring slots of a page at the same time: the
// first warp has the first, and each warp's next is as many behind as warps are.
__device__ inline Run run_of(const Item& item, int split, const Divisor& splits) {
  const int start = item.first, count = item.last - item.first;
  // count is below 2^21: these are exact.
  const int from = start + quotient(count * split, splits);
  const int to = start + quotient(count * (split + 1), splits);
  return {from, to};
}

}  // namespace fdjax::attention_plan
