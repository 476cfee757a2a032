// What the handlers of every platform take, and the checks that all of them make.
#pragma once

#include <string>
#include <utility>

#include "decode_attention/params.h"
#include "fdjax/check.h"
#include "paged/arguments.h"

namespace fdjax::decode_attention {

using paged::Attributes, paged::Dims, paged::Inputs, paged::check_range,
    paged::check_values, paged::invalid;

// The asynchronous softmax and its bounds, or the synchronised one throughout.
struct SchemeAttributes {
  bool unified;
  float phi, low, high;
};

}  // namespace fdjax::decode_attention

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(fdjax::decode_attention::SchemeAttributes,
                                      StructMember<bool>("unified"),
                                      StructMember<float>("phi"),
                                      StructMember<float>("low"),
                                      StructMember<float>("high"));

namespace fdjax::decode_attention {

struct Arguments {
  Inputs in;
  ffi::Result<ffi::AnyBuffer> out;
  ffi::Result<ffi::Buffer<ffi::S32>> recomputed;
};

// A GPU's kernels copy 16 bytes at once, and pad no heads.
inline ffi::Error check_alignment(const Dims& d) {
  if (*d.head_width % kHeadMultiple == 0) return ffi::Error::Success();
  return invalid("D' is " + std::to_string(*d.head_width) +
                 "; the handler takes multiples of " + std::to_string(kHeadMultiple));
}

inline ffi::Error check_buffers(const Arguments& a, Dims* d) {
  FDJAX_RETURN_IF_ERROR(paged::check_call(a.in, a.out, &d->rows, d));
  return check_shape("recomputed", a.recomputed->dimensions(),
                     {&d->rows, &d->kv_heads});
}

// By the synchronised scheme.
inline Params params_of(const Attributes& a, const Inputs& in, const Dims& d, void* out,
                        int32_t* recomputed) {
  Params p{paged::view_of(a, in, d)};
  p.q = in.q.untyped_data();
  p.slopes = data_or_null(in.slopes);
  p.sinks = data_or_null(in.sinks);
  p.out = out;
  p.recomputed = recomputed;
  p.kv_heads = static_cast<int>(*d.kv_heads);
  p.group = static_cast<int>(*d.q_heads / *d.kv_heads);
  p.head_dim = static_cast<int>(*d.head_dim);
  p.window = static_cast<int>(a.scores.window);
  p.scale = a.scores.scale;
  p.soft_cap = a.scores.soft_cap;
  return p;
}

inline Params with_scheme(Params p, const SchemeAttributes& scheme) {
  p.unified = scheme.unified;
  p.phi = scheme.phi;
  p.low = scheme.low;
  p.high = scheme.high;
  return p;
}

inline Params params_of(const Attributes& a, const SchemeAttributes& scheme,
                        const Arguments& arguments, const Dims& d) {
  return with_scheme(params_of(a, arguments.in, d, arguments.out->untyped_data(),
                               arguments.recomputed->typed_data()),
                     scheme);
}

// Operands of a handler, after all attributes.
template <typename Binding>
auto bind_operands(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::F32>>()
      .template Arg<ffi::Buffer<ffi::F32>>();
}

}  // namespace fdjax::decode_attention
