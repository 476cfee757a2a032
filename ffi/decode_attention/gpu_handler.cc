// decode_attention on a GPU: checks and launch.
#include "decode_attention/arguments.h"
#include "decode_attention/launch.h"

namespace fdjax::decode_attention {
namespace {

// How the work is cut; config.py says how it is chosen.
struct Cut {
  int64_t splits, heads_per_block, warps;
};

ffi::Error check_head_dim(int64_t size) {
  for (const int64_t served : {64, 80, 96, 128, 256}) {
    if (size == served) return ffi::Error::Success();
  }
  return invalid("D is " + std::to_string(size) +
                 "; the handler takes 64, 80, 96, 128 and 256");
}

// What the kernel's tiles and grid have room for.
ffi::Error check_kernel(const Dims& d) {
  const bool large = *d.head_dim == 64 || *d.head_dim == 128;
  FDJAX_RETURN_IF_ERROR(
      check_range("Hq / Hkv", *d.q_heads / *d.kv_heads, 1, large ? 16 : 8));
  FDJAX_RETURN_IF_ERROR(check_range("Z", *d.page_size, 8, 128));
  FDJAX_RETURN_IF_ERROR(check_range("B", *d.rows, 0, 65535));
  return check_head_dim(*d.head_dim);
}

ffi::Error check_cut(const Cut& cut, const Dims& d) {
  FDJAX_RETURN_IF_ERROR(check_range("splits", cut.splits, 1, 8));
  if (cut.warps != 4 && cut.warps != 8 && cut.warps != 16) {
    return invalid("warps is " + std::to_string(cut.warps) +
                   "; the handler takes 4, 8 and 16");
  }
  FDJAX_RETURN_IF_ERROR(check_range("heads_per_block", cut.heads_per_block, 1, 8));
  if (cut.warps % cut.heads_per_block != 0 || *d.kv_heads % cut.heads_per_block != 0) {
    return invalid("heads_per_block is " + std::to_string(cut.heads_per_block) +
                   "; it must divide warps = " + std::to_string(cut.warps) +
                   " and Hkv = " + std::to_string(*d.kv_heads));
  }
  return ffi::Error::Success();
}

ffi::Error run(gpu_stream stream, const Attributes& attributes, const Cut& cut,
               const Arguments& arguments) {
  Dims d;
  FDJAX_RETURN_IF_ERROR(check_buffers(arguments, &d));
  FDJAX_RETURN_IF_ERROR(check_values(attributes, d));
  FDJAX_RETURN_IF_ERROR(check_kernel(d));
  FDJAX_RETURN_IF_ERROR(check_cut(cut, d));
  if (*d.rows == 0) return ffi::Error::Success();
  const Params p = params_of(attributes, arguments, d);
  const Launch how{.splits = static_cast<int>(cut.splits),
                   .heads_per_block = static_cast<int>(cut.heads_per_block),
                   .warps = static_cast<int>(cut.warps),
                   .programmatic = false};
  cudaError_t error;
  switch (const ffi::DataType dtype = arguments.in.q.element_type()) {
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
                  ffi::Buffer<ffi::F32> sinks, ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed) {
  return run(stream, {layer, scale, soft_cap, window, scheme, phi, low, high},
             {splits, heads_per_block, warps},
             {{q, kv, page_table, lengths, slopes, sinks}, out, recomputed});
}

}  // namespace

}  // namespace fdjax::decode_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_decode_attention_gpu, fdjax::decode_attention::handle,
    fdjax::decode_attention::bind_buffers(
        fdjax::decode_attention::bind_attributes(
            xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>())
            .Attr<int64_t>("splits")
            .Attr<int64_t>("heads_per_block")
            .Attr<int64_t>("warps")),
    {xla::ffi::Traits::kCmdBufferCompatible});
