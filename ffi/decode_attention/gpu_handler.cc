// decode_attention on a GPU: checks and launch.
#include "decode_attention/gpu_check.h"
#include "decode_attention/launch.h"

namespace fdjax::decode_attention {

struct GpuAttributes {
  Attributes attention;
  SchemeAttributes scheme;
  LaunchAttributes launch;
  bool by_slot;  // the page table has slots
};

}  // namespace fdjax::decode_attention

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    fdjax::decode_attention::GpuAttributes,
    StructMember<fdjax::paged::Attributes>("attention"),
    StructMember<fdjax::decode_attention::SchemeAttributes>("scheme"),
    StructMember<fdjax::decode_attention::LaunchAttributes>("launch"),
    StructMember<bool>("by_slot"));

namespace fdjax::decode_attention {
namespace {

ffi::Error run(gpu_stream stream, const GpuAttributes& a, const Arguments& arguments,
               const ffi::Buffer<ffi::S32>& plan,
               ffi::Result<ffi::Buffer<ffi::F32>> records,
               ffi::Result<ffi::Buffer<ffi::F32>> about) {
  Dims d;
  FDJAX_RETURN_IF_ERROR(check_buffers(arguments, &d));
  FDJAX_RETURN_IF_ERROR(check_values(a.attention, d));
  FDJAX_RETURN_IF_ERROR(check_kernel(d));
  FDJAX_RETURN_IF_ERROR(check_config(a.launch, d, plan, records));
  const bool with_about = !is_absent(*about);
  if (with_about) {
    Dim two{"2", 2};
    FDJAX_RETURN_IF_ERROR(
        check_shape("about", about->dimensions(), {&d.rows, &d.q_heads, &two}));
  }
  if (*d.rows == 0) return ffi::Error::Success();
  Params p = params_of(a.attention, a.scheme, arguments, d);
  if (a.by_slot) p = paged::by_slot(p);
  p.plan = counters_of(plan);
  p.records = records->typed_data();
  p.about = with_about ? about->typed_data() : nullptr;
  const LaunchConfig config = config_of(a.launch, /*programmatic=*/false);
  cudaError_t error;
  switch (const ffi::DataType dtype = arguments.in.q.element_type()) {
    case ffi::DataType::BF16:
      error = launch_decode_attention<GpuFloats::bfloat16>(stream, p, config);
      break;
    case ffi::DataType::F16:
      error = launch_decode_attention<GpuFloats::float16>(stream, p, config);
      break;
    default:
      return invalid("q has element type " + std::to_string(static_cast<int>(dtype)) +
                     "; the handler takes bfloat16 and float16");
  }
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("decode_attention: ") +
                              cudaGetErrorString(error));
}

ffi::Error handle(gpu_stream stream, const GpuAttributes& attributes, ffi::AnyBuffer q,
                  ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::F32> slopes,
                  ffi::Buffer<ffi::F32> sinks, ffi::Buffer<ffi::S32> plan,
                  ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed,
                  ffi::Result<ffi::Buffer<ffi::F32>> records,
                  ffi::Result<ffi::Buffer<ffi::F32>> about) {
  return run(stream, attributes,
             {{q, kv, page_table, lengths, slopes, sinks}, out, recomputed}, plan,
             records, about);
}

}  // namespace

}  // namespace fdjax::decode_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_decode_attention_gpu, fdjax::decode_attention::handle,
    fdjax::decode_attention::bind_operands(
        xla::ffi::Ffi::Bind()
            .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
            .Attr<fdjax::decode_attention::GpuAttributes>("attributes"))
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
        .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
        .Ret<xla::ffi::Buffer<xla::ffi::F32>>(),
    {xla::ffi::Traits::kCmdBufferCompatible});
