// prefill_attention on a CPU: each new token is a query of its own, as in decoding.
#include <cstdint>
#include <vector>

#include "decode_attention/host.h"
#include "prefill_attention/arguments.h"

namespace fdjax::prefill_attention {
namespace {

// Of each query: what it sees, and whose pages it reads. A query that belongs to no row
// sees nothing.
struct Queries {
  std::vector<int32_t> lengths, rows;

  explicit Queries(const Params& p) : lengths(p.queries, 0), rows(p.queries, 0) {
    for (int i = 0; i < p.num_tiles; ++i) {
      const Tile& tile = p.tiles[i];
      for (int token = 0; token < tile.tokens; ++token) {
        lengths[tile.first + token] = tile.position + token + 1;
        rows[tile.first + token] = tile.row;
      }
    }
  }
};

ffi::Error handle(ffi::ThreadPool pool, const Attributes& attributes, ffi::AnyBuffer q,
                  ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::S32> tiles,
                  ffi::Buffer<ffi::F32> slopes, ffi::Buffer<ffi::F32> sinks,
                  ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::F32>> records) {
  decode_attention::Dims d;
  Params p{};
  FDJAX_RETURN_IF_ERROR(
      read(attributes,
           {{q, kv, page_table, lengths, slopes, sinks}, tiles, out, records}, &d, &p));
  const Queries queries(p);
  decode_attention::Params attention = p.attention;
  attention.rows = p.queries;
  attention.lengths = queries.lengths.data();
  attention.table_rows = queries.rows.data();
  return decode_attention::attend_on_host(pool, q.element_type(),
                                          decode_attention::kMaxLanes, attention);
}

}  // namespace
}  // namespace fdjax::prefill_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_prefill_attention_cpu,
                              fdjax::prefill_attention::handle,
                              fdjax::prefill_attention::bind_call(
                                  xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));
