// The handler's signature, and from buffers to the chain's parameters.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "decoder_stack/dense_stack.cuh"
#include "fdjax/check.h"

namespace fdjax::decoder_stack {

// Numbers of a product in the attribute `products`, those of matmul::FlatConfig.
inline constexpr size_t kProductNumbers = 5;
inline constexpr size_t kProducts = 4;  // qkv, out, up, down
// Of the attribute `dense`: stages, then tiles and rows of a tile of each product; none
// where every product is a kernel of its own.
inline constexpr size_t kDenseNumbers = 1 + 2 * kProducts;

struct Attributes {
  bool interleaved, has_qkv_bias, unified;
  float scale, soft_cap, epsilon, scale_offset, phi, low, high;
  int64_t activation, window, attention_splits, attention_heads, attention_warps;
  ffi::Span<const int64_t> products, dense;
};

struct Operands {
  ffi::AnyBuffer x, kv;
  ffi::Buffer<ffi::S32> positions, slots, page_table, lengths;
  ffi::Buffer<ffi::F32> frequencies;
  ffi::RemainingArgs weights;  // layer after layer, in the order of `Layer`
};

struct Results {
  ffi::Result<ffi::AnyBuffer> x, kv, middle, normal, qkv, query, mixed, gated;
  ffi::Result<ffi::Buffer<ffi::S32>> recomputed, scratch;
};

inline ffi::Error invalid(std::string message) {
  return ffi::Error::InvalidArgument("decoder_stack: " + std::move(message));
}

// Every size by its letter (fdjax/notation.py); the first buffer with it binds it.
struct Dims {
  Dim rows{"B"}, hidden{"E"}, pages{"P"}, layers{"L"}, two{"2", 2}, page_size{"Z"},
      kv_heads{"Hkv"}, head_dim{"D"}, width{"W"}, frequencies{"R2"}, qkv{"N"},
      mixed{"Hq * D"}, gated{"F"};
};

inline ffi::Error check_buffers(const Operands& in, const Results& out, Dims* d) {
  FDJAX_RETURN_IF_ERROR(check_shape("x", in.x.dimensions(), {&d->rows, &d->hidden}));
  FDJAX_RETURN_IF_ERROR(check_shape(
      "kv", in.kv.dimensions(),
      {&d->pages, &d->layers, &d->two, &d->page_size, &d->kv_heads, &d->head_dim}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("positions", in.positions.dimensions(), {&d->rows}));
  FDJAX_RETURN_IF_ERROR(check_shape("slots", in.slots.dimensions(), {&d->rows}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("page_table", in.page_table.dimensions(), {&d->rows, &d->width}));
  FDJAX_RETURN_IF_ERROR(check_shape("lengths", in.lengths.dimensions(), {&d->rows}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("frequencies", in.frequencies.dimensions(), {&d->frequencies}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("x (result)", out.x->dimensions(), {&d->rows, &d->hidden}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("middle", out.middle->dimensions(), {&d->rows, &d->hidden}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("normal", out.normal->dimensions(), {&d->rows, &d->hidden}));
  FDJAX_RETURN_IF_ERROR(check_shape("qkv", out.qkv->dimensions(), {&d->rows, &d->qkv}));
  FDJAX_RETURN_IF_ERROR(
      check_shape("query", out.query->dimensions(), {&d->rows, &d->mixed}));
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
  if (static_cast<int64_t>(out.scratch->element_count()) < Scratch::size(*d->layers)) {
    return invalid("scratch has " + std::to_string(out.scratch->element_count()) +
                   " elements; it needs " + std::to_string(Scratch::size(*d->layers)));
  }
  for (const auto& buffer : {out.x, out.middle, out.normal, out.qkv, out.query,
                             out.mixed, out.gated, out.kv}) {
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

inline DensePlan dense_from(const Attributes& a) {
  if (a.dense.size() == 0) return {};
  const auto tiles = [&](size_t product) -> Tiles {
    const int64_t* numbers = a.dense.begin() + 1 + 2 * product;
    return {static_cast<int>(numbers[0]), static_cast<int>(numbers[1])};
  };
  return {.stages = static_cast<int>(a.dense[0]),
          .out = tiles(1),
          .up = tiles(2),
          .down = tiles(3),
          .qkv = tiles(0)};
}

inline ffi::Error check_product(const char* name, const Tiles& cut, int columns, int k,
                                bool gated) {
  const int rows = (gated ? cut.tiles / 2 : cut.tiles) * cut.tile_rows;
  const bool fits =
      (cut.tiles == 1 || cut.tiles == 2 || cut.tiles == 4) && cut.tile_rows >= 8 &&
      cut.tile_rows <= 64 && cut.tile_rows % 8 == 0 && rows > 0 && columns % 8 == 0 &&
      k % kBoxColumns == 0 && (gated || rows / 4 * kTokens <= kWarpgroups * 128) &&
      (columns + rows - 1) / rows <= kMaxDenseBlocks;
  if (fits) return ffi::Error::Success();
  return invalid(std::string(name) + ", " + std::to_string(columns) + " x " +
                 std::to_string(k) + ", cannot be cut into " +
                 std::to_string(cut.tiles) + " tiles of " +
                 std::to_string(cut.tile_rows) + " rows");
}

inline ffi::Error check_dense(const Stack& s) {
  const Sizes& size = s.sizes;
  const DensePlan& plan = s.plan.dense;
  if (size.rows > kTokens || plan.stages > kMaxDenseStages) {
    return invalid("the dense part takes " + std::to_string(kTokens) + " rows and " +
                   std::to_string(kMaxDenseStages) + " stages; there are " +
                   std::to_string(size.rows) + " and " + std::to_string(plan.stages));
  }
  FDJAX_RETURN_IF_ERROR(
      check_product("qkv", plan.qkv, size.qkv_columns(), size.hidden, false));
  FDJAX_RETURN_IF_ERROR(
      check_product("out", plan.out, size.hidden, size.mixed_columns(), false));
  FDJAX_RETURN_IF_ERROR(
      check_product("up", plan.up, size.intermediate, size.hidden, true));
  FDJAX_RETURN_IF_ERROR(
      check_product("down", plan.down, size.hidden, size.intermediate, false));
  // A thread finishes the same place of both: it adds what it wrote itself.
  if (plan.out.tiles != plan.down.tiles || plan.out.tile_rows != plan.down.tile_rows) {
    return invalid("out and down must be cut alike");
  }
  return ffi::Error::Success();
}

}  // namespace fdjax::decoder_stack
