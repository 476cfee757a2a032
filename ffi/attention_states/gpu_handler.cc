// attention_states on a GPU: checks and launch.
#include "attention_states/launch.h"
#include "attention_states/limits.h"
#include "fdjax/gpu_dispatch.h"
#include "prefill_attention/arguments.h"

namespace fdjax::attention_states {
namespace {

using paged::check_range, paged::invalid;
using Floats = ffi::Buffer<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;
using Words = ffi::Buffer<ffi::U32>;

struct Arguments {
  paged::Inputs in;
  Ints starts, tiles;
  Words tree;  // may be absent
  ffi::Result<Floats> outputs, log_sums, records;
};

ffi::Error check_tree(const Words& tree, Dim* queries) {
  if (is_absent(tree)) return ffi::Error::Success();
  Dim words{"N"};
  FDJAX_RETURN_IF_ERROR(check_shape("tree", tree.dimensions(), {queries, &words}));
  return check_range("N", *words, 1, kMaxTreeWords);
}

ffi::Error read(const paged::Attributes& attributes, const Arguments& a,
                prefill_attention::Params* params) {
  paged::Dims d;
  Dim queries{"T"}, tiles{"N"}, eight{"8", 8}, records{"R"},
      rows{"128", prefill_attention::kTileRows};
  FDJAX_RETURN_IF_ERROR(paged::check_inputs(a.in, &queries, &d));
  Dim sums{"D + 2", *d.head_dim + 2};
  FDJAX_RETURN_IF_ERROR(check_shape("starts", a.starts.dimensions(), {&d.rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("tiles", a.tiles.dimensions(), {&tiles, &eight}));
  FDJAX_RETURN_IF_ERROR(check_tree(a.tree, &queries));
  FDJAX_RETURN_IF_ERROR(check_shape("outputs", a.outputs->dimensions(),
                                    {&queries, &d.q_heads, &d.head_dim}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("log_sums", a.log_sums->dimensions(), {&queries, &d.q_heads}));
  FDJAX_RETURN_IF_ERROR(check_shape("records", a.records->dimensions(),
                                    {&records, &d.kv_heads, &rows, &sums}));
  FDJAX_RETURN_IF_ERROR(check_range("T", *queries, 0, paged::kMaxTokens));
  FDJAX_RETURN_IF_ERROR(paged::check_values(attributes, d));
  FDJAX_RETURN_IF_ERROR(prefill_attention::check_limits(d));
  *params = {
      .attention = decode_attention::params_of(attributes, a.in, d, nullptr, nullptr),
      .tiles = reinterpret_cast<const prefill_attention::Tile*>(a.tiles.typed_data()),
      .num_tiles = static_cast<int>(*tiles),
      .queries = static_cast<int>(*queries),
      .num_records = static_cast<int>(*records),
      .records = a.records->typed_data(),
      .states = {.outputs = a.outputs->typed_data(),
                 .log_sums = a.log_sums->typed_data(),
                 .starts = a.starts.typed_data(),
                 .tree = data_or_null(a.tree),
                 .tree_words =
                     is_absent(a.tree) ? 0 : static_cast<int>(a.tree.dimensions()[1])}};
  return ffi::Error::Success();
}

ffi::Error handle(gpu_stream stream, const paged::Attributes& attributes,
                  ffi::AnyBuffer q, ffi::AnyBuffer kv, Ints page_table, Ints lengths,
                  Ints starts, Ints tiles, Words tree, Floats slopes, Floats sinks,
                  ffi::Result<Floats> outputs, ffi::Result<Floats> log_sums,
                  ffi::Result<Floats> records) {
  prefill_attention::Params p;
  FDJAX_RETURN_IF_ERROR(read(attributes,
                             {{q, kv, page_table, lengths, slopes, sinks},
                              starts,
                              tiles,
                              tree,
                              outputs,
                              log_sums,
                              records},
                             &p));
  FDJAX_RETURN_IF_ERROR(prefill_attention::check_scale(attributes.scores.scale));
  if (p.queries == 0 || p.num_tiles == 0) return ffi::Error::Success();
  return launch_16_bits("attention_states", q.element_type(), [&](auto type) {
    return launch_attention_states<typename decltype(type)::type>(stream, p);
  });
}

}  // namespace
}  // namespace fdjax::attention_states

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_attention_states_gpu,
                              fdjax::attention_states::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<fdjax::paged::Attributes>("attributes")
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::U32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
