// decode_attention on a GPU: checks and launch.
#include "decode_attention/gpu_arguments.h"
#include "decode_attention/launch.h"
#include "fdjax/gpu_dispatch.h"

namespace fdjax::decode_attention {
namespace {

ffi::Error run(gpu_stream stream, const GpuAttributes& a,
               const GpuArguments& arguments) {
  Dims d;
  Params p;
  FDJAX_RETURN_IF_ERROR(read(a, arguments, &d, &p));
  if (*d.rows == 0) return ffi::Error::Success();
  const LaunchConfig config = config_of(a.launch, /*programmatic=*/false);
  return launch_16_bits("decode_attention", arguments.call.in.q.element_type(),
                        [&](auto type) {
                          return launch_decode_attention<typename decltype(type)::type>(
                              stream, p, config);
                        });
}

ffi::Error handle(gpu_stream stream, const GpuAttributes& attributes, ffi::AnyBuffer q,
                  ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::F32> slopes,
                  ffi::Buffer<ffi::F32> sinks, ffi::Buffer<ffi::S32> plan,
                  ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed,
                  ffi::Result<ffi::Buffer<ffi::F32>> records) {
  return run(
      stream, attributes,
      {{{q, kv, page_table, lengths, slopes, sinks}, out, recomputed}, plan, records});
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
        .Ret<xla::ffi::Buffer<xla::ffi::F32>>(),
    {xla::ffi::Traits::kCmdBufferCompatible});
