// The instances of layer_program's own kernels, and their launches.
#include "fdjax/launch.h"
#include "layer_program/kernel.cuh"
#include "layer_program/launch.h"

namespace fdjax::layer_program {
namespace {

Launch launch_of(cudaStream_t stream, dim3 grid) {
  return {.stream = stream, .grid = grid, .threads = kThreads, .programmatic = true};
}

dim3 packs_of(int64_t size) {
  return dim3(static_cast<unsigned>((size / kVec + kThreads - 1) / kThreads));
}

dim3 rows_of(const RowsParams& p) {
  return dim3(p.count, blocks_for(p.columns / kVec, kThreads));
}

}  // namespace

template <typename T>
cudaError_t launch_head_norm(cudaStream_t stream, const HeadNormParams& p) {
  const int64_t heads = int64_t{p.rows} * (p.q_heads + 2 * p.kv_heads);
  const dim3 grid(static_cast<unsigned>((heads + kHeads - 1) / kHeads));
  return launch(launch_of(stream, grid), head_norm<T>, p);
}

template <typename T>
cudaError_t launch_activate(cudaStream_t stream, const ActivateParams& p) {
  return launch(launch_of(stream, packs_of(p.size)), activate<T>, p);
}

template <typename T>
cudaError_t launch_sum(cudaStream_t stream, const SumParams& p) {
  return launch(launch_of(stream, packs_of(p.size)), sum<T>, p);
}

template <typename T>
cudaError_t launch_gather(cudaStream_t stream, const RowsParams& p) {
  return launch(launch_of(stream, rows_of(p)), move_rows<T, false>, p);
}

template <typename T>
cudaError_t launch_scatter(cudaStream_t stream, const RowsParams& p) {
  return launch(launch_of(stream, rows_of(p)), move_rows<T, true>, p);
}

#define FDJAX_INSTANCES(T)                                                       \
  template cudaError_t launch_head_norm<T>(cudaStream_t, const HeadNormParams&); \
  template cudaError_t launch_activate<T>(cudaStream_t, const ActivateParams&);  \
  template cudaError_t launch_sum<T>(cudaStream_t, const SumParams&);            \
  template cudaError_t launch_gather<T>(cudaStream_t, const RowsParams&);        \
  template cudaError_t launch_scatter<T>(cudaStream_t, const RowsParams&);

FDJAX_INSTANCES(GpuFloats::bfloat16)
FDJAX_INSTANCES(GpuFloats::float16)
#undef FDJAX_INSTANCES

}  // namespace fdjax::layer_program
