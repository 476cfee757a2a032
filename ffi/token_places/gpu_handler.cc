// token_places on a GPU: checks and launch.
#include "fdjax/check.h"
#include "token_places/limits.h"
#include "token_places/params.h"

namespace fdjax::token_places {

struct Attributes {
  int64_t page_size;
};

}  // namespace fdjax::token_places

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(fdjax::token_places::Attributes,
                                      StructMember<int64_t>("page_size"));

namespace fdjax::token_places {
namespace {

ffi::Error handle(gpu_stream stream, const Attributes& a,
                  ffi::Buffer<ffi::S32> page_table, ffi::Buffer<ffi::S32> lengths,
                  ffi::Buffer<ffi::S32> starts, ffi::Buffer<ffi::S32> firsts,
                  ffi::Result<ffi::Buffer<ffi::S32>> positions,
                  ffi::Result<ffi::Buffer<ffi::S32>> slots) {
  Dim rows{"B"}, width{"W"}, tokens{"T"};
  FDJAX_RETURN_IF_ERROR(
      check_shape("page_table", page_table.dimensions(), {&rows, &width}));
  FDJAX_RETURN_IF_ERROR(check_shape("lengths", lengths.dimensions(), {&rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("starts", starts.dimensions(), {&rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("firsts", firsts.dimensions(), {&rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("positions", positions->dimensions(), {&tokens}));
  FDJAX_RETURN_IF_ERROR(check_shape("slots", slots->dimensions(), {&tokens}));
  if (*tokens == 0) return ffi::Error::Success();
  if (*rows < 1 || *rows > kInt32 || *width > kInt32 || *tokens > kInt32 / 2) {
    return ffi::Error::InvalidArgument("there is no row, or too much of something");
  }
  if (a.page_size < 1 || a.page_size > kMaxPageSize) {
    return ffi::Error::InvalidArgument("page_size is " + std::to_string(a.page_size) +
                                       "; the handler takes 1 to " +
                                       std::to_string(kMaxPageSize));
  }
  const gpu_error error =
      launch_places(stream, {.page_table = page_table.typed_data(),
                             .lengths = lengths.typed_data(),
                             .starts = starts.typed_data(),
                             .firsts = firsts.typed_data(),
                             .positions = positions->typed_data(),
                             .slots = slots->typed_data(),
                             .tokens = static_cast<int>(*tokens),
                             .rows = static_cast<int>(*rows),
                             .width = static_cast<int>(*width),
                             .page_size = static_cast<int>(a.page_size)});
  if (error == kGpuSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("token_places: ") + gpu_error_string(error));
}

}  // namespace
}  // namespace fdjax::token_places

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_token_places_gpu, fdjax::token_places::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<fdjax::token_places::Attributes>("attributes")
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
