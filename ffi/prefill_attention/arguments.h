// What the handlers of every platform take, and the checks that all of them make.
#pragma once

#include "decode_attention/arguments.h"
#include "prefill_attention/params.h"

namespace fdjax::prefill_attention {

struct Attributes {
  int64_t layer;
  float scale, soft_cap;  // soft_cap 0: none
  int64_t window;         // INT32_MAX: all tokens
};

struct Arguments {
  decode_attention::Inputs in;
  ffi::Buffer<ffi::S32> tiles;
  ffi::Result<ffi::AnyBuffer> out;
  ffi::Result<ffi::Buffer<ffi::F32>> records;
};

inline ffi::Error read(const Attributes& a, const Arguments& arguments,
                       decode_attention::Dims* d, Params* params) {
  Dim queries{"T"};
  FDJAX_RETURN_IF_ERROR(
      decode_attention::check_inputs(arguments.in, arguments.out, &queries, d));
  Dim tiles{"N"}, eight{"8", 8}, records{"R"}, rows{"128", kTileRows},
      sums{"D + 2", *d->head_dim + 2};
  FDJAX_RETURN_IF_ERROR(
      check_shape("tiles", arguments.tiles.dimensions(), {&tiles, &eight}));
  FDJAX_RETURN_IF_ERROR(check_shape("records", arguments.records->dimensions(),
                                    {&records, &d->kv_heads, &rows, &sums}));
  FDJAX_RETURN_IF_ERROR(decode_attention::check_range("T", *queries, 0, 1 << 25));
  const decode_attention::Attributes attention{
      a.layer, a.scale, a.soft_cap, a.window, "synchronised", 0.0f, 0.0f, 0.0f};
  FDJAX_RETURN_IF_ERROR(decode_attention::check_values(attention, *d));
  *params = {.attention = decode_attention::params_of(
                 attention, arguments.in, *d, arguments.out->untyped_data(), nullptr),
             .tiles = reinterpret_cast<const Tile*>(arguments.tiles.typed_data()),
             .num_tiles = static_cast<int>(*tiles),
             .queries = static_cast<int>(*queries),
             .num_records = static_cast<int>(*records),
             .records = arguments.records->typed_data()};
  return ffi::Error::Success();
}

// Attributes and buffers of a handler, after the platform's own context.
template <typename Binding>
auto bind_call(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Attr<int64_t>("layer")
      .template Attr<float>("scale")
      .template Attr<float>("soft_cap")
      .template Attr<int64_t>("window")
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::F32>>()
      .template Arg<ffi::Buffer<ffi::F32>>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::Buffer<ffi::F32>>();
}

}  // namespace fdjax::prefill_attention
