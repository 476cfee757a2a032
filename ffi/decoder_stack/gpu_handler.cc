// decoder_stack on a GPU: checks, and the chain of all layers.
#include "decoder_stack/arguments.h"
#include "decoder_stack/stack.cuh"
#include "fdjax/gpu.h"

namespace fdjax::decoder_stack {
namespace {

Sizes sizes_of(const Dims& d) {
  return {.rows = static_cast<int>(*d.rows),
          .hidden = static_cast<int>(*d.hidden),
          .heads = static_cast<int>(*d.q_heads),
          .kv_heads = static_cast<int>(*d.kv_heads),
          .head_dim = static_cast<int>(*d.head_dim),
          .intermediate = static_cast<int>(*d.gated)};
}

decode_attention::Newest newest_of(const Attributes& a, const Operands& in,
                                   const Results& out, const Dims& d) {
  const float* cosines = in.angles.typed_data();
  return {.qkv = out.qkv->untyped_data(),
          .kv = out.kv->untyped_data(),
          .slots = in.slots.typed_data(),
          .cosines = cosines,
          .sines = cosines + *d.rows * *d.frequencies,
          .num_frequencies = static_cast<int>(*d.frequencies),
          .interleaved = a.interleaved};
}

decode_attention::Params attention_of(const Attributes& a, const Operands& in,
                                      const Results& out, const Dims& d,
                                      const Sizes& size) {
  decode_attention::Params p{};
  p.newest = newest_of(a, in, out, d);
  p.kv = out.kv->untyped_data();
  p.page_table = in.page_table.typed_data();
  p.lengths = in.lengths.typed_data();
  p.out = out.mixed->untyped_data();
  p.recomputed = out.recomputed->typed_data();
  p.plan = decode_attention::counters_of(in.plan);
  p.records = out.records->typed_data();
  p.slot_bytes = *d.kv_heads * *d.head_dim * 2;
  p.slots_per_page = static_cast<uint32_t>(*d.layers * 2 * *d.page_size);
  p.page_size = static_cast<uint32_t>(*d.page_size);
  p.num_pages = static_cast<uint32_t>(*d.pages);
  p.rows = size.rows;
  p.kv_heads = size.kv_heads;
  p.group = size.heads / size.kv_heads;
  p.head_dim = size.head_dim;
  p.table_width = static_cast<int>(*d.width);
  p.window =
      a.window > 0 ? static_cast<int>(a.window) : std::numeric_limits<int>::max();
  p.scale = a.scale;
  p.soft_cap = a.soft_cap;
  p.phi = a.phi;
  p.low = a.low;
  p.high = a.high;
  p.unified = a.unified;
  return p;
}

ffi::Error run(gpu_stream stream, const Attributes& a, const Operands& in,
               const Results& out) {
  Dims d;
  FDJAX_RETURN_IF_ERROR(check_buffers(in, out, &d));
  FDJAX_RETURN_IF_ERROR(check_values(a, in, out, &d));
  std::vector<Layer> layers;
  FDJAX_RETURN_IF_ERROR(read_layers(in, a.has_qkv_bias, &d, &layers));
  if (a.products.size() != kProducts * kProductNumbers) {
    return invalid("the attribute products has " + std::to_string(a.products.size()) +
                   " numbers");
  }
  if (uses_library(a)) FDJAX_RETURN_IF_ERROR(check_library(out, &d));
  const Sizes size = sizes_of(d);
  const int64_t layer_elements = 2 * *d.page_size * *d.kv_heads * *d.head_dim;
  const Stack stack{.sizes = size,
                    .buffers = {.x_in = in.x.untyped_data(),
                                .x = out.x->untyped_data(),
                                .middle = out.middle->untyped_data(),
                                .normal = out.normal->untyped_data(),
                                .qkv = out.qkv->untyped_data(),
                                .mixed = out.mixed->untyped_data(),
                                .gated = out.gated->untyped_data(),
                                .wide = out.wide->untyped_data()},
                    .plan = {.qkv = product_from(a, 0),
                             .out = product_from(a, 1),
                             .up = product_from(a, 2),
                             .down = product_from(a, 3),
                             .attention = decode_attention::launch_of(
                                 a.attention, /*programmatic=*/true)},
                    .norm = {.x = nullptr,  // x, scale and out differ from norm to norm
                             .delta = nullptr,
                             .scale = nullptr,
                             .bias = nullptr,
                             .sum = nullptr,
                             .out = nullptr,
                             .rows = size.rows,
                             .size = size.hidden,
                             .epsilon = a.epsilon,
                             .scale_offset = a.scale_offset},
                    .attention = attention_of(a, in, out, d, size),
                    .activation = static_cast<matmul::Activation>(a.activation),
                    .layer_bytes = layer_elements * 2,
                    .stream = stream};
  const auto chain = [&](auto type) {
    using T = typename decltype(type)::type;
    for (size_t i = 0; i < layers.size(); ++i) {
      const cudaError_t error = run_layer<T>(stack, layers[i], static_cast<int>(i));
      if (error != cudaSuccess) {
        return ffi::Error::Internal("decoder_stack: layer " + std::to_string(i) + ": " +
                                    cudaGetErrorString(error));
      }
    }
    return ffi::Error::Success();
  };
  switch (in.x.element_type()) {
    case ffi::DataType::BF16:
      return chain(std::type_identity<GpuFloats::bfloat16>{});
    case ffi::DataType::F16:
      return chain(std::type_identity<GpuFloats::float16>{});
    default:
      return invalid("x must be bfloat16 or float16");
  }
}

ffi::Error handle(gpu_stream stream, bool interleaved, bool has_qkv_bias, bool unified,
                  float scale, float soft_cap, float epsilon, float scale_offset,
                  float phi, float low, float high, int64_t activation, int64_t window,
                  int64_t slots_of_plan, int64_t splits, int64_t heads, int64_t warps,
                  int64_t max_items, int64_t max_pieces,
                  ffi::Span<const int64_t> products, ffi::AnyBuffer x,
                  ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> slots,
                  ffi::Buffer<ffi::S32> page_table, ffi::Buffer<ffi::S32> lengths,
                  ffi::Buffer<ffi::S32> plan, ffi::Buffer<ffi::F32> angles,
                  ffi::RemainingArgs weights, ffi::Result<ffi::AnyBuffer> x_out,
                  ffi::Result<ffi::AnyBuffer> kv_out,
                  ffi::Result<ffi::AnyBuffer> middle,
                  ffi::Result<ffi::AnyBuffer> normal, ffi::Result<ffi::AnyBuffer> qkv,
                  ffi::Result<ffi::AnyBuffer> mixed, ffi::Result<ffi::AnyBuffer> gated,
                  ffi::Result<ffi::AnyBuffer> wide,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed,
                  ffi::Result<ffi::Buffer<ffi::F32>> records) {
  const Attributes attributes{
      interleaved,
      has_qkv_bias,
      unified,
      scale,
      soft_cap,
      epsilon,
      scale_offset,
      phi,
      low,
      high,
      activation,
      window,
      {slots_of_plan, splits, heads, warps, max_items, max_pieces},
      products};
  return run(
      stream, attributes, {x, kv, slots, page_table, lengths, plan, angles, weights},
      {x_out, kv_out, middle, normal, qkv, mixed, gated, wide, recomputed, records});
}

// The library's handle cannot be made while XLA captures the chain.
ffi::Error prepare(int32_t device) {
  matmul::prepare_library(device);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace fdjax::decoder_stack

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_decoder_stack_gpu_initialize, fdjax::decoder_stack::prepare,
    xla::ffi::Ffi::BindInitialize().Ctx<xla::ffi::DeviceOrdinal>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_decoder_stack_gpu, fdjax::decoder_stack::handle,
    fdjax::decode_attention::bind_config(
        xla::ffi::Ffi::Bind()
            .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
            .Attr<bool>("interleaved")
            .Attr<bool>("has_qkv_bias")
            .Attr<bool>("unified")
            .Attr<float>("scale")
            .Attr<float>("soft_cap")
            .Attr<float>("epsilon")
            .Attr<float>("scale_offset")
            .Attr<float>("phi")
            .Attr<float>("low")
            .Attr<float>("high")
            .Attr<int64_t>("activation")
            .Attr<int64_t>("window"))
        .Attr<xla::ffi::Span<const int64_t>>("products")
        .Arg<xla::ffi::AnyBuffer>()
        .Arg<xla::ffi::AnyBuffer>()
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
        .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
        .RemainingArgs()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
        .Ret<xla::ffi::Buffer<xla::ffi::F32>>(),
    {xla::ffi::Traits::kCmdBufferCompatible});
