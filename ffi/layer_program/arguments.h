// The handler's signature, and from buffers to the chain's parameters.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "decode_attention/gpu_check.h"
#include "fdjax/check.h"
#include "layer_program/chain.h"

namespace fdjax::layer_program {

using Ints = ffi::Buffer<ffi::S32>;
using Floats = ffi::Buffer<ffi::F32>;

struct Attributes {
  ffi::Span<const int64_t> program;
  int64_t q_heads;
  bool interleaved;
  decode_attention::LaunchConfig config;  // of rows with one token
};

// Rows of a call, as a PageView has them.
struct Pages {
  Ints table, lengths;
};

struct Operands {
  ffi::AnyBuffer x, kv;
  Ints positions, slots;  // of each token
  Ints wanted;            // tokens whose hidden states are wanted
  Ints places;            // where the token of each row is that decodes
  Floats frequencies;     // of RoPE
  Floats angles;          // cosines, then sines, of each row that decodes
  Floats slopes;          // of ALiBi, or empty
  Pages decoding;         // rows with one token
  Ints plans;             // of their attention, one for each window
  Pages prompts;          // rows with any number
  Ints tiles;             // of their attention, likewise
  ffi::RemainingArgs weights;
};

struct Results {
  ffi::Result<ffi::AnyBuffer> first, kv, second, third, hidden, scratch;
  ffi::Result<Ints> recomputed;
  ffi::Result<Floats> decode_records, prefill_records;
};

inline ffi::Error invalid(std::string message) {
  return ffi::Error::InvalidArgument("layer_program: " + std::move(message));
}

// Every size by its letter (fdjax/notation.py); the first buffer with it binds it.
struct Dims {
  Dim tokens{"T"}, hidden{"E"}, wanted{"U"}, frequencies{"R2"}, places{"places"},
      plans{"plans"}, plan_size{"integers of a plan"}, lists{"lists of tiles"},
      tiles{"N"}, eight{"8", 8};
  decode_attention::Dims decoding, prompts;
};

// What the KV array says of both kinds of rows.
inline ffi::Error check_kv(const Operands& in, const Results& out, int64_t q_heads,
                           Dims* d) {
  for (decode_attention::Dims* rows : {&d->decoding, &d->prompts}) {
    FDJAX_RETURN_IF_ERROR(
        check_shape("kv", in.kv.dimensions(),
                    {&rows->pages, &rows->layers, &rows->two, &rows->page_size,
                     &rows->kv_heads, &rows->head_dim}));
    rows->q_heads = Dim("Hq", q_heads);
  }
  if (in.kv.untyped_data() == out.kv->untyped_data()) return ffi::Error::Success();
  return invalid("the result kv must alias the operand");
}

inline ffi::Error check_pages(const char* name, const Pages& pages,
                              decode_attention::Dims* d) {
  FDJAX_RETURN_IF_ERROR(
      check_shape(name, pages.table.dimensions(), {&d->rows, &d->width}));
  FDJAX_RETURN_IF_ERROR(check_shape(name, pages.lengths.dimensions(), {&d->rows}));
  return decode_attention::check_sizes(*d);
}

inline ffi::Error check_tokens(const Operands& in, const Results& out, Dims* d) {
  FDJAX_RETURN_IF_ERROR(check_shape("x", in.x.dimensions(), {&d->tokens, &d->hidden}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("positions", in.positions.dimensions(), {&d->tokens}));
  FDJAX_RETURN_IF_ERROR(check_shape("slots", in.slots.dimensions(), {&d->tokens}));
  FDJAX_RETURN_IF_ERROR(check_shape("wanted", in.wanted.dimensions(), {&d->wanted}));
  FDJAX_RETURN_IF_ERROR(check_shape("places", in.places.dimensions(), {&d->places}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("frequencies", in.frequencies.dimensions(), {&d->frequencies}));
  if (*d->frequencies > rope_kv_write::kMaxFrequencies ||
      2 * *d->frequencies > *d->decoding.head_dim) {
    return invalid(std::to_string(*d->frequencies) + " frequencies of RoPE");
  }
  if (in.slopes.element_count() != 0) {
    FDJAX_RETURN_IF_ERROR(
        check_shape("slopes", in.slopes.dimensions(), {&d->decoding.q_heads}));
  }
  for (const auto& buffer :
       {out.first, out.second, out.third, out.hidden, out.scratch, out.kv}) {
    FDJAX_RETURN_IF_ERROR(
        check_dtype("a result", buffer->element_type(), "x", in.x.element_type()));
  }
  if (in.x.untyped_data() == out.first->untyped_data()) return ffi::Error::Success();
  return invalid("the first buffer must alias x");
}

// Rows that decode; kernels trust what is checked here.
inline ffi::Error check_decoding(const Attributes& a, const Operands& in,
                                 const Results& out, Dims* d) {
  FDJAX_RETURN_IF_ERROR(check_pages("decoding", in.decoding, &d->decoding));
  FDJAX_RETURN_IF_ERROR(
      check_shape("plans", in.plans.dimensions(), {&d->plans, &d->plan_size}));
  if (*d->decoding.rows == 0) return ffi::Error::Success();
  FDJAX_RETURN_IF_ERROR(decode_attention::check_kernel(d->decoding));
  FDJAX_RETURN_IF_ERROR(
      check_shape("recomputed", out.recomputed->dimensions(),
                  {&d->decoding.layers, &d->decoding.rows, &d->decoding.kv_heads}));
  if (in.angles.element_count() != 0) {
    FDJAX_RETURN_IF_ERROR(
        check_shape("angles", in.angles.dimensions(),
                    {&d->decoding.two, &d->decoding.rows, &d->frequencies}));
    if (*d->frequencies % 8 != 0) {
      return invalid(std::to_string(*d->frequencies) +
                     " frequencies; they must be a multiple of 8");
    }
  }
  return decode_attention::check_config(a.config, d->decoding, *d->plan_size,
                                        out.decode_records);
}

// Rows with any number of tokens.
inline ffi::Error check_prompts(const Operands& in, const Results& out, Dims* d) {
  using decode_attention::check_range;
  FDJAX_RETURN_IF_ERROR(check_pages("prompts", in.prompts, &d->prompts));
  FDJAX_RETURN_IF_ERROR(
      check_shape("tiles", in.tiles.dimensions(), {&d->lists, &d->tiles, &d->eight}));
  if (*d->prompts.rows == 0) return ffi::Error::Success();
  Dim records{"records"}, rows{"128", prefill_attention::kTileRows},
      sums{"D + 2", *d->prompts.head_dim + 2};
  FDJAX_RETURN_IF_ERROR(check_shape("prefill_records",
                                    out.prefill_records->dimensions(),
                                    {&records, &d->prompts.kv_heads, &rows, &sums}));
  FDJAX_RETURN_IF_ERROR(check_range("Hq / Hkv",
                                    *d->prompts.q_heads / *d->prompts.kv_heads, 1,
                                    prefill_attention::kTileRows));
  FDJAX_RETURN_IF_ERROR(check_range("Z", *d->prompts.page_size, 2, 128));
  FDJAX_RETURN_IF_ERROR(check_range("D", *d->prompts.head_dim, 8, 256));
  return check_range("T", *d->tokens, 0, 1 << 25);
}

inline ffi::Error check(const Attributes& a, const Operands& in, const Results& out,
                        Dims* d) {
  FDJAX_RETURN_IF_ERROR(check_kv(in, out, a.q_heads, d));
  FDJAX_RETURN_IF_ERROR(check_tokens(in, out, d));
  FDJAX_RETURN_IF_ERROR(check_decoding(a, in, out, d));
  return check_prompts(in, out, d);
}

}  // namespace fdjax::layer_program
