// attention_plan on a GPU: checks and launch.
#include "attention_plan/launch.h"
#include "decode_attention/gpu_check.h"

namespace fdjax::attention_plan {
namespace {

using decode_attention::check_power, decode_attention::check_range,
    decode_attention::invalid;

struct Attributes {
  int64_t kv_heads, room, window, slots, heads, max_items, max_pieces;
};

ffi::Error check(const Attributes& a, int64_t rows) {
  FDJAX_RETURN_IF_ERROR(check_range("kv_heads", a.kv_heads, 1, kMaxKvHeads));
  FDJAX_RETURN_IF_ERROR(check_range("B", rows, 1, kMaxRows));
  FDJAX_RETURN_IF_ERROR(check_range("room", a.room, 0, decode_attention::kMaxTokens));
  FDJAX_RETURN_IF_ERROR(
      check_range("window", a.window, 1, decode_attention::kAllTokens));
  FDJAX_RETURN_IF_ERROR(check_range("slots", a.slots, 1, kMaxSlots));
  FDJAX_RETURN_IF_ERROR(check_power("heads", a.heads, kMaxHeads));
  if (a.kv_heads % a.heads != 0) {
    return invalid("heads is " + std::to_string(a.heads) +
                   "; it must divide kv_heads = " + std::to_string(a.kv_heads));
  }
  FDJAX_RETURN_IF_ERROR(
      check_range("max_items", a.max_items, rows * a.kv_heads / a.heads, kMaxItems));
  return check_range("max_pieces", a.max_pieces, 0, kMaxPieces);
}

ffi::Error handle(gpu_stream stream, int64_t kv_heads, int64_t room, int64_t window,
                  int64_t slots, int64_t heads, int64_t max_items, int64_t max_pieces,
                  ffi::Buffer<ffi::S32> lengths,
                  ffi::Result<ffi::Buffer<ffi::S32>> plan) {
  const Attributes a{kv_heads, room, window, slots, heads, max_items, max_pieces};
  Dim rows{"B"};
  FDJAX_RETURN_IF_ERROR(check_shape("lengths", lengths.dimensions(), {&rows}));
  FDJAX_RETURN_IF_ERROR(check(a, *rows));
  Dim integers("integers of the plan", plan_size(*rows, kv_heads, max_items));
  FDJAX_RETURN_IF_ERROR(check_shape("plan", plan->dimensions(), {&integers}));
  const Params p{.lengths = lengths.typed_data(),
                 .plan = plan->typed_data(),
                 .shape = {.rows = static_cast<int>(*rows),
                           .kv_heads = static_cast<int>(kv_heads),
                           .slots = static_cast<int>(slots),
                           .heads = static_cast<int>(heads),
                           .max_items = static_cast<int>(max_items),
                           .max_pieces = static_cast<int>(max_pieces)},
                 .room = static_cast<int>(room),
                 .window = static_cast<int>(window)};
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
                                  .Attr<int64_t>("kv_heads")
                                  .Attr<int64_t>("room")
                                  .Attr<int64_t>("window")
                                  .Attr<int64_t>("slots")
                                  .Attr<int64_t>("heads")
                                  .Attr<int64_t>("max_items")
                                  .Attr<int64_t>("max_pieces")
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
