// The handler's signature, and from buffers to the chain's parameters.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "decode_attention/gpu_check.h"
#include "decoder_stack/stack.cuh"
#include "fdjax/check.h"

namespace fdjax::decoder_stack {

// Numbers of a product in the attribute `products`, those of matmul::FlatConfig.
inline constexpr size_t kProductNumbers = 5;
inline constexpr size_t kProducts = 4;  // qkv, out, up, down

struct Attributes {
  bool interleaved, has_qkv_bias, unified;
  float scale, soft_cap, epsilon, scale_offset, phi, low, high;
  int64_t activation, window;
  decode_attention::LaunchConfig attention;
  ffi::Span<const int64_t> products;
};

struct Operands {
  ffi::AnyBuffer x, kv;
  ffi::Buffer<ffi::S32> slots, page_table, lengths, plan;
  ffi::Buffer<ffi::F32> angles;  // cosines, then sines, of RoPE at each row's position
  ffi::RemainingArgs weights;    // layer after layer, in the order of `Layer`
};

struct Results {
  ffi::Result<ffi::AnyBuffer> x, kv, middle, normal, qkv, mixed, gated, wide;
  ffi::Result<ffi::Buffer<ffi::S32>> recomputed;
  ffi::Result<ffi::Buffer<ffi::F32>> records;  // of attention
};

inline ffi::Error invalid(std::string message) {
  return ffi::Error::InvalidArgument("decoder_stack: " + std::move(message));
}

// Every size by its letter (fdjax/notation.py); the first buffer with it binds it.
// Attention's q_heads follow from `mixed`.
struct Dims : decode_attention::Dims {
  Dim hidden{"E"}, frequencies{"R2"}, qkv{"N"}, mixed{"Hq * D"}, gated{"F"};
};

inline ffi::Error check_buffers(const Operands& in, const Results& out, Dims* d) {
  FDJAX_RETURN_IF_ERROR(check_shape("x", in.x.dimensions(), {&d->rows, &d->hidden}));
  FDJAX_RETURN_IF_ERROR(check_shape(
      "kv", in.kv.dimensions(),
      {&d->pages, &d->layers, &d->two, &d->page_size, &d->kv_heads, &d->head_dim}));
  FDJAX_RETURN_IF_ERROR(check_shape("slots", in.slots.dimensions(), {&d->rows}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("page_table", in.page_table.dimensions(), {&d->rows, &d->width}));
  FDJAX_RETURN_IF_ERROR(check_shape("lengths", in.lengths.dimensions(), {&d->rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("angles", in.angles.dimensions(),
                                    {&d->two, &d->rows, &d->frequencies}));
  if (*d->frequencies % 8 != 0) {
    return invalid(std::to_string(*d->frequencies) +
                   " frequencies; they must be a multiple of 8");
  }
  FDJAX_RETURN_IF_ERROR(
      check_shape("x (result)", out.x->dimensions(), {&d->rows, &d->hidden}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("middle", out.middle->dimensions(), {&d->rows, &d->hidden}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("normal", out.normal->dimensions(), {&d->rows, &d->hidden}));
  FDJAX_RETURN_IF_ERROR(check_shape("qkv", out.qkv->dimensions(), {&d->rows, &d->qkv}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("mixed", out.mixed->dimensions(), {&d->rows, &d->mixed}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("gated", out.gated->dimensions(), {&d->rows, &d->gated}));
  FDJAX_RETURN_IF_ERROR(check_shape("recomputed", out.recomputed->dimensions(),
                                    {&d->layers, &d->rows, &d->kv_heads}));
  if (in.kv.untyped_data() != out.kv->untyped_data()) {
    return invalid("the result kv must alias the operand");
  }
  const ffi::DataType dtype = in.x.element_type();
  for (const auto& buffer : {out.x, out.middle, out.normal, out.qkv, out.mixed,
                             out.gated, out.wide, out.kv}) {
    FDJAX_RETURN_IF_ERROR(check_dtype("a result", buffer->element_type(), "x", dtype));
  }
  return ffi::Error::Success();
}

// One weight of a layer, checked.
struct WeightReader {
  const Operands& in;
  size_t next = 0;

  ffi::Error read(const char* name, std::initializer_list<Dim*> shape,
                  const void** data) {
    auto buffer = in.weights.get<ffi::AnyBuffer>(next++);
    if (!buffer.has_value()) return invalid(std::string(name) + " is missing");
    FDJAX_RETURN_IF_ERROR(check_shape(name, buffer->dimensions(), shape));
    *data = buffer->untyped_data();
    return check_dtype(name, buffer->element_type(), "x", in.x.element_type());
  }
};

inline ffi::Error read_layers(const Operands& in, bool has_qkv_bias, Dims* d,
                              std::vector<Layer>* layers) {
  const size_t of_layer = has_qkv_bias ? 7 : 6;
  if (in.weights.size() != of_layer * *d->layers) {
    return invalid(std::to_string(in.weights.size()) + " weights for " +
                   std::to_string(*d->layers) + " layers of " +
                   std::to_string(of_layer));
  }
  Dim up{"2 * F", 2 * *d->gated};
  WeightReader reader{in};
  for (int64_t i = 0; i < *d->layers; ++i) {
    Layer& w = layers->emplace_back();
    FDJAX_RETURN_IF_ERROR(
        reader.read("attention_norm", {&d->hidden}, &w.attention_norm));
    FDJAX_RETURN_IF_ERROR(reader.read("qkv", {&d->qkv, &d->hidden}, &w.qkv));
    if (has_qkv_bias) {
      FDJAX_RETURN_IF_ERROR(reader.read("qkv_bias", {&d->qkv}, &w.qkv_bias));
    }
    FDJAX_RETURN_IF_ERROR(reader.read("out", {&d->hidden, &d->mixed}, &w.out));
    FDJAX_RETURN_IF_ERROR(reader.read("mlp_norm", {&d->hidden}, &w.mlp_norm));
    FDJAX_RETURN_IF_ERROR(reader.read("up", {&up, &d->hidden}, &w.up));
    FDJAX_RETURN_IF_ERROR(reader.read("down", {&d->hidden, &d->gated}, &w.down));
  }
  return ffi::Error::Success();
}

inline matmul::FlatConfig product_from(const Attributes& a, size_t index) {
  const int64_t* numbers = a.products.begin() + index * kProductNumbers;
  return {.tiles = static_cast<int>(numbers[0]),
          .boxes = static_cast<int>(numbers[1]),
          .tile_rows = static_cast<int>(numbers[2]),
          .splits = static_cast<int>(numbers[3]),
          .stages = static_cast<int>(numbers[4])};
}

inline bool uses_library(const Attributes& a) {
  bool uses = false;
  for (size_t i = 0; i < kProducts; ++i) {
    uses = uses || product_from(a, i).tiles == matmul::kByLibrary;
  }
  return uses;
}

// Sizes that no buffer has by itself, and how attention is cut: kernels trust them.
inline ffi::Error check_values(const Attributes& a, const Operands& in,
                               const Results& out, Dims* d) {
  using decode_attention::check_range, decode_attention::kInt32;
  const int64_t head_dim = *d->head_dim;
  FDJAX_RETURN_IF_ERROR(decode_attention::check_head_dim(head_dim));
  if (*d->mixed % head_dim != 0) {
    return invalid("mixed has " + std::to_string(*d->mixed) +
                   " columns, no multiple of D = " + std::to_string(head_dim));
  }
  d->q_heads = Dim("Hq", *d->mixed / head_dim);
  FDJAX_RETURN_IF_ERROR(decode_attention::check_sizes(*d));
  FDJAX_RETURN_IF_ERROR(decode_attention::check_kernel(*d));
  FDJAX_RETURN_IF_ERROR(
      decode_attention::check_config(a.attention, *d, in.plan, out.records));
  const int64_t qkv = (*d->q_heads + 2 * *d->kv_heads) * head_dim;
  FDJAX_RETURN_IF_ERROR(check_range("N", *d->qkv, qkv, qkv));
  FDJAX_RETURN_IF_ERROR(check_range("E", *d->hidden, 1, kInt32));
  FDJAX_RETURN_IF_ERROR(check_range("F", *d->gated, 1, kInt32));
  FDJAX_RETURN_IF_ERROR(check_range("window", a.window, 0, kInt32));
  return check_range("activation", a.activation, 0,
                     static_cast<int64_t>(matmul::Activation::kRelu));
}

// What the library's products need beside the others.
inline ffi::Error check_library(const Results& out, Dims* d) {
  Dim up{"2 * F", 2 * *d->gated};
  FDJAX_RETURN_IF_ERROR(check_shape("wide", out.wide->dimensions(), {&d->rows, &up}));
  int device = 0;
  cudaGetDevice(&device);
  const std::string problem = matmul::library_problem(device);
  if (problem.empty()) return ffi::Error::Success();
  return ffi::Error::Internal("decoder_stack: " + problem);
}

}  // namespace fdjax::decoder_stack
