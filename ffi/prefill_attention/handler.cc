// prefill_attention on a CPU: each new token is a query of its own, as in decoding.
#include <algorithm>
#include <cstdint>
#include <numeric>
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

// From the counts of queries and key/value heads to those of rows.
void sum_by_row(const std::vector<int32_t>& counts, const Queries& queries,
                int32_t* by_row, const Params& p) {
  std::fill_n(by_row, p.attention.rows, 0);
  const int heads = p.attention.kv_heads;
  for (int query = 0; query < p.queries; ++query) {
    if (queries.lengths[query] == 0) continue;  // no row's
    const auto own = counts.begin() + int64_t{query} * heads;
    by_row[queries.rows[query]] += std::accumulate(own, own + heads, 0);
  }
}

ffi::Error handle(ffi::ThreadPool pool, const Attributes& attributes, ffi::AnyBuffer q,
                  ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::S32> tiles,
                  ffi::Buffer<ffi::F32> slopes, ffi::Buffer<ffi::F32> sinks,
                  ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::F32>> records,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed) {
  paged::Dims d;
  Params p{};
  FDJAX_RETURN_IF_ERROR(read(
      attributes,
      {{q, kv, page_table, lengths, slopes, sinks}, tiles, out, records, recomputed},
      &d, &p));
  const Queries queries(p);
  decode_attention::Params attention = p.attention;
  attention.rows = p.queries;
  attention.lengths = queries.lengths.data();
  attention.table_rows = queries.rows.data();
  std::vector<int32_t> counts(int64_t{p.queries} * attention.kv_heads);
  attention.recomputed = counts.data();
  FDJAX_RETURN_IF_ERROR(decode_attention::attend_on_host(
      pool, q.element_type(), decode_attention::kMaxLanes, attention));
  if (attention.unified) sum_by_row(counts, queries, recomputed->typed_data(), p);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace fdjax::prefill_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_prefill_attention_cpu,
                              fdjax::prefill_attention::handle,
                              fdjax::prefill_attention::bind_call(
                                  xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));
