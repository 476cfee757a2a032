// prefill_attention on a GPU: checks and launch.
#include "prefill_attention/arguments.h"
#include "prefill_attention/launch.h"

namespace fdjax::prefill_attention {
namespace {

using paged::invalid;

ffi::Error check_scale(float scale) {
  if (scale > 0.0f) return ffi::Error::Success();
  return invalid("scale is " + std::to_string(scale) + "; the handler takes above 0");
}

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
  cudaError_t error = clear_recomputed(stream, p, /*layers=*/1);
  if (error != cudaSuccess) return failed(error);
  if (p.queries == 0 || p.num_tiles == 0) return ffi::Error::Success();
  switch (const ffi::DataType dtype = q.element_type()) {
    case ffi::DataType::BF16:
      error = launch_prefill_attention<GpuFloats::bfloat16>(stream, p);
      break;
    case ffi::DataType::F16:
      error = launch_prefill_attention<GpuFloats::float16>(stream, p);
      break;
    default:
      return invalid("q has element type " + std::to_string(static_cast<int>(dtype)) +
                     "; the handler takes bfloat16 and float16");
  }
  return error == cudaSuccess ? ffi::Error::Success() : failed(error);
}

}  // namespace
}  // namespace fdjax::prefill_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_prefill_attention_gpu, fdjax::prefill_attention::handle,
    fdjax::prefill_attention::bind_call(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()),
    {xla::ffi::Traits::kCmdBufferCompatible});
