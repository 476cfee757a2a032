// add_norm on a GPU: checks and launch.
#include <limits>

#include "add_norm/launch.h"
#include "fdjax/check.h"
#include "fdjax/dispatch.h"

namespace fdjax::add_norm {
namespace {

struct Arguments {
  ffi::AnyBuffer x, delta, scale, bias;  // delta, bias: empty where there is none
  ffi::Result<ffi::AnyBuffer> out, sum;  // sum: empty where there is no delta
};

template <typename T>
ffi::Error check_size(int64_t size) {
  if (size % kVec<T> == 0 && size <= kMaxSize<T>) return ffi::Error::Success();
  return ffi::Error::InvalidArgument(
      "x: dimension E is " + std::to_string(size) + "; it must be a multiple of " +
      std::to_string(kVec<T>) + " up to " + std::to_string(kMaxSize<T>));
}

ffi::Error check_dtypes(const Arguments& a) {
  const ffi::DataType dtype = a.x.element_type();
  FDJAX_RETURN_IF_ERROR(check_dtype("delta", a.delta.element_type(), "x", dtype));
  FDJAX_RETURN_IF_ERROR(check_dtype("scale", a.scale.element_type(), "x", dtype));
  FDJAX_RETURN_IF_ERROR(check_dtype("bias", a.bias.element_type(), "x", dtype));
  FDJAX_RETURN_IF_ERROR(check_dtype("out", a.out->element_type(), "x", dtype));
  return check_dtype("sum", a.sum->element_type(), "x", dtype);
}

ffi::Error read(const Arguments& a, Params* p) {
  Dim rows{"T"}, size{"E"};
  FDJAX_RETURN_IF_ERROR(check_shape("x", a.x.dimensions(), {&rows, &size}));
  FDJAX_RETURN_IF_ERROR(check_shape("scale", a.scale.dimensions(), {&size}));
  FDJAX_RETURN_IF_ERROR(check_shape("out", a.out->dimensions(), {&rows, &size}));
  if (a.delta.element_count() != 0) {
    FDJAX_RETURN_IF_ERROR(check_shape("delta", a.delta.dimensions(), {&rows, &size}));
    FDJAX_RETURN_IF_ERROR(check_shape("sum", a.sum->dimensions(), {&rows, &size}));
    p->delta = a.delta.untyped_data();
    p->sum = a.sum->untyped_data();
  }
  if (a.bias.element_count() != 0) {
    FDJAX_RETURN_IF_ERROR(check_shape("bias", a.bias.dimensions(), {&size}));
    p->bias = a.bias.untyped_data();
  }
  FDJAX_RETURN_IF_ERROR(check_dtypes(a));
  constexpr int64_t kInt32 = std::numeric_limits<int32_t>::max();
  if (*rows > kInt32 || *size > kInt32) {
    return ffi::Error::InvalidArgument("x has too many rows or columns");
  }
  p->x = a.x.untyped_data();
  p->scale = a.scale.untyped_data();
  p->out = a.out->untyped_data();
  p->rows = static_cast<int>(*rows);
  p->size = static_cast<int>(*size);
  return ffi::Error::Success();
}

ffi::Error handle(gpu_stream stream, float epsilon, float scale_offset,
                  ffi::AnyBuffer x, ffi::AnyBuffer delta, ffi::AnyBuffer scale,
                  ffi::AnyBuffer bias, ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::AnyBuffer> sum) {
  Params p{};
  p.epsilon = epsilon;
  p.scale_offset = scale_offset;
  FDJAX_RETURN_IF_ERROR(read({x, delta, scale, bias, out, sum}, &p));
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_add_norm_gpu, fdjax::add_norm::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<float>("epsilon")
                                  .Attr<float>("scale_offset")
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
