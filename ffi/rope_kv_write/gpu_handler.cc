// rope_kv_write on a GPU: checks and launch.
#include "fdjax/dispatch.h"
#include "fdjax/gpu.h"
#include "rope_kv_write/arguments.h"
#include "rope_kv_write/launch.h"

namespace fdjax::rope_kv_write {
namespace {

template <typename T>
ffi::Error run(gpu_stream stream, const Arguments& arguments) {
  Params p;
  FDJAX_RETURN_IF_ERROR(read<T>(arguments, &p));
  if (p.tokens == 0 || p.head_dim == 0) return ffi::Error::Success();
  const gpu_error error = launch_tokens<T>(stream, p);
  if (error == kGpuSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("rope_kv_write: ") + gpu_error_string(error));
}

ffi::Error handle(gpu_stream stream, const Attributes& attributes, ffi::AnyBuffer qkv,
                  ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> positions,
                  ffi::Buffer<ffi::S32> slots, ffi::Buffer<ffi::F32> frequencies,
                  ffi::Result<ffi::AnyBuffer> query,
                  ffi::Result<ffi::AnyBuffer> kv_out) {
  const Arguments arguments{attributes, qkv,         kv,    positions,
                            slots,      frequencies, query, kv_out};
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
