// rope_kv_write on a GPU: checks, launch shape, launch.
#include <algorithm>
#include <cstdint>

#include "fdjax/dispatch.h"
#include "fdjax/gpu.h"
#include "rope_kv_write/arguments.h"
#include "rope_kv_write/kernel.cuh"

namespace fdjax::rope_kv_write {
namespace {

// Blocks worth launching: a few for each multiprocessor of any GPU. With fewer tokens,
// a token's heads are spread over several blocks.
constexpr int kBlocks = 1024;

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

template <typename T, int kVec>
void launch(gpu_stream stream, const Params& p) {
  const int units = (p.q_heads + 2 * p.kv_heads) * (p.head_dim / (2 * kVec));
  const int groups = (units + kThreads - 1) / kThreads;
  const int wanted = (kBlocks + p.tokens - 1) / p.tokens;
  const dim3 grid(p.tokens, std::min(groups, wanted));
  kernel<T, kVec><<<grid, kThreads, 0, stream>>>(p);
}

template <typename T>
ffi::Error run(gpu_stream stream, const Arguments& arguments) {
  Params p;
  FDJAX_RETURN_IF_ERROR(read<T>(arguments, &p));
  if (p.tokens == 0 || p.head_dim == 0) return ffi::Error::Success();
  constexpr int kVec = 16 / sizeof(T);
  const bool vectors = p.head_dim % (2 * kVec) == 0 && p.num_frequencies % kVec == 0 &&
                       aligned(p.qkv) && aligned(p.query) && aligned(p.kv);
  vectors ? launch<T, kVec>(stream, p) : launch<T, 1>(stream, p);
  if (const char* error = launch_error()) {
    return ffi::Error::Internal(std::string("rope_kv_write: ") + error);
  }
  return ffi::Error::Success();
}

ffi::Error handle(gpu_stream stream, int64_t layer, bool interleaved,
                  ffi::AnyBuffer qkv, ffi::AnyBuffer kv,
                  ffi::Buffer<ffi::S32> positions, ffi::Buffer<ffi::S32> slots,
                  ffi::Buffer<ffi::F32> frequencies, ffi::Result<ffi::AnyBuffer> query,
                  ffi::Result<ffi::AnyBuffer> kv_out) {
  const Arguments arguments{layer, interleaved, qkv,   kv,    positions,
                            slots, frequencies, query, kv_out};
  return dispatch_float<GpuFloats>("qkv", qkv.element_type(), [&](auto type) {
    return run<typename decltype(type)::type>(stream, arguments);
  });
}

}  // namespace
}  // namespace fdjax::rope_kv_write

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_rope_kv_write_gpu, fdjax::rope_kv_write::handle,
    fdjax::rope_kv_write::bind_arguments(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()),
    {xla::ffi::Traits::kCmdBufferCompatible});
