// add_norm on a GPU: checks and launch.
#include "add_norm/arguments.h"
#include "add_norm/launch.h"
#include "fdjax/dispatch.h"

namespace fdjax::add_norm {
namespace {

template <typename T>
ffi::Error check_size(int64_t size) {
  if (size % kVec<T> == 0 && size <= kMaxSize<T>) return ffi::Error::Success();
  return ffi::Error::InvalidArgument(
      "x: dimension E is " + std::to_string(size) + "; it must be a multiple of " +
      std::to_string(kVec<T>) + " up to " + std::to_string(kMaxSize<T>));
}

ffi::Error handle(gpu_stream stream, const Attributes& attributes, ffi::AnyBuffer x,
                  ffi::AnyBuffer delta, ffi::AnyBuffer delta_scale,
                  ffi::AnyBuffer scale, ffi::AnyBuffer bias,
                  ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> sum) {
  Params p{};
  FDJAX_RETURN_IF_ERROR(
      read({attributes, x, delta, delta_scale, scale, bias, out, sum}, &p));
  if (p.rows == 0 || p.size == 0) return ffi::Error::Success();
  return dispatch_float<GpuFloats>("x", x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    FDJAX_RETURN_IF_ERROR(check_size<T>(p.size));
    const gpu_error error = launch_rows<T>(stream, p, /*programmatic=*/false);
    if (error == kGpuSuccess) return ffi::Error::Success();
    return ffi::Error::Internal(std::string("add_norm: ") + gpu_error_string(error));
  });
}

}  // namespace

}  // namespace fdjax::add_norm

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_add_norm_gpu, fdjax::add_norm::handle,
    fdjax::add_norm::bind_arguments(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()),
    {xla::ffi::Traits::kCmdBufferCompatible});
