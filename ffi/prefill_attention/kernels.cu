// The kernels, compiled apart from the handler and its XLA headers.
#include "fdjax/launch.h"
#include "prefill_attention/kernel.cuh"
#include "prefill_attention/launch.h"

namespace fdjax::prefill_attention {
namespace {

template <typename G>
cudaError_t launch_geometry(cudaStream_t stream, Params p) {
  const int tokens = kTileRows / p.attention.group;
  p.attention = decode_attention::in_units_of_log2(p.attention);
  // As many tiles as there can be: how many there are is known to the device alone.
  const fdjax::Launch how{
      .stream = stream,
      .grid = dim3(p.queries / tokens + p.attention.rows, p.attention.kv_heads),
      .threads = G::kThreads,
      .shared_bytes = G::kSharedBytes};
  return fdjax::launch(how, kernel<G>, p);
}

}  // namespace

template <typename T>
cudaError_t launch_prefill_attention(cudaStream_t stream, const Params& p) {
  if (p.attention.head_dim <= 64) return launch_geometry<Geometry<T, 64>>(stream, p);
  if (p.attention.head_dim <= 128) return launch_geometry<Geometry<T, 128>>(stream, p);
  return launch_geometry<Geometry<T, 256>>(stream, p);
}

template cudaError_t launch_prefill_attention<GpuFloats::bfloat16>(cudaStream_t,
                                                                   const Params&);
template cudaError_t launch_prefill_attention<GpuFloats::float16>(cudaStream_t,
                                                                  const Params&);

}  // namespace fdjax::prefill_attention
