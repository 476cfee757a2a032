// What the handlers of every platform take, and the checks that all of them make.
#pragma once

#include "decode_attention/arguments.h"
#include "prefill_attention/params.h"

namespace fdjax::prefill_attention {

// What the tiles and the grids of a GPU's kernels have room for.
inline ffi::Error check_limits(const paged::Dims& d) {
  using paged::check_range;
  FDJAX_RETURN_IF_ERROR(
      check_range("Hq / Hkv", *d.q_heads / *d.kv_heads, 1, kTileRows));
  FDJAX_RETURN_IF_ERROR(check_range("Hkv", *d.kv_heads, 1, kMaxKvHeads));
  FDJAX_RETURN_IF_ERROR(check_range("Z", *d.page_size, 1, kMaxPageSize));
  FDJAX_RETURN_IF_ERROR(check_range("D", *d.head_dim, kHeadMultiple, kMaxHeadDim));
  FDJAX_RETURN_IF_ERROR(decode_attention::check_alignment(d));
  if (*d.head_dim % kHeadMultiple == 0) return ffi::Error::Success();
  return paged::invalid("D is " + std::to_string(*d.head_dim) +
                        "; the handler takes multiples of " +
                        std::to_string(kHeadMultiple));
}

// The largest score must be that of the largest product.
inline ffi::Error check_scale(float scale) {
  if (scale > 0.0f) return ffi::Error::Success();  // NaN is not
  return paged::invalid("scale is " + std::to_string(scale) +
                        "; the handler takes above 0");
}

// The scheme is a GPU's: on a CPU results are the same, and the softmax synchronised.
struct Attributes {
  paged::Attributes attention;
  decode_attention::SchemeAttributes scheme;
};

}  // namespace fdjax::prefill_attention

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    fdjax::prefill_attention::Attributes,
    StructMember<fdjax::paged::Attributes>("attention"),
    StructMember<fdjax::decode_attention::SchemeAttributes>("scheme"));

namespace fdjax::prefill_attention {

struct Arguments {
  paged::Inputs in;
  ffi::Buffer<ffi::S32> tiles;
  ffi::Result<ffi::AnyBuffer> out;
  ffi::Result<ffi::Buffer<ffi::F32>> records;
  ffi::Result<ffi::Buffer<ffi::S32>> recomputed;  // empty where nothing can be
};

inline ffi::Error read(const Attributes& a, const Arguments& arguments, paged::Dims* d,
                       Params* params) {
  Dim queries{"T"};
  FDJAX_RETURN_IF_ERROR(paged::check_call(arguments.in, arguments.out, &queries, d));
  Dim tiles{"N"}, eight{"8", 8}, records{"R"}, rows{"128", kTileRows},
      sums{"D + 2", *d->head_dim + 2};
  FDJAX_RETURN_IF_ERROR(
      check_shape("tiles", arguments.tiles.dimensions(), {&tiles, &eight}));
  FDJAX_RETURN_IF_ERROR(check_shape("records", arguments.records->dimensions(),
                                    {&records, &d->kv_heads, &rows, &sums}));
  FDJAX_RETURN_IF_ERROR(paged::check_range("T", *queries, 0, paged::kMaxTokens));
  FDJAX_RETURN_IF_ERROR(paged::check_values(a.attention, *d));
  Dim counted{"rows of recomputed", a.scheme.unified ? *d->rows : 0};
  FDJAX_RETURN_IF_ERROR(
      check_shape("recomputed", arguments.recomputed->dimensions(), {&counted}));
  *params = {.attention = decode_attention::with_scheme(
                 decode_attention::params_of(a.attention, arguments.in, *d,
                                             arguments.out->untyped_data(),
                                             arguments.recomputed->typed_data()),
                 a.scheme),
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
      .template Attr<Attributes>("attributes")
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::S32>>()
      .template Arg<ffi::Buffer<ffi::F32>>()
      .template Arg<ffi::Buffer<ffi::F32>>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::Buffer<ffi::F32>>()
      .template Ret<ffi::Buffer<ffi::S32>>();
}

}  // namespace fdjax::prefill_attention
