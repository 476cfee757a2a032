// decode_attention on a GPU: checks and launch.
#include "decode_attention/gpu_check.h"
#include "decode_attention/launch.h"

namespace fdjax::decode_attention {
namespace {

ffi::Error run(gpu_stream stream, const Attributes& attributes,
               const LaunchConfig& config, const Arguments& arguments,
               const ffi::Buffer<ffi::S32>& plan,
               ffi::Result<ffi::Buffer<ffi::F32>> records,
               ffi::Result<ffi::Buffer<ffi::F32>> about, bool has_slots) {
  Dims d;
  FDJAX_RETURN_IF_ERROR(check_buffers(arguments, &d));
  FDJAX_RETURN_IF_ERROR(check_values(attributes, d));
  FDJAX_RETURN_IF_ERROR(check_kernel(d));
  FDJAX_RETURN_IF_ERROR(check_config(config, d, plan, records));
  const bool with_about = about->element_count() != 0;
  if (with_about) {
    Dim two{"2", 2};
    FDJAX_RETURN_IF_ERROR(
        check_shape("about", about->dimensions(), {&d.rows, &d.q_heads, &two}));
  }
  if (*d.rows == 0) return ffi::Error::Success();
  Params p = params_of(attributes, arguments, d);
  if (has_slots) p = by_slot(p);
  p.plan = counters_of(plan);
  p.records = records->typed_data();
  p.about = with_about ? about->typed_data() : nullptr;
  const Launch how = launch_of(config, /*programmatic=*/false);
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
                  float high, int64_t slots, int64_t splits, int64_t heads,
                  int64_t warps, int64_t max_items, int64_t max_pieces, bool by_slot,
                  ffi::AnyBuffer q, ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::F32> slopes,
                  ffi::Buffer<ffi::F32> sinks, ffi::Buffer<ffi::S32> plan,
                  ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed,
                  ffi::Result<ffi::Buffer<ffi::F32>> records,
                  ffi::Result<ffi::Buffer<ffi::F32>> about) {
  return run(stream, {layer, scale, soft_cap, window, scheme, phi, low, high},
             {slots, splits, heads, warps, max_items, max_pieces},
             {{q, kv, page_table, lengths, slopes, sinks}, out, recomputed}, plan,
             records, about, by_slot);
}

}  // namespace

}  // namespace fdjax::decode_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_decode_attention_gpu, fdjax::decode_attention::handle,
    fdjax::decode_attention::bind_operands(
        fdjax::decode_attention::bind_config(
            fdjax::decode_attention::bind_attributes(
                xla::ffi::Ffi::Bind()
                    .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()))
            .Attr<bool>("by_slot"))
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
        .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
        .Ret<xla::ffi::Buffer<xla::ffi::F32>>(),
    {xla::ffi::Traits::kCmdBufferCompatible});
