// Attention of rows that share prefixes, on a GPU: checks and launches. Three kernels
// follow one another: decode_attention's, over what rows have of their own;
// prefill_attention's, over what they share, which starts while the first is under way;
// and the one that joins both.
#include "decode_attention/gpu_arguments.h"
#include "decode_attention/launch.h"
#include "fdjax/gpu_dispatch.h"
#include "prefill_attention/arguments.h"
#include "prefill_attention/launch.h"

namespace fdjax::shared_prefix {

struct Attributes {
  decode_attention::GpuAttributes own;
  paged::Attributes shared;
};

}  // namespace fdjax::shared_prefix

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    fdjax::shared_prefix::Attributes,
    StructMember<fdjax::decode_attention::GpuAttributes>("own"),
    StructMember<fdjax::paged::Attributes>("shared"));

namespace fdjax::shared_prefix {
namespace {

using paged::check_range;
using paged::invalid;
using prefill_attention::Joining;
using prefill_attention::kTileRows;

struct Arguments {
  decode_attention::GpuArguments own;
  paged::Inputs shared;  // of all pages of the rows
  ffi::Buffer<ffi::S32> order, work, parts;
  ffi::Result<ffi::Buffer<ffi::F32>> about, records;
};

// The shapes of what is not every attention's.
ffi::Error check(const Arguments& a, paged::Dims* d, Dim* items, Dim* records) {
  FDJAX_RETURN_IF_ERROR(paged::check_call(a.shared, a.own.call.out, &d->rows, d));
  Dim two{"2", 2}, four{"4", 4}, eight{"8", 8}, rows{"128", kTileRows},
      sums{"D + 2", *d->head_dim + 2};
  FDJAX_RETURN_IF_ERROR(check_shape("order", a.order.dimensions(), {&d->rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("work", a.work.dimensions(), {items, &eight}));
  Dim levels{"K"};
  FDJAX_RETURN_IF_ERROR(
      check_shape("parts", a.parts.dimensions(), {&levels, &d->rows, &four}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("about", a.about->dimensions(), {&d->rows, &d->q_heads, &two}));
  FDJAX_RETURN_IF_ERROR(check_shape("records", a.records->dimensions(),
                                    {records, &d->kv_heads, &rows, &sums}));
  FDJAX_RETURN_IF_ERROR(check_range("K", *levels, 0, shared_prefix::kMaxLevels));
  FDJAX_RETURN_IF_ERROR(check_range("Hkv", *d->kv_heads, 1, kInt32));
  return prefill_attention::check_limits(*d);
}

// Positions do not matter to what is shared.
ffi::Error check_scores(const Attributes& attributes, const Arguments& a) {
  constexpr int64_t kAll = paged::kAllTokens;
  for (const paged::Attributes& each : {attributes.own.attention, attributes.shared}) {
    FDJAX_RETURN_IF_ERROR(check_range("window", each.scores.window, kAll, kAll));
  }
  FDJAX_RETURN_IF_ERROR(prefill_attention::check_scale(attributes.shared.scores.scale));
  if (is_absent(a.shared.slopes)) return ffi::Error::Success();
  return invalid("there are slopes; rows that share prefixes have none");
}

prefill_attention::Params prefixes_of(const paged::Attributes& attributes,
                                      const Arguments& a, const paged::Dims& d,
                                      int64_t items, int64_t records) {
  return {
      .attention = decode_attention::params_of(attributes, a.shared, d,
                                               a.own.call.out->untyped_data(), nullptr),
      .tiles = reinterpret_cast<const prefill_attention::Tile*>(a.work.typed_data()),
      .num_tiles = static_cast<int>(items),
      .queries = static_cast<int>(*d.rows),
      .num_records = static_cast<int>(records),
      .records = a.records->typed_data(),
      .order = a.order.typed_data()};
}

ffi::Error run(gpu_stream stream, const Attributes& attributes, const Arguments& a) {
  decode_attention::Dims rows;
  decode_attention::Params own;
  FDJAX_RETURN_IF_ERROR(decode_attention::read(attributes.own, a.own, &rows, &own));
  paged::Dims d;
  Dim items{"M"}, records{"R"};
  FDJAX_RETURN_IF_ERROR(check(a, &d, &items, &records));
  FDJAX_RETURN_IF_ERROR(paged::check_values(attributes.shared, d));
  FDJAX_RETURN_IF_ERROR(check_scores(attributes, a));
  if (*d.rows == 0) return ffi::Error::Success();
  own.about = a.about->typed_data();
  const prefill_attention::Params prefixes =
      prefixes_of(attributes.shared, a, d, *items, *records);
  const Joining joining{
      .parts = reinterpret_cast<const prefill_attention::Part*>(a.parts.typed_data()),
      .about = own.about,
      .levels = static_cast<int>(a.parts.dimensions()[0])};
  const auto config =
      decode_attention::config_of(attributes.own.launch, /*programmatic=*/false);
  return launch_16_bits("shared_prefix", a.shared.q.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const cudaError_t error =
        decode_attention::launch_decode_attention<T>(stream, own, config);
    if (error != cudaSuccess || *items == 0) return error;
    return prefill_attention::launch_shared_prefixes<T>(stream, prefixes, joining);
  });
}

// Sinks are among a row's own keys; what is shared has none.
ffi::Error handle(gpu_stream stream, const Attributes& attributes, ffi::AnyBuffer q,
                  ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> own_table,
                  ffi::Buffer<ffi::S32> own_lengths, ffi::Buffer<ffi::F32> slopes,
                  ffi::Buffer<ffi::F32> sinks, ffi::Buffer<ffi::S32> plan,
                  ffi::Buffer<ffi::S32> page_table, ffi::Buffer<ffi::S32> lengths,
                  ffi::Buffer<ffi::S32> order, ffi::Buffer<ffi::S32> work,
                  ffi::Buffer<ffi::S32> parts, ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed,
                  ffi::Result<ffi::Buffer<ffi::F32>> own_records,
                  ffi::Result<ffi::Buffer<ffi::F32>> about,
                  ffi::Result<ffi::Buffer<ffi::F32>> records) {
  return run(stream, attributes,
             {{{{q, kv, own_table, own_lengths, slopes, sinks}, out, recomputed},
               plan,
               own_records},
              {q, kv, page_table, lengths, slopes, slopes},
              order,
              work,
              parts,
              about,
              records});
}

}  // namespace
}  // namespace fdjax::shared_prefix

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_shared_prefix_gpu, fdjax::shared_prefix::handle,
    fdjax::decode_attention::bind_operands(
        xla::ffi::Ffi::Bind()
            .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
            .Attr<fdjax::shared_prefix::Attributes>("attributes"))
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
        .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
        .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
        .Ret<xla::ffi::Buffer<xla::ffi::F32>>(),
    {xla::ffi::Traits::kCmdBufferCompatible});
