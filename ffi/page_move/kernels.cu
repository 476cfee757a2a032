// page_move on a GPU: a block copies 16 KiB of one page, four accesses a thread.
//
// All four loads are under way before the first store waits for one. Eight blocks fit
// on an SM of Hopper: 128 KiB in flight there, where bandwidth times latency asks for
// 30; one page of 2 MiB is 128 blocks, almost one for each SM.
//
// Compiled apart from the handler and its XLA headers.
#include "fdjax/launch.h"
#include "page_move/launch.h"

namespace fdjax::page_move {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;  // of a thread
constexpr int kBlocksOfSm = 8;
constexpr int kBlockUnits = kThreads * kLoads;

// Pages are read once and written once: what the L2 cache holds of a step stays there.
#if defined(__HIP_PLATFORM_AMD__)
__device__ uint4 load_once(const uint4* from) { return *from; }
__device__ void store_once(uint4* to, uint4 value) { *to = value; }
#else
__device__ uint4 load_once(const uint4* from) { return __ldcs(from); }
__device__ void store_once(uint4* to, uint4 value) { __stcs(to, value); }
#endif

__global__ void __launch_bounds__(kThreads, kBlocksOfSm)
    kernel(FDJAX_GRID_CONSTANT const Params p) {
  const int64_t source = p.sources[blockIdx.y], target = p.targets[blockIdx.y];
  if (source < 0 || source >= p.num_pages || target < 0 || target >= p.num_pages)
    return;
  const int64_t first = int64_t{blockIdx.x} * kBlockUnits + threadIdx.x;
  const int64_t left = p.page_units - first;
  uint4* pages = static_cast<uint4*>(p.pages) + first;
  const uint4* from = pages + source * p.page_units;
  uint4* to = pages + target * p.page_units;
  uint4 held[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (i * kThreads < left) held[i] = load_once(from + i * kThreads);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (i * kThreads < left) store_once(to + i * kThreads, held[i]);
  }
}

}  // namespace

gpu_error launch_moves(gpu_stream stream, const Params& p) {
  const auto blocks =
      static_cast<unsigned>((p.page_units + kBlockUnits - 1) / kBlockUnits);
  return launch({.stream = stream, .grid = dim3(blocks, p.moves), .threads = kThreads},
                kernel, p);
}

}  // namespace fdjax::page_move
