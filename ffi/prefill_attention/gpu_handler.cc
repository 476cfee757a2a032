// prefill_attention on a GPU: checks and launch.
#include "prefill_attention/arguments.h"
#include "prefill_attention/launch.h"

namespace fdjax::prefill_attention {
namespace {

using decode_attention::check_range;
using decode_attention::invalid;

// What the kernel's tiles and grid have room for.
ffi::Error check_kernel(const decode_attention::Dims& d, float scale) {
  FDJAX_RETURN_IF_ERROR(check_range("Hq / Hkv", *d.q_heads / *d.kv_heads, 1, 128));
  FDJAX_RETURN_IF_ERROR(check_range("Hkv", *d.kv_heads, 1, 65535));
  FDJAX_RETURN_IF_ERROR(check_range("Z", *d.page_size, 2, 128));
  FDJAX_RETURN_IF_ERROR(check_range("D", *d.head_dim, 8, 256));
  FDJAX_RETURN_IF_ERROR(decode_attention::check_alignment(d));
  if (*d.head_dim % 8 != 0) {
    return invalid("D is " + std::to_string(*d.head_dim) +
                   "; the handler takes multiples of 8");
  }
  if (scale > 0.0f) return ffi::Error::Success();
  return invalid("scale is " + std::to_string(scale) + "; the handler takes above 0");
}

ffi::Error handle(gpu_stream stream, int64_t layer, float scale, float soft_cap,
                  int64_t window, ffi::AnyBuffer q, ffi::AnyBuffer kv,
                  ffi::Buffer<ffi::S32> page_table, ffi::Buffer<ffi::S32> lengths,
                  ffi::Buffer<ffi::S32> tiles, ffi::Buffer<ffi::F32> slopes,
                  ffi::Buffer<ffi::F32> sinks, ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::F32>> records) {
  decode_attention::Dims d;
  Params p;
  FDJAX_RETURN_IF_ERROR(
      read({layer, scale, soft_cap, window},
           {{q, kv, page_table, lengths, slopes, sinks}, tiles, out, records}, &d, &p));
  FDJAX_RETURN_IF_ERROR(check_kernel(d, scale));
  if (p.queries == 0 || p.num_tiles == 0) return ffi::Error::Success();
  cudaError_t error;
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
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("prefill_attention: ") +
                              cudaGetErrorString(error));
}

}  // namespace
}  // namespace fdjax::prefill_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_prefill_attention_gpu, fdjax::prefill_attention::handle,
    fdjax::prefill_attention::bind_call(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()),
    {xla::ffi::Traits::kCmdBufferCompatible});
