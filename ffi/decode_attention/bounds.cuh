// Whether the unified maximum suits a row.
#pragma once

#include "decode_attention/params.h"

namespace fdjax::decode_attention {

// The sum of a row's weights is watched, not its scores: of `seen` weights relative to
// phi with the sum `total`, the largest score lies between phi + log2(total / seen) and
// phi + log2(total). Where both are within the bounds, so is it. Of a row that sees
// nothing nothing can be lost; a sum that is no number suits nobody.
__device__ inline bool suits(const Params& p, float total, int seen) {
  if (seen == 0) return true;
  const float sum = p.phi + __log2f(total);
  return sum < p.high && sum - __log2f(static_cast<float>(seen)) > p.low;
}

}  // namespace fdjax::decode_attention
