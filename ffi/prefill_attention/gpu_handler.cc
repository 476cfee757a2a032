// prefill_attention on a GPU: checks and launch.
#include "fdjax/gpu_dispatch.h"
#include "prefill_attention/arguments.h"
#include "prefill_attention/launch.h"

namespace fdjax::prefill_attention {
namespace {

ffi::Error failed(cudaError_t error) {
  return ffi::Error::Internal(std::string("prefill_attention: ") +
                              cudaGetErrorString(error));
}

ffi::Error handle(gpu_stream stream, const Attributes& attributes, ffi::AnyBuffer q,
                  ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::S32> tiles,
                  ffi::Buffer<ffi::F32> slopes, ffi::Buffer<ffi::F32> sinks,
                  ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::F32>> records,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed) {
  paged::Dims d;
  Params p;
  FDJAX_RETURN_IF_ERROR(read(
      attributes,
      {{q, kv, page_table, lengths, slopes, sinks}, tiles, out, records, recomputed},
      &d, &p));
  FDJAX_RETURN_IF_ERROR(check_limits(d));
  FDJAX_RETURN_IF_ERROR(check_scale(attributes.attention.scores.scale));
  const cudaError_t error = clear_recomputed(stream, p, /*layers=*/1);
  if (error != cudaSuccess) return failed(error);
  if (p.queries == 0 || p.num_tiles == 0) return ffi::Error::Success();
  return launch_16_bits("prefill_attention", q.element_type(), [&](auto type) {
    return launch_prefill_attention<typename decltype(type)::type>(stream, p);
  });
}

}  // namespace
}  // namespace fdjax::prefill_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_prefill_attention_gpu, fdjax::prefill_attention::handle,
    fdjax::prefill_attention::bind_call(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()),
    {xla::ffi::Traits::kCmdBufferCompatible});
