// prefill_plan on a GPU: checks and launch.
#include "decode_attention/gpu_check.h"
#include "prefill_plan/params.h"

namespace fdjax::prefill_plan {

struct Attributes {
  int64_t tiles, records;
  int64_t queries;
  int64_t max_tokens;
  int64_t tile_tokens;
  int64_t window;  // paged::kAllTokens: none
  float blocks;
};

}  // namespace fdjax::prefill_plan

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    fdjax::prefill_plan::Attributes, StructMember<int64_t>("tiles"),
    StructMember<int64_t>("records"), StructMember<int64_t>("queries"),
    StructMember<int64_t>("max_tokens"), StructMember<int64_t>("tile_tokens"),
    StructMember<int64_t>("window"), StructMember<float>("blocks"));

namespace fdjax::prefill_plan {
namespace {

using paged::check_range, paged::invalid;

ffi::Error check(const Attributes& a, int64_t rows) {
  FDJAX_RETURN_IF_ERROR(check_range("B", rows, 1, kMaxRows));
  FDJAX_RETURN_IF_ERROR(check_range("queries", a.queries, 0, kInt32));
  FDJAX_RETURN_IF_ERROR(
      check_range("tile_tokens", a.tile_tokens, 1, prefill_attention::kTileRows));
  FDJAX_RETURN_IF_ERROR(
      check_range("tiles", a.tiles, a.queries / a.tile_tokens + rows, kMaxTiles));
  if (a.records > 0) {
    FDJAX_RETURN_IF_ERROR(
        check_range("tiles + records", a.tiles + a.records, 1, kMaxPieces));
  }
  FDJAX_RETURN_IF_ERROR(check_range("records", a.records, 0, kMaxPieces));
  FDJAX_RETURN_IF_ERROR(check_range("max_tokens", a.max_tokens, 0, paged::kMaxTokens));
  FDJAX_RETURN_IF_ERROR(check_range("window", a.window, 1, paged::kAllTokens));
  if (a.blocks > 0) return ffi::Error::Success();
  return invalid("blocks is " + std::to_string(a.blocks) + "; it must be above 0");
}

ffi::Error handle(gpu_stream stream, const Attributes& a, ffi::Buffer<ffi::S32> lengths,
                  ffi::Buffer<ffi::S32> starts, ffi::Buffer<ffi::S32> firsts,
                  ffi::Result<ffi::Buffer<ffi::S32>> work) {
  Dim rows{"B"}, items{"M", a.tiles + a.records};
  Dim integers{"integers", prefill_attention::kTileIntegers};
  FDJAX_RETURN_IF_ERROR(check_shape("lengths", lengths.dimensions(), {&rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("starts", starts.dimensions(), {&rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("firsts", firsts.dimensions(), {&rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("work", work->dimensions(), {&items, &integers}));
  FDJAX_RETURN_IF_ERROR(check(a, *rows));
  const Params p{.lengths = lengths.typed_data(),
                 .starts = starts.typed_data(),
                 .firsts = firsts.typed_data(),
                 .work = reinterpret_cast<Tile*>(work->typed_data()),
                 .rows = static_cast<int>(*rows),
                 .tiles = static_cast<int>(a.tiles),
                 .records = static_cast<int>(a.records),
                 .queries = static_cast<int>(a.queries),
                 .max_tokens = static_cast<int>(a.max_tokens),
                 .tile_tokens = static_cast<int>(a.tile_tokens),
                 .window = static_cast<int>(a.window),
                 .blocks = a.blocks};
  const gpu_error error = launch_plan(stream, p);
  if (error == kGpuSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("prefill_plan: ") + gpu_error_string(error));
}

}  // namespace
}  // namespace fdjax::prefill_plan

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_prefill_plan_gpu, fdjax::prefill_plan::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<fdjax::prefill_plan::Attributes>("attributes")
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
