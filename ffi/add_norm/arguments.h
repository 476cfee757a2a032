// What the handlers of every platform take, and the checks that all of them make.
#pragma once

#include <utility>

#include "add_norm/params.h"
#include "fdjax/check.h"

namespace fdjax::add_norm {

struct Attributes {
  float epsilon, scale_offset;
};

}  // namespace fdjax::add_norm

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(fdjax::add_norm::Attributes,
                                      StructMember<float>("epsilon"),
                                      StructMember<float>("scale_offset"));

namespace fdjax::add_norm {

struct Arguments {
  Attributes attributes;
  ffi::AnyBuffer x;
  ffi::AnyBuffer delta, delta_scale;     // may be absent
  ffi::AnyBuffer scale, bias;            // bias: may be absent
  ffi::Result<ffi::AnyBuffer> out, sum;  // sum: absent where delta is
};

inline ffi::Error check_dtypes(const Arguments& a) {
  const ffi::DataType dtype = a.x.element_type();
  FDJAX_RETURN_IF_ERROR(check_dtype("delta", a.delta.element_type(), "x", dtype));
  FDJAX_RETURN_IF_ERROR(
      check_dtype("delta_scale", a.delta_scale.element_type(), "x", dtype));
  FDJAX_RETURN_IF_ERROR(check_dtype("scale", a.scale.element_type(), "x", dtype));
  FDJAX_RETURN_IF_ERROR(check_dtype("bias", a.bias.element_type(), "x", dtype));
  FDJAX_RETURN_IF_ERROR(check_dtype("out", a.out->element_type(), "x", dtype));
  return check_dtype("sum", a.sum->element_type(), "x", dtype);
}

// Checks everything that can be known without the data, then fills `p`.
inline ffi::Error read(const Arguments& a, Params* p) {
  Dim rows{"T"}, size{"E"};
  FDJAX_RETURN_IF_ERROR(check_shape("x", a.x.dimensions(), {&rows, &size}));
  FDJAX_RETURN_IF_ERROR(check_shape("scale", a.scale.dimensions(), {&size}));
  FDJAX_RETURN_IF_ERROR(check_shape("out", a.out->dimensions(), {&rows, &size}));
  if (!is_absent(a.delta)) {
    FDJAX_RETURN_IF_ERROR(check_shape("delta", a.delta.dimensions(), {&rows, &size}));
    FDJAX_RETURN_IF_ERROR(check_shape("sum", a.sum->dimensions(), {&rows, &size}));
    p->delta = a.delta.untyped_data();
    p->sum = a.sum->untyped_data();
  }
  if (!is_absent(a.delta_scale)) {
    if (is_absent(a.delta)) {
      return ffi::Error::InvalidArgument("there is a delta_scale, and no delta");
    }
    FDJAX_RETURN_IF_ERROR(
        check_shape("delta_scale", a.delta_scale.dimensions(), {&size}));
    p->delta_scale = a.delta_scale.untyped_data();
  }
  if (!is_absent(a.bias)) {
    FDJAX_RETURN_IF_ERROR(check_shape("bias", a.bias.dimensions(), {&size}));
    p->bias = a.bias.untyped_data();
  }
  FDJAX_RETURN_IF_ERROR(check_dtypes(a));
  if (*rows > kInt32 || *size > kInt32) {
    return ffi::Error::InvalidArgument("x has too many rows or columns");
  }
  p->x = a.x.untyped_data();
  p->scale = a.scale.untyped_data();
  p->out = a.out->untyped_data();
  p->rows = static_cast<int>(*rows);
  p->size = static_cast<int>(*size);
  p->epsilon = a.attributes.epsilon;
  p->scale_offset = a.attributes.scale_offset;
  return ffi::Error::Success();
}

// Adds the handlers' attributes, arguments and results to a binding.
template <typename Binding>
auto bind_arguments(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Attr<Attributes>("attributes")
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

}  // namespace fdjax::add_norm
