// embedding on a GPU: checks and launch.
#include "embedding/launch.h"
#include "fdjax/check.h"
#include "fdjax/dispatch.h"

namespace fdjax::embedding {

struct Attributes {
  float scale;  // of the tokens' vectors; 1: none
};

}  // namespace fdjax::embedding

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(fdjax::embedding::Attributes,
                                      StructMember<float>("scale"));

namespace fdjax::embedding {
namespace {

// Vectors of one size and type, and an id for each row.
ffi::Error read_table(const char* name, ffi::AnyBuffer vectors,
                      ffi::Buffer<ffi::S32> ids, Dim* rows, Dim* size, Table* table) {
  Dim count{"count"};
  FDJAX_RETURN_IF_ERROR(check_shape(name, vectors.dimensions(), {&count, size}));
  FDJAX_RETURN_IF_ERROR(check_shape("ids", ids.dimensions(), {rows}));
  if (*count < 1 || *count > kInt32) {
    return ffi::Error::InvalidArgument(std::string(name) + " has " +
                                       std::to_string(*count) + " vectors");
  }
  *table = {.vectors = vectors.untyped_data(),
            .ids = ids.typed_data(),
            .count = static_cast<int>(*count),
            .offset = 0};
  return ffi::Error::Success();
}

ffi::Error handle(gpu_stream stream, const Attributes& attributes, ffi::AnyBuffer table,
                  ffi::Buffer<ffi::S32> tokens, ffi::AnyBuffer position_table,
                  ffi::Buffer<ffi::S32> positions, ffi::Result<ffi::AnyBuffer> out) {
  Params p{};
  Dim rows{"T"}, size{"E"};
  const ffi::DataType dtype = table.element_type();
  FDJAX_RETURN_IF_ERROR(check_shape("out", out->dimensions(), {&rows, &size}));
  FDJAX_RETURN_IF_ERROR(check_dtype("out", out->element_type(), "table", dtype));
  FDJAX_RETURN_IF_ERROR(read_table("table", table, tokens, &rows, &size, &p.tokens));
  if (!is_absent(position_table)) {
    FDJAX_RETURN_IF_ERROR(
        check_dtype("position_table", position_table.element_type(), "table", dtype));
    FDJAX_RETURN_IF_ERROR(read_table("position_table", position_table, positions, &rows,
                                     &size, &p.positions));
  }
  if (*rows > kInt32 || *size > kInt32) {
    return ffi::Error::InvalidArgument("there are too many tokens or elements");
  }
  if (*rows == 0 || *size == 0) return ffi::Error::Success();
  p.out = out->untyped_data();
  p.rows = static_cast<int>(*rows);
  p.size = static_cast<int>(*size);
  p.scale = attributes.scale;
  return dispatch_float<GpuFloats>("table", dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (p.size % kVec<T> != 0) {
      return ffi::Error::InvalidArgument(
          "table: dimension E is " + std::to_string(p.size) +
          "; it must be a multiple of " + std::to_string(kVec<T>));
    }
    const gpu_error error = launch_rows<T>(stream, p);
    if (error == kGpuSuccess) return ffi::Error::Success();
    return ffi::Error::Internal(std::string("embedding: ") + gpu_error_string(error));
  });
}

}  // namespace
}  // namespace fdjax::embedding

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_embedding_gpu, fdjax::embedding::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<fdjax::embedding::Attributes>("attributes")
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Ret<xla::ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
