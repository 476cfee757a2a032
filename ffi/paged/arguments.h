// What handlers of attention over pages take, on every platform, and the checks that
// all of them make.
#pragma once

#include <string>
#include <utility>

#include "fdjax/check.h"
#include "paged/limits.h"
#include "paged/view.h"

namespace fdjax::paged {

// What becomes of scores.
struct Scores {
  float scale;
  float soft_cap;  // 0: none
  int64_t window;  // kAllTokens: none
};

// Of every attention over pages.
struct Attributes {
  int64_t layer;
  Scores scores;
};

}  // namespace fdjax::paged

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(fdjax::paged::Scores,
                                      StructMember<float>("scale"),
                                      StructMember<float>("soft_cap"),
                                      StructMember<int64_t>("window"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(fdjax::paged::Attributes,
                                      StructMember<int64_t>("layer"),
                                      StructMember<fdjax::paged::Scores>("scores"));

namespace fdjax::paged {

// What every attention over pages reads.
struct Inputs {
  ffi::AnyBuffer q, kv;
  ffi::Buffer<ffi::S32> page_table, lengths;
  ffi::Buffer<ffi::F32> slopes, sinks;  // may be absent
};

struct Dims {
  Dim rows{"B"}, q_heads{"Hq"}, head_dim{"D"}, pages{"P"}, layers{"L"}, two{"2", 2},
      page_size{"Z"}, kv_heads{"Hkv"}, width{"W"}, head_width{"D'"};
};

// Pages of one layer whose heads lie K0, V0, K1, V1 and so on, [P, Z, Hkv, 2, D'].
inline bool is_interleaved(const ffi::AnyBuffer& kv) {
  return kv.dimensions().size() == 5;
}

inline ffi::Error invalid(std::string message) {
  return ffi::Error::InvalidArgument(std::move(message));
}

// The value of `name` is `value`; it must be at least `low` and at most `high`.
inline ffi::Error check_range(const char* name, int64_t value, int64_t low,
                              int64_t high) {
  if (value >= low && value <= high) return ffi::Error::Success();
  return invalid(std::string(name) + " is " + std::to_string(value) +
                 "; the handler takes " + std::to_string(low) + " to " +
                 std::to_string(high));
}

// Page-major, [P, L, 2, Z, Hkv, D], or interleaved; heads of the latter may be padded.
inline ffi::Error check_kv(const ffi::AnyBuffer& kv, Dims* d) {
  if (!is_interleaved(kv)) {
    return check_shape(
        "kv", kv.dimensions(),
        {&d->pages, &d->layers, &d->two, &d->page_size, &d->kv_heads, &d->head_dim});
  }
  d->layers = Dim("L", 1);
  FDJAX_RETURN_IF_ERROR(
      check_shape("kv", kv.dimensions(),
                  {&d->pages, &d->page_size, &d->kv_heads, &d->two, &d->head_width}));
  return check_range("D'", *d->head_width, *d->head_dim, kInt32);
}

// `queries` is the first axis of q.
inline ffi::Error check_inputs(const Inputs& in, Dim* queries, Dims* d) {
  FDJAX_RETURN_IF_ERROR(
      check_shape("q", in.q.dimensions(), {queries, &d->q_heads, &d->head_dim}));
  FDJAX_RETURN_IF_ERROR(check_kv(in.kv, d));
  FDJAX_RETURN_IF_ERROR(
      check_shape("page_table", in.page_table.dimensions(), {&d->rows, &d->width}));
  FDJAX_RETURN_IF_ERROR(check_shape("lengths", in.lengths.dimensions(), {&d->rows}));
  if (!is_absent(in.slopes)) {
    FDJAX_RETURN_IF_ERROR(check_shape("slopes", in.slopes.dimensions(), {&d->q_heads}));
  }
  if (!is_absent(in.sinks)) {
    FDJAX_RETURN_IF_ERROR(check_shape("sinks", in.sinks.dimensions(), {&d->q_heads}));
  }
  return check_dtype("kv", in.kv.element_type(), "q", in.q.element_type());
}

// The same, and a result for each query.
inline ffi::Error check_call(const Inputs& in, ffi::Result<ffi::AnyBuffer> out,
                             Dim* queries, Dims* d) {
  FDJAX_RETURN_IF_ERROR(check_inputs(in, queries, d));
  FDJAX_RETURN_IF_ERROR(
      check_shape("out", out->dimensions(), {queries, &d->q_heads, &d->head_dim}));
  return check_dtype("out", out->element_type(), "q", in.q.element_type());
}

inline ffi::Error check_sizes(const Dims& d) {
  FDJAX_RETURN_IF_ERROR(check_range("Hkv", *d.kv_heads, 1, kInt32));
  if (*d.q_heads % *d.kv_heads != 0) {
    return invalid("q has Hq = " + std::to_string(*d.q_heads) +
                   " heads, no multiple of Hkv = " + std::to_string(*d.kv_heads));
  }
  FDJAX_RETURN_IF_ERROR(check_range("Hq", *d.q_heads, 1, kInt32));
  FDJAX_RETURN_IF_ERROR(check_range("Z", *d.page_size, 1, kInt32));
  FDJAX_RETURN_IF_ERROR(check_range("B", *d.rows, 0, kInt32));
  FDJAX_RETURN_IF_ERROR(check_range("W * Z", *d.width * *d.page_size, 0, kMaxTokens));
  return check_range("P * L * 2 * Z", *d.pages * *d.layers * 2 * *d.page_size, 1,
                     kMaxSlots);
}

inline ffi::Error check_values(const Attributes& a, const Dims& d) {
  FDJAX_RETURN_IF_ERROR(check_sizes(d));
  FDJAX_RETURN_IF_ERROR(check_range("layer", a.layer, 0, *d.layers - 1));
  return check_range("window", a.scores.window, 1, kAllTokens);
}

// Pages of layer `layer` of an array of elements of `element_bytes`; whose rows they
// are, is left open.
inline Layout layout_of(const ffi::AnyBuffer& kv, const Dims& d, int64_t layer,
                        int64_t element_bytes) {
  const bool interleaved = is_interleaved(kv);
  const int64_t half_bytes =
      (interleaved ? *d.head_width : *d.head_dim) * element_bytes;
  const int64_t head_bytes = interleaved ? 2 * half_bytes : half_bytes;
  const int64_t slot_bytes = *d.kv_heads * head_bytes;
  const int64_t halves = interleaved ? 1 : 2;  // slots of a token
  Layout layout{
      .kv = kv.untyped_data(),
      .slot_bytes = slot_bytes,
      .head_bytes = static_cast<uint32_t>(head_bytes),
      .slots_per_page = static_cast<uint32_t>(*d.layers * halves * *d.page_size),
      .page_size = static_cast<uint32_t>(*d.page_size),
      .value_slots = static_cast<uint32_t>(interleaved ? 0 : *d.page_size),
      .value_bytes = static_cast<uint32_t>(interleaved ? half_bytes : 0),
      .num_pages = static_cast<uint32_t>(*d.pages)};
  layout.kv = static_cast<char*>(layout.kv) + layer * layer_bytes(layout);
  return layout;
}

inline View view_of(const Attributes& a, const Inputs& in, const Dims& d) {
  const auto element_bytes = static_cast<int64_t>(ffi::ByteWidth(in.q.element_type()));
  return {layout_of(in.kv, d, a.layer, element_bytes),
          in.page_table.typed_data(),
          in.lengths.typed_data(),
          page_reciprocal_of(static_cast<uint32_t>(*d.page_size)),
          static_cast<int>(*d.rows),
          static_cast<int>(*d.width)};
}

}  // namespace fdjax::paged
