// The handlers' signature and its checks, the same on every platform.
#pragma once

#include <limits>
#include <string>

#include "fdjax/check.h"
#include "paged/arguments.h"
#include "rope_kv_write/params.h"

namespace fdjax::rope_kv_write {

struct Attributes {
  int64_t layer;
  bool interleaved;  // the pairing
};

}  // namespace fdjax::rope_kv_write

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(fdjax::rope_kv_write::Attributes,
                                      StructMember<int64_t>("layer"),
                                      StructMember<bool>("interleaved"));

namespace fdjax::rope_kv_write {

struct Arguments {
  Attributes attributes;
  ffi::AnyBuffer qkv, kv;
  ffi::Buffer<ffi::S32> positions, slots;
  ffi::Buffer<ffi::F32> frequencies;
  ffi::Result<ffi::AnyBuffer> query, kv_out;
};

inline ffi::Error check_sizes(int64_t layer, int64_t layers, int64_t heads,
                              int64_t kv_heads, int64_t head_dim, int64_t frequencies) {
  const auto invalid = [](std::string message) {
    return ffi::Error::InvalidArgument(std::move(message));
  };
  if (heads <= 2 * kv_heads) {
    return invalid("qkv: dimension H is " + std::to_string(heads) +
                   ", which leaves no query heads beside 2 * Hkv = " +
                   std::to_string(2 * kv_heads));
  }
  if (head_dim % 2 != 0 || 2 * frequencies > head_dim) {
    return invalid(
        "qkv: dimension D is " + std::to_string(head_dim) +
        "; it must be even and at least 2 * R2 = " + std::to_string(2 * frequencies));
  }
  if (frequencies > kMaxFrequencies) {
    return invalid("frequencies: dimension R2 is " + std::to_string(frequencies) +
                   ", the handler takes at most " + std::to_string(kMaxFrequencies));
  }
  if (layer < 0 || layer >= layers) {
    return invalid("layer is " + std::to_string(layer) +
                   ", but kv has L = " + std::to_string(layers));
  }
  return ffi::Error::Success();
}

// Checks everything that can be known without the data, then fills `params`.
template <typename T>
ffi::Error read(const Arguments& a, Params* params) {
  Dim tokens{"T"}, heads{"H"}, frequencies{"R2"};
  paged::Dims d;
  FDJAX_RETURN_IF_ERROR(
      check_shape("qkv", a.qkv.dimensions(), {&tokens, &heads, &d.head_dim}));
  FDJAX_RETURN_IF_ERROR(check_shape(
      "kv", a.kv.dimensions(),
      {&d.pages, &d.layers, &d.two, &d.page_size, &d.kv_heads, &d.head_dim}));
  FDJAX_RETURN_IF_ERROR(check_shape("positions", a.positions.dimensions(), {&tokens}));
  FDJAX_RETURN_IF_ERROR(check_shape("slots", a.slots.dimensions(), {&tokens}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("frequencies", a.frequencies.dimensions(), {&frequencies}));
  FDJAX_RETURN_IF_ERROR(check_sizes(a.attributes.layer, *d.layers, *heads, *d.kv_heads,
                                    *d.head_dim, *frequencies));
  d.q_heads = Dim("Hq", *heads - 2 * *d.kv_heads);
  FDJAX_RETURN_IF_ERROR(
      check_shape("query", a.query->dimensions(), {&tokens, &d.q_heads, &d.head_dim}));
  const ffi::DataType dtype = a.qkv.element_type();
  FDJAX_RETURN_IF_ERROR(check_dtype("kv", a.kv.element_type(), "qkv", dtype));
  FDJAX_RETURN_IF_ERROR(check_dtype("query", a.query->element_type(), "qkv", dtype));
  if (a.kv.untyped_data() != a.kv_out->untyped_data()) {
    return ffi::Error::InvalidArgument("kv: the result must alias the operand");
  }
  if (*tokens * *heads > std::numeric_limits<int>::max() ||
      *heads * *d.head_dim > std::numeric_limits<int>::max() ||
      *d.page_size > std::numeric_limits<int>::max()) {
    return ffi::Error::InvalidArgument("qkv or a page has too many elements");
  }
  *params = Params{
      .qkv = a.qkv.untyped_data(),
      .positions = a.positions.typed_data(),
      .slots = a.slots.typed_data(),
      .frequencies = a.frequencies.typed_data(),
      .query = a.query->untyped_data(),
      .pages = paged::layout_of(*a.kv_out, d, a.attributes.layer, sizeof(T)),
      .tokens = static_cast<int>(*tokens),
      .q_heads = static_cast<int>(*d.q_heads),
      .kv_heads = static_cast<int>(*d.kv_heads),
      .head_dim = static_cast<int>(*d.head_dim),
      .num_frequencies = static_cast<int>(*frequencies),
      .interleaved = a.attributes.interleaved,
  };
  return ffi::Error::Success();
}

// Attributes and buffers of a handler, after the platform's own context.
template <typename Binding>
auto bind_arguments(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Attr<Attributes>("attributes")
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::F32>>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

}  // namespace fdjax::rope_kv_write
