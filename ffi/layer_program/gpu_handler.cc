// layer_program on a GPU: checks, and the launches of a step.
#include "fdjax/gpu.h"
#include "layer_program/arguments.h"

namespace fdjax::layer_program {
namespace {

// Of layer 0.
paged::Layout layout_of(const Results& out, const Dims& d) {
  return paged::layout_of(*out.kv, d.decoding, 0, /*element_bytes=*/2);
}

// What both kinds of attention read. The score terms differ from layer to layer.
decode_attention::Params attention_of(const Operands& in, const Pages& pages,
                                      const paged::Dims& d) {
  decode_attention::Params p = decode_attention::params_of(
      paged::Attributes{
          .layer = 0,
          .scores = {.scale = 1.0f, .soft_cap = 0.0f, .window = paged::kAllTokens}},
      paged::Inputs{in.kv, in.kv, pages.table, pages.lengths, in.slopes, in.slopes}, d,
      /*out=*/nullptr, /*recomputed=*/nullptr);
  p.sinks = nullptr;
  return p;
}

decode_attention::Params decode_of(const Attributes& a, const Operands& in,
                                   const Results& out, const Dims& d) {
  decode_attention::Params p = attention_of(in, in.decoding, d.decoding);
  const float* cosines = data_or_null(in.angles);
  p.recomputed = out.recomputed->typed_data();
  p.plan = decode_attention::counters_of(in.plans);
  p.records = static_cast<float*>(out.blocks[kDecodeRecords].data);
  p.newest = {.qkv = nullptr,
              .pages = p,
              .slots = in.slots.typed_data(),
              .cosines = cosines,
              .sines = cosines != nullptr ? cosines + *d.decoding.rows * *d.frequencies
                                          : nullptr,
              .num_frequencies = static_cast<int>(*d.frequencies),
              .interleaved = a.interleaved};
  return a.by_slot ? paged::by_slot(p) : p;
}

prefill_attention::Params prefill_of(const Operands& in, const Results& out,
                                     const Dims& d) {
  const Block& records = out.blocks[kPrefillRecords];
  decode_attention::Params attention = attention_of(in, in.prompts, d.prompts);
  attention.recomputed = data_or_null(*out.prompts_recomputed);
  return {
      .attention = attention,
      .tiles = reinterpret_cast<const prefill_attention::Tile*>(in.tiles.typed_data()),
      .num_tiles = static_cast<int>(*d.tiles),
      .queries = static_cast<int>(*d.tokens),
      .num_records = static_cast<int>(records.bytes / record_bytes(d.prompts)),
      .records = static_cast<float*>(records.data)};
}

prefill_attention::Params shared_of(const Operands& in, const Results& out,
                                    const Dims& d) {
  const Shared& shared = in.shared;
  prefill_attention::Params p{
      .attention = attention_of(in, {shared.table, in.decoding.lengths}, d.decoding),
      .tiles =
          reinterpret_cast<const prefill_attention::Tile*>(shared.work.typed_data()),
      .num_tiles = static_cast<int>(*d.pieces),
      .queries = static_cast<int>(*d.decoding.rows),
      .num_records = static_cast<int>(*d.pieces),
      .records = static_cast<float*>(out.blocks[kSharedRecords].data),
      .order = shared.order.typed_data()};
  p.attention.table_width = static_cast<int>(*d.shared_width);
  return p;
}

prefill_attention::Joining joining_of(const Operands& in, const Results& out,
                                      const Dims& d) {
  const Ints& parts = in.shared.parts;
  return {.parts = reinterpret_cast<const prefill_attention::Part*>(parts.typed_data()),
          .about = static_cast<const float*>(out.blocks[kAbout].data),
          .levels = static_cast<int>(*d.levels)};
}

rope_kv_write::Params rotate_of(const Attributes& a, const Operands& in,
                                const Results& out, const Dims& d) {
  const paged::Dims& kv = d.decoding;
  return {.qkv = nullptr,
          .positions = in.positions.typed_data(),
          .slots = in.slots.typed_data(),
          .frequencies = in.frequencies.typed_data(),
          .query = nullptr,
          .pages = layout_of(out, d),
          .tokens = static_cast<int>(*d.tokens),
          .q_heads = static_cast<int>(*kv.q_heads),
          .kv_heads = static_cast<int>(*kv.kv_heads),
          .head_dim = static_cast<int>(*kv.head_dim),
          .num_frequencies = static_cast<int>(*d.frequencies),
          .interleaved = a.interleaved};
}

Attention attention_of(const Attributes& a, const Operands& in, const Results& out,
                       const Dims& d) {
  const paged::Dims& kv = d.decoding;
  const bool shares = !is_absent(in.shared.order);
  return {.decode = decode_of(a, in, out, d),
          .decode_config = decode_attention::config_of(a.launch, /*programmatic=*/true),
          .prefill = prefill_of(in, out, d),
          .shared = shares ? shared_of(in, out, d) : prefill_attention::Params{},
          .joining = shares ? joining_of(in, out, d) : prefill_attention::Joining{},
          .about = shares ? static_cast<float*>(out.blocks[kAbout].data) : nullptr,
          .rotate = rotate_of(a, in, out, d),
          .layers = *kv.layers,
          .layer_bytes = paged::layer_bytes(layout_of(out, d)),
          .num_plans = *d.plans,
          .plan_size = *d.plan_size,
          .num_lists = *d.lists,
          .wanted = in.wanted.typed_data(),
          .places = in.places.typed_data(),
          .num_wanted = static_cast<int>(*d.wanted),
          .num_places = static_cast<int>(*d.places)};
}

// In the order of `Region` in launches.py.
std::vector<Region> regions_of(const Operands& in, const Results& out,
                               int64_t element_bytes) {
  std::vector<Region> regions;
  for (const BlockName name : {kFirst, kSecond, kThird, kScratch}) {
    const Block& block = out.blocks[name];
    regions.push_back({block.data, block.bytes / element_bytes});
  }
  regions.push_back(
      {out.hidden->untyped_data(), static_cast<int64_t>(out.hidden->element_count())});
  for (size_t i = 0; i < in.weights.size(); ++i) {
    const auto weight = in.weights.get<ffi::AnyBuffer>(i);
    const bool fits =
        weight.has_value() && weight->element_type() == in.kv.element_type();
    regions.push_back({fits ? weight->untyped_data() : nullptr,
                       fits ? static_cast<int64_t>(weight->element_count()) : 0});
  }
  return regions;
}

template <typename T>
ffi::Error run(gpu_stream stream, const Attributes& a, ffi::Span<const int64_t> program,
               const Operands& in, const Results& out, const Dims& d) {
  const Attention attention = attention_of(a, in, out, d);
  const Tokens tokens{.ids = in.tokens.typed_data(),
                      .positions = in.positions.typed_data(),
                      .count = static_cast<int>(*d.tokens)};
  Reader reader(program, regions_of(in, out, sizeof(T)), sizeof(T));
  const std::string problem =
      Chain<T>(stream, std::move(reader), tokens, attention).run();
  return problem.empty() ? ffi::Error::Success() : invalid(problem);
}

ffi::Error check_library() {
  int device = 0;
  cudaGetDevice(&device);
  const std::string problem = matmul::library_problem(device);
  if (problem.empty()) return ffi::Error::Success();
  return ffi::Error::Internal("layer_program: " + problem);
}

ffi::Error handle(
    gpu_stream stream, const Attributes& attributes, ffi::Span<const int64_t> program,
    ffi::Span<const int64_t> places, ffi::AnyBuffer kv, Ints tokens, Ints positions,
    Ints slots, Ints wanted, Ints places_of_rows, Floats frequencies, Floats angles,
    Floats slopes, Ints decoding_table, Ints decoding_lengths, Ints plans,
    Ints prompts_table, Ints prompts_lengths, Ints tiles, Ints shared_table, Ints order,
    Ints work, Ints parts, ffi::RemainingArgs weights,
    ffi::Result<ffi::AnyBuffer> kv_out, ffi::Result<ffi::AnyBuffer> hidden,
    ffi::Result<Ints> recomputed, ffi::Result<Ints> prompts_recomputed,
    ffi::Result<ffi::AnyBuffer> first, ffi::Result<ffi::AnyBuffer> second,
    ffi::Result<ffi::AnyBuffer> third, ffi::Result<ffi::AnyBuffer> scratch,
    ffi::Result<ffi::AnyBuffer> decode_records,
    ffi::Result<ffi::AnyBuffer> prefill_records, ffi::Result<ffi::AnyBuffer> about,
    ffi::Result<ffi::AnyBuffer> shared_records) {
  const Operands in{kv,          tokens,
                    positions,   slots,
                    wanted,      places_of_rows,
                    frequencies, angles,
                    slopes,      {decoding_table, decoding_lengths},
                    plans,       {prompts_table, prompts_lengths},
                    tiles,       {shared_table, order, work, parts},
                    weights};
  Results out{kv_out, hidden, recomputed, prompts_recomputed, {}};
  FDJAX_RETURN_IF_ERROR(find_blocks(places, kv,
                                    {first, second, third, scratch, decode_records,
                                     prefill_records, about, shared_records},
                                    &out.blocks));
  Dims d;
  FDJAX_RETURN_IF_ERROR(check(attributes, in, out, &d));
  FDJAX_RETURN_IF_ERROR(check_library());
  switch (kv.element_type()) {
    case ffi::DataType::BF16:
      return run<GpuFloats::bfloat16>(stream, attributes, program, in, out, d);
    case ffi::DataType::F16:
      return run<GpuFloats::float16>(stream, attributes, program, in, out, d);
    default:
      return invalid("kv must be bfloat16 or float16");
  }
}

// The library's handle cannot be made while XLA captures the launches.
ffi::Error prepare(int32_t device) {
  matmul::prepare_library(device);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace fdjax::layer_program

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_layer_program_gpu_initialize, fdjax::layer_program::prepare,
    xla::ffi::Ffi::BindInitialize().Ctx<xla::ffi::DeviceOrdinal>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_layer_program_gpu, fdjax::layer_program::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<fdjax::layer_program::Attributes>("attributes")
                                  .Attr<xla::ffi::Span<const int64_t>>("program")
                                  .Attr<xla::ffi::Span<const int64_t>>("places")
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Floats>()
                                  .Arg<fdjax::layer_program::Floats>()
                                  .Arg<fdjax::layer_program::Floats>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .Arg<fdjax::layer_program::Ints>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<fdjax::layer_program::Ints>()
                                  .Ret<fdjax::layer_program::Ints>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
