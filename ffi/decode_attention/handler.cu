// decode_attention on a GPU: checks and launch.
#include "decode_attention/arguments.h"
#include "decode_attention/launch.cuh"

namespace fdjax::decode_attention {
namespace {

ffi::Error check_head_dim(int64_t size) {
  for (const int64_t served : {64, 80, 96, 128, 256}) {
    if (size == served) return ffi::Error::Success();
  }
  return invalid("D is " + std::to_string(size) +
                 "; the handler takes 64, 80, 96, 128 and 256");
}

ffi::Error run(gpu_stream stream, const Attributes& attributes,
               const Arguments& arguments) {
  Dims d;
  FDJAX_RETURN_IF_ERROR(check_buffers(arguments, &d));
  FDJAX_RETURN_IF_ERROR(check_values(attributes, d));
  FDJAX_RETURN_IF_ERROR(check_head_dim(*d.head_dim));
  if (*d.rows == 0) return ffi::Error::Success();
  const Params p = params_of(attributes, arguments, d);
  const Launch how{.splits = static_cast<int>(attributes.splits),
                   .heads_per_block = static_cast<int>(attributes.heads_per_block),
                   .warps = static_cast<int>(attributes.warps),
                   .programmatic = false};
  cudaError_t error;
  switch (const ffi::DataType dtype = arguments.q.element_type()) {
    case ffi::DataType::BF16:
      error = launch_decode_attention<GpuFloats::bfloat16>(stream, p, how);
      break;
    case ffi::DataType::F16:
      error = launch_decode_attention<GpuFloats::float16>(stream, p, how);
      break;
    default:
      return invalid("q has element type " + std::to_string(static_cast<int>(dtype)) +
                     "; the handler takes bfloat16 and float16");
  }
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("decode_attention: ") +
                              cudaGetErrorString(error));
}

ffi::Error handle(gpu_stream stream, int64_t layer, float scale, float soft_cap,
                  int64_t window, std::string_view scheme, float phi, float low,
                  float high, int64_t splits, int64_t heads_per_block, int64_t warps,
                  ffi::AnyBuffer q, ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::F32> slopes,
                  ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed) {
  return run(stream,
             {layer, scale, soft_cap, window, scheme, phi, low, high, splits,
              heads_per_block, warps},
             {q, kv, page_table, lengths, slopes, out, recomputed});
}

}  // namespace

// For handlers that chain kernels.
template cudaError_t launch_decode_attention<GpuFloats::bfloat16>(cudaStream_t,
                                                                  const Params&,
                                                                  const Launch&);
template cudaError_t launch_decode_attention<GpuFloats::float16>(cudaStream_t,
                                                                 const Params&,
                                                                 const Launch&);

}  // namespace fdjax::decode_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_decode_attention_gpu, fdjax::decode_attention::handle,
    fdjax::decode_attention::bind_arguments(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()),
    {xla::ffi::Traits::kCmdBufferCompatible});
