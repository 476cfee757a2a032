// The handler's signature, and from buffers to the chain's parameters.
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "decode_attention/gpu_check.h"
#include "fdjax/check.h"
#include "layer_program/chain.h"
#include "prefill_attention/arguments.h"

namespace fdjax::layer_program {

using Ints = ffi::Buffer<ffi::S32>;
using Floats = ffi::Buffer<ffi::F32>;

struct Attributes {
  int64_t q_heads;
  bool interleaved;
  bool by_slot;  // rows with one token have slots in their page table
  decode_attention::LaunchAttributes launch;  // of rows with one token
};

}  // namespace fdjax::layer_program

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    fdjax::layer_program::Attributes, StructMember<int64_t>("q_heads"),
    StructMember<bool>("interleaved"), StructMember<bool>("by_slot"),
    StructMember<fdjax::decode_attention::LaunchAttributes>("launch"));

namespace fdjax::layer_program {

// Rows of a call, as a PageView has them.
struct Pages {
  Ints table, lengths;
};

// What rows with one token share, beside the pages of their own; no order: nothing.
struct Shared {
  Ints table;  // of each row
  Ints order, work, parts;
};

struct Operands {
  ffi::AnyBuffer kv;
  Ints tokens, positions, slots;  // of each token
  Ints wanted;                    // tokens whose hidden states are wanted
  Ints places;                    // where the token of each row is that decodes
  Floats frequencies;             // of RoPE
  Floats angles;                  // cosines, then sines, of each row that decodes
  Floats slopes;                  // of ALiBi, or absent
  Pages decoding;                 // rows with one token
  Ints plans;                     // of their attention, one for each window
  Pages prompts;                  // rows with any number
  Ints tiles;                     // of their attention, likewise
  Shared shared;
  ffi::RemainingArgs weights;
};

// Memory that a step alone needs: results of their own, or the end of the KV array.
struct Block {
  void* data;
  int64_t bytes;
};

// In the order of `Blocks` in memory.py. The first four are regions of operands.
enum BlockName {
  kFirst,
  kSecond,
  kThird,
  kScratch,
  kDecodeRecords,
  kPrefillRecords,
  kAbout,
  kSharedRecords
};

inline constexpr size_t kBlocks = kSharedRecords + 1;

using Blocks = std::array<Block, kBlocks>;

struct Results {
  ffi::Result<ffi::AnyBuffer> kv, hidden;
  ffi::Result<Ints> recomputed, prompts_recomputed;  // the latter may be absent
  Blocks blocks;
};

inline ffi::Error invalid(std::string message) {
  return ffi::Error::InvalidArgument("layer_program: " + std::move(message));
}

// Every size by its letter (fdjax/notation.py); the first buffer with it binds it.
struct Dims {
  Dim tokens{"T"}, wanted{"U"}, frequencies{"R2"}, places{"places"}, plans{"plans"},
      plan_size{"integers of a plan"}, lists{"lists of tiles"}, tiles{"N"},
      shared_width{"W"}, pieces{"M"}, levels{"K"}, eight{"8", 8}, four{"4", 4};
  paged::Dims decoding, prompts;
};

// Of a piece of up to kTileRows queries, over all heads.
inline int64_t record_bytes(const paged::Dims& d) {
  return *d.kv_heads * prefill_attention::kTileRows * (*d.head_dim + 2) *
         int64_t{sizeof(float)};
}

// What the KV array says of both kinds of rows.
inline ffi::Error check_kv(const Operands& in, const Results& out, int64_t q_heads,
                           Dims* d) {
  for (paged::Dims* rows : {&d->decoding, &d->prompts}) {
    FDJAX_RETURN_IF_ERROR(
        check_shape("kv", in.kv.dimensions(),
                    {&rows->pages, &rows->layers, &rows->two, &rows->page_size,
                     &rows->kv_heads, &rows->head_dim}));
    rows->q_heads = Dim("Hq", q_heads);
  }
  if (in.kv.untyped_data() == out.kv->untyped_data()) return ffi::Error::Success();
  return invalid("the result kv must alias the operand");
}

inline ffi::Error check_pages(const char* name, const Pages& pages, paged::Dims* d) {
  FDJAX_RETURN_IF_ERROR(
      check_shape(name, pages.table.dimensions(), {&d->rows, &d->width}));
  FDJAX_RETURN_IF_ERROR(check_shape(name, pages.lengths.dimensions(), {&d->rows}));
  return paged::check_sizes(*d);
}

inline ffi::Error check_tokens(const Operands& in, const Results& out, Dims* d) {
  FDJAX_RETURN_IF_ERROR(check_shape("tokens", in.tokens.dimensions(), {&d->tokens}));
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
  if (!is_absent(in.slopes)) {
    FDJAX_RETURN_IF_ERROR(
        check_shape("slopes", in.slopes.dimensions(), {&d->decoding.q_heads}));
  }
  return check_dtype("hidden", out.hidden->element_type(), "kv", in.kv.element_type());
}

// The blocks: buffers, or where `places` says so, a byte offset into the KV array and a
// number of bytes for each.
inline ffi::Error find_blocks(
    ffi::Span<const int64_t> places, const ffi::AnyBuffer& kv,
    std::initializer_list<ffi::Result<ffi::AnyBuffer>> buffers, Blocks* blocks) {
  auto block = blocks->begin();
  if (places.size() == 0) {
    for (const auto& buffer : buffers) {
      *block++ = {buffer->untyped_data(), static_cast<int64_t>(buffer->size_bytes())};
    }
    return ffi::Error::Success();
  }
  if (places.size() != 2 * kBlocks) {
    return invalid(std::to_string(places.size()) + " numbers for places, it takes " +
                   std::to_string(2 * kBlocks));
  }
  const int64_t end = static_cast<int64_t>(kv.size_bytes());
  for (size_t i = 0; i < places.size(); i += 2) {
    const int64_t offset = places[i], bytes = places[i + 1];
    if (offset < 0 || bytes < 0 || offset % kAlignment != 0 || offset > end - bytes) {
      return invalid(std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                     " of a KV array of " + std::to_string(end));
    }
    *block++ = {static_cast<char*>(kv.untyped_data()) + offset, bytes};
  }
  return ffi::Error::Success();
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
  if (!is_absent(in.angles)) {
    FDJAX_RETURN_IF_ERROR(
        check_shape("angles", in.angles.dimensions(),
                    {&d->decoding.two, &d->decoding.rows, &d->frequencies}));
    if (*d->frequencies % 8 != 0) {
      return invalid(std::to_string(*d->frequencies) +
                     " frequencies; they must be a multiple of 8");
    }
  }
  return decode_attention::check_config(
      a.launch, d->decoding, *d->plan_size,
      out.blocks[kDecodeRecords].bytes / static_cast<int64_t>(sizeof(float)));
}

// What rows that decode share.
inline ffi::Error check_shared(const Operands& in, const Results& out, Dims* d) {
  using paged::check_range;
  const Shared& shared = in.shared;
  paged::Dims& rows = d->decoding;
  FDJAX_RETURN_IF_ERROR(
      check_shape("work", shared.work.dimensions(), {&d->pieces, &d->eight}));
  if (is_absent(shared.order)) return ffi::Error::Success();
  FDJAX_RETURN_IF_ERROR(check_shape("shared table", shared.table.dimensions(),
                                    {&rows.rows, &d->shared_width}));
  FDJAX_RETURN_IF_ERROR(check_shape("order", shared.order.dimensions(), {&rows.rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("parts", shared.parts.dimensions(),
                                    {&d->levels, &rows.rows, &d->four}));
  FDJAX_RETURN_IF_ERROR(check_range("K", *d->levels, 0, shared_prefix::kMaxLevels));
  FDJAX_RETURN_IF_ERROR(
      check_range("W * Z", *d->shared_width * *rows.page_size, 0, paged::kMaxTokens));
  FDJAX_RETURN_IF_ERROR(prefill_attention::check_limits(rows));
  const int64_t about = *rows.rows * *rows.q_heads * 2 * int64_t{sizeof(float)};
  FDJAX_RETURN_IF_ERROR(
      check_range("bytes of about", out.blocks[kAbout].bytes, about, about));
  const int64_t records = *d->pieces * record_bytes(rows);
  return check_range("bytes of shared records", out.blocks[kSharedRecords].bytes,
                     records, records);
}

// Rows with any number of tokens.
inline ffi::Error check_prompts(const Operands& in, const Results& out, Dims* d) {
  using paged::check_range;
  FDJAX_RETURN_IF_ERROR(check_pages("prompts", in.prompts, &d->prompts));
  FDJAX_RETURN_IF_ERROR(
      check_shape("tiles", in.tiles.dimensions(), {&d->lists, &d->tiles, &d->eight}));
  if (*d->prompts.rows == 0) return ffi::Error::Success();
  if (!is_absent(*out.prompts_recomputed)) {
    FDJAX_RETURN_IF_ERROR(check_shape("recomputed of prompts",
                                      out.prompts_recomputed->dimensions(),
                                      {&d->prompts.layers, &d->prompts.rows}));
  }
  FDJAX_RETURN_IF_ERROR(prefill_attention::check_limits(d->prompts));
  return check_range("T", *d->tokens, 0, paged::kMaxTokens);
}

inline ffi::Error check(const Attributes& a, const Operands& in, const Results& out,
                        Dims* d) {
  FDJAX_RETURN_IF_ERROR(check_kv(in, out, a.q_heads, d));
  FDJAX_RETURN_IF_ERROR(check_tokens(in, out, d));
  FDJAX_RETURN_IF_ERROR(check_decoding(a, in, out, d));
  FDJAX_RETURN_IF_ERROR(check_shared(in, out, d));
  return check_prompts(in, out, d);
}

}  // namespace fdjax::layer_program
