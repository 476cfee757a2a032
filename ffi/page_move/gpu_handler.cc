// page_move on a GPU: checks and launch.
#include <limits>
#include <string>
#include <utility>

#include "fdjax/check.h"
#include "page_move/launch.h"

namespace fdjax::page_move {
namespace {

ffi::Error invalid(std::string message) {
  return ffi::Error::InvalidArgument("page_move: " + std::move(message));
}

// Pages lie along the first axis; each is one block of the array.
ffi::Error read_pages(ffi::AnyBuffer kv, ffi::Result<ffi::AnyBuffer> out, Params* p) {
  const auto shape = kv.dimensions();
  if (kv.untyped_data() != out->untyped_data() ||
      kv.size_bytes() != out->size_bytes()) {
    return invalid("the result kv must alias the operand");
  }
  if (shape.size() == 0) return invalid("kv has no axis of pages");
  p->pages = out->untyped_data();
  p->num_pages = shape[0];
  const size_t page_bytes = shape[0] == 0 ? 0 : kv.size_bytes() / shape[0];
  if (page_bytes % kUnitBytes != 0) {
    return invalid("a page of kv has " + std::to_string(page_bytes) +
                   " bytes; they must be a multiple of " + std::to_string(kUnitBytes));
  }
  p->page_units = static_cast<int64_t>(page_bytes / kUnitBytes);
  if (p->page_units > std::numeric_limits<int>::max()) {
    return invalid("a page of kv has " + std::to_string(page_bytes) + " bytes");
  }
  return ffi::Error::Success();
}

ffi::Error handle(gpu_stream stream, ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> sources,
                  ffi::Buffer<ffi::S32> targets, ffi::Result<ffi::AnyBuffer> kv_out) {
  Params p{};
  Dim moves{"N"};
  FDJAX_RETURN_IF_ERROR(check_shape("sources", sources.dimensions(), {&moves}));
  FDJAX_RETURN_IF_ERROR(check_shape("targets", targets.dimensions(), {&moves}));
  FDJAX_RETURN_IF_ERROR(read_pages(kv, kv_out, &p));
  if (*moves > kMaxMoves) {
    return invalid(std::to_string(*moves) + " pages; the handler takes " +
                   std::to_string(kMaxMoves));
  }
  if (*moves == 0 || p.page_units == 0) return ffi::Error::Success();
  p.sources = sources.typed_data();
  p.targets = targets.typed_data();
  p.moves = static_cast<int>(*moves);
  const gpu_error error = launch_moves(stream, p);
  if (error == kGpuSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("page_move: ") + gpu_error_string(error));
}

}  // namespace
}  // namespace fdjax::page_move

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_page_move_gpu, fdjax::page_move::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
