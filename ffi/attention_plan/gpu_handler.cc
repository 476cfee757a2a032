// attention_plan on a GPU: checks and launch.
#include "attention_plan/launch.h"
#include "decode_attention/gpu_check.h"

namespace fdjax::attention_plan {

struct Attributes {
  int64_t kv_heads;
  int64_t room;    // tokens of a row in its pages
  int64_t window;  // paged::kAllTokens: none
  int64_t slots, heads, max_items, max_pieces;
  int64_t item_tokens;
  int64_t piece_tokens;  // 0: as is best for all rows
};

}  // namespace fdjax::attention_plan

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    fdjax::attention_plan::Attributes, StructMember<int64_t>("kv_heads"),
    StructMember<int64_t>("room"), StructMember<int64_t>("window"),
    StructMember<int64_t>("slots"), StructMember<int64_t>("heads"),
    StructMember<int64_t>("max_items"), StructMember<int64_t>("max_pieces"),
    StructMember<int64_t>("item_tokens"), StructMember<int64_t>("piece_tokens"));

namespace fdjax::attention_plan {
namespace {

using decode_attention::check_power, paged::check_range, paged::invalid;

ffi::Error check(const Attributes& a, int64_t rows) {
  FDJAX_RETURN_IF_ERROR(check_range("kv_heads", a.kv_heads, 1, kMaxKvHeads));
  FDJAX_RETURN_IF_ERROR(check_range("B", rows, 1, kMaxRows));
  FDJAX_RETURN_IF_ERROR(check_range("room", a.room, 0, paged::kMaxTokens));
  FDJAX_RETURN_IF_ERROR(check_range("window", a.window, 1, paged::kAllTokens));
  FDJAX_RETURN_IF_ERROR(check_range("slots", a.slots, 1, kMaxSlots));
  FDJAX_RETURN_IF_ERROR(check_power("heads", a.heads, kMaxHeads));
  if (a.kv_heads % a.heads != 0) {
    return invalid("heads is " + std::to_string(a.heads) +
                   "; it must divide kv_heads = " + std::to_string(a.kv_heads));
  }
  FDJAX_RETURN_IF_ERROR(
      check_range("max_items", a.max_items, rows * a.kv_heads / a.heads, kMaxItems));
  FDJAX_RETURN_IF_ERROR(check_range("item_tokens", a.item_tokens, 0, kMaxItemTokens));
  if (a.piece_tokens == 0) {
    return check_range("max_pieces", a.max_pieces, 0, kMaxPieces);
  }
  FDJAX_RETURN_IF_ERROR(
      check_range("piece_tokens", a.piece_tokens, kTileTokens, paged::kMaxTokens));
  // Rows are cut whatever others there are, so there is room for all that they may be.
  const int64_t piece_tiles = a.piece_tokens / kTileTokens;
  const int64_t pieces =
      std::min<int64_t>(kMaxRowPieces, a.room / (piece_tiles * kTileTokens) + 1);
  const int64_t needed = rows * a.kv_heads * pieces;
  FDJAX_RETURN_IF_ERROR(check_range("max_items", a.max_items, needed, kMaxItems));
  return check_range("max_pieces", a.max_pieces, needed, kMaxItems);
}

ffi::Error handle(gpu_stream stream, const Attributes& a, ffi::Buffer<ffi::S32> lengths,
                  ffi::Result<ffi::Buffer<ffi::S32>> plan) {
  Dim rows{"B"};
  FDJAX_RETURN_IF_ERROR(check_shape("lengths", lengths.dimensions(), {&rows}));
  FDJAX_RETURN_IF_ERROR(check(a, *rows));
  Dim integers("integers of the plan", plan_size(*rows, a.kv_heads, a.max_items));
  FDJAX_RETURN_IF_ERROR(check_shape("plan", plan->dimensions(), {&integers}));
  const Params p{.lengths = lengths.typed_data(),
                 .plan = plan->typed_data(),
                 .shape = {.rows = static_cast<int>(*rows),
                           .kv_heads = static_cast<int>(a.kv_heads),
                           .slots = static_cast<int>(a.slots),
                           .heads = static_cast<int>(a.heads),
                           .max_items = static_cast<int>(a.max_items),
                           .max_pieces = static_cast<int>(a.max_pieces)},
                 .item_tokens = static_cast<int>(a.item_tokens),
                 .room = static_cast<int>(a.room),
                 .window = static_cast<int>(a.window),
                 .piece_tiles = static_cast<int>(a.piece_tokens / kTileTokens)};
  const gpu_error error = launch_plan(stream, p);
  if (error == kGpuSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("attention_plan: ") +
                              gpu_error_string(error));
}

}  // namespace
}  // namespace fdjax::attention_plan

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_attention_plan_gpu, fdjax::attention_plan::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<fdjax::attention_plan::Attributes>("attributes")
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
