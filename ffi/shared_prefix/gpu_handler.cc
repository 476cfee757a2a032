// shared_prefix on a GPU: checks and launch. Its kernels are prefill_attention's.
#include "prefill_attention/arguments.h"
#include "prefill_attention/launch.h"

namespace fdjax::shared_prefix {
namespace {

using paged::check_range;
using paged::invalid;
using prefill_attention::Joining;
using prefill_attention::kTileRows;
using prefill_attention::Params;

struct Arguments {
  paged::Inputs in;
  ffi::Buffer<ffi::S32> order, work, parts;
  ffi::AnyBuffer own;
  ffi::Buffer<ffi::F32> about;
  ffi::Result<ffi::AnyBuffer> out;
  ffi::Result<ffi::Buffer<ffi::F32>> records;
};

// The shapes of what is not every attention's.
ffi::Error check(const Arguments& a, paged::Dims* d, Dim* items, Dim* records) {
  FDJAX_RETURN_IF_ERROR(paged::check_call(a.in, a.out, &d->rows, d));
  Dim two{"2", 2}, four{"4", 4}, eight{"8", 8}, rows{"128", kTileRows},
      sums{"D + 2", *d->head_dim + 2};
  FDJAX_RETURN_IF_ERROR(check_shape("order", a.order.dimensions(), {&d->rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("work", a.work.dimensions(), {items, &eight}));
  Dim levels{"K"};
  FDJAX_RETURN_IF_ERROR(
      check_shape("parts", a.parts.dimensions(), {&levels, &d->rows, &four}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("about", a.about.dimensions(), {&d->rows, &d->q_heads, &two}));
  FDJAX_RETURN_IF_ERROR(check_shape("records", a.records->dimensions(),
                                    {records, &d->kv_heads, &rows, &sums}));
  if (a.own.untyped_data() != a.out->untyped_data()) {
    return invalid("out is another array than own; the handler adds in place");
  }
  FDJAX_RETURN_IF_ERROR(check_range("K", *levels, 0, shared_prefix::kMaxLevels));
  FDJAX_RETURN_IF_ERROR(check_range("Hkv", *d->kv_heads, 1, kInt32));
  return prefill_attention::check_limits(*d);
}

ffi::Error run(gpu_stream stream, const paged::Attributes& attributes,
               const Arguments& a) {
  paged::Dims d;
  Dim items{"M"}, records{"R"};
  FDJAX_RETURN_IF_ERROR(check(a, &d, &items, &records));
  FDJAX_RETURN_IF_ERROR(paged::check_values(attributes, d));
  FDJAX_RETURN_IF_ERROR(check_range("window", attributes.scores.window,
                                    paged::kAllTokens, paged::kAllTokens));
  if (*d.rows == 0 || *items == 0) return ffi::Error::Success();
  const Params p{
      .attention = decode_attention::params_of(attributes, a.in, d,
                                               a.out->untyped_data(), nullptr),
      .tiles = reinterpret_cast<const prefill_attention::Tile*>(a.work.typed_data()),
      .num_tiles = static_cast<int>(*items),
      .queries = static_cast<int>(*d.rows),
      .num_records = static_cast<int>(*records),
      .records = a.records->typed_data(),
      .order = a.order.typed_data()};
  const Joining joining{
      .parts = reinterpret_cast<const prefill_attention::Part*>(a.parts.typed_data()),
      .about = a.about.typed_data(),
      .levels = static_cast<int>(a.parts.dimensions()[0])};
  cudaError_t error;
  switch (const ffi::DataType dtype = a.in.q.element_type()) {
    case ffi::DataType::BF16:
      error = prefill_attention::launch_shared_prefixes<GpuFloats::bfloat16>(stream, p,
                                                                             joining);
      break;
    case ffi::DataType::F16:
      error = prefill_attention::launch_shared_prefixes<GpuFloats::float16>(stream, p,
                                                                            joining);
      break;
    default:
      return invalid("q has element type " + std::to_string(static_cast<int>(dtype)) +
                     "; the handler takes bfloat16 and float16");
  }
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("shared_prefix: ") +
                              cudaGetErrorString(error));
}

// Sinks are among a query's own keys; what is shared has none.
ffi::Error handle(gpu_stream stream, const paged::Attributes& attributes,
                  ffi::AnyBuffer q, ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::F32> none,
                  ffi::Buffer<ffi::S32> order, ffi::Buffer<ffi::S32> work,
                  ffi::Buffer<ffi::S32> parts, ffi::AnyBuffer own,
                  ffi::Buffer<ffi::F32> about, ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::F32>> records) {
  return run(stream, attributes,
             {{q, kv, page_table, lengths, none, none},
              order,
              work,
              parts,
              own,
              about,
              out,
              records});
}

}  // namespace
}  // namespace fdjax::shared_prefix

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_shared_prefix_gpu, fdjax::shared_prefix::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<fdjax::paged::Attributes>("attributes")
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
