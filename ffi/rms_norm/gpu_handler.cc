// rms_norm on a GPU: checks and launch.
#include <limits>

#include "fdjax/check.h"
#include "fdjax/dispatch.h"
#include "rms_norm/launch.h"

namespace fdjax::rms_norm {
namespace {

template <typename T>
ffi::Error check_size(int64_t size) {
  if (size % kVec<T> == 0 && size <= kMaxSize<T>) return ffi::Error::Success();
  return ffi::Error::InvalidArgument(
      "x: dimension E is " + std::to_string(size) + "; it must be a multiple of " +
      std::to_string(kVec<T>) + " up to " + std::to_string(kMaxSize<T>));
}

ffi::Error handle(gpu_stream stream, float epsilon, float scale_offset,
                  ffi::AnyBuffer x, ffi::AnyBuffer scale,
                  ffi::Result<ffi::AnyBuffer> out) {
  Dim rows{"T"}, size{"E"};
  FDJAX_RETURN_IF_ERROR(check_shape("x", x.dimensions(), {&rows, &size}));
  FDJAX_RETURN_IF_ERROR(check_shape("scale", scale.dimensions(), {&size}));
  FDJAX_RETURN_IF_ERROR(check_shape("out", out->dimensions(), {&rows, &size}));
  const ffi::DataType dtype = x.element_type();
  FDJAX_RETURN_IF_ERROR(check_dtype("scale", scale.element_type(), "x", dtype));
  FDJAX_RETURN_IF_ERROR(check_dtype("out", out->element_type(), "x", dtype));
  if (*rows > std::numeric_limits<int>::max()) {
    return ffi::Error::InvalidArgument("x has too many rows");
  }
  if (*rows == 0 || *size == 0) return ffi::Error::Success();
  const Params p{x.untyped_data(),
                 scale.untyped_data(),
                 out->untyped_data(),
                 static_cast<int>(*rows),
                 static_cast<int>(*size),
                 epsilon,
                 scale_offset};
  return dispatch_float<GpuFloats>("x", dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    FDJAX_RETURN_IF_ERROR(check_size<T>(p.size));
    const gpu_error error = launch_rows<T>(stream, p, /*programmatic=*/false);
    if (error == kGpuSuccess) return ffi::Error::Success();
    return ffi::Error::Internal(std::string("rms_norm: ") + gpu_error_string(error));
  });
}

}  // namespace

}  // namespace fdjax::rms_norm

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_rms_norm_gpu, fdjax::rms_norm::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<float>("epsilon")
                                  .Attr<float>("scale_offset")
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
