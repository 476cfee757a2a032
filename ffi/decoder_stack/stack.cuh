// All layers of a decode step as one chain of kernels; no XLA in here.
//
// A kernel of the chain is launched before its predecessor has ended (pdl.cuh): it
// loads weights or pages, which nothing in the chain writes, and waits before it reads
// what the predecessor makes. Seven kernels a layer, RoPE and the KV write in
// attention, which reads its plan early, too: that stands before the chain begins.
//
//   x -- add_norm -- qkv -- decode_attention -- out + x --> middle
//   middle -- add_norm -- activation(gate) * up -- down + middle --> x
//
// The buffers between them serve every layer (FlashDecoding++Next, section V).
#pragma once

#include <cstdint>

#include "add_norm/launch.h"
#include "decode_attention/launch.h"
#include "matmul/launch.h"
#include "matmul/library.h"

namespace fdjax::decoder_stack {

struct Layer {
  const void* attention_norm;  // [E]
  const void* qkv;             // [N, E]
  const void* qkv_bias;        // [N] or nullptr
  const void* out;             // [E, Hq * D]
  const void* mlp_norm;        // [E]
  const void* up;              // [2 * F, E]
  const void* down;            // [E, F]
};

struct Sizes {
  int rows, hidden, heads, kv_heads, head_dim, intermediate;

  int qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  int mixed_columns() const { return heads * head_dim; }
};

// Activations, each used by every layer.
struct Buffers {
  const void* x_in;  // [rows, hidden]: the first layer's
  void* x;           // [rows, hidden]: after each layer
  void* middle;      // [rows, hidden]: after attention
  void* normal;      // [rows, hidden]
  void* qkv;         // [rows, qkv_columns]
  void* mixed;       // [rows, mixed_columns]
  void* gated;       // [rows, intermediate]
  void* wide;        // [rows, 2 * intermediate], if the library multiplies
};

// How the work is cut. What multiplies by the library does it with every product.
struct Plan {
  matmul::FlatConfig qkv, out, up, down;
  decode_attention::Launch attention;
};

struct Stack {
  Sizes sizes;
  Buffers buffers;
  Plan plan;
  add_norm::Params norm;               // all but x, scale and out
  decode_attention::Params attention;  // kv of layer 0
  matmul::Activation activation;
  int64_t layer_bytes;  // of a page, from a layer's keys to the next layer's
  cudaStream_t stream;
};

template <typename T>
cudaError_t multiply(const Stack& s, const matmul::Params& p,
                     const matmul::FlatConfig& config) {
  const matmul::How how{.stream = s.stream, .programmatic = true};
  if (config.tiles == matmul::kByLibrary) {
    return matmul::launch_library<T>(p, /*candidate=*/config.boxes, s.stream);
  }
  if (config.tiles == matmul::kByGemm) {
    return matmul::launch_gemm<T>(p, matmul::gemm_from(config), how);
  }
  if (config.tiles == matmul::kByGemv) return matmul::launch_gemv<T>(p, how);
  return matmul::launch_flat<T>(p, config, how);
}

// y[rows, n] = x[rows, k] * weight[n, k]^T + bias + residual.
inline matmul::Params product_of(const Stack& s, const void* x, const void* weight,
                                 void* y, int n, int k) {
  return {.x = x,
          .weight = weight,
          .bias = nullptr,
          .residual = nullptr,
          .y = y,
          .m = s.sizes.rows,
          .n = n,
          .k = k,
          .columns = n,
          .gated = false,
          .float32 = false,
          .activation = matmul::Activation::kSilu};
}

template <typename T>
cudaError_t normalise(const Stack& s, const void* x, const void* scale,
                      bool programmatic) {
  add_norm::Params p = s.norm;
  p.x = x;
  p.scale = scale;
  p.out = s.buffers.normal;
  return add_norm::launch_rows<T>(s.stream, p, programmatic);
}

#define FDJAX_RETURN_IF_CUDA_ERROR(expression)                                         \
  do {                                                                                 \
    if (const cudaError_t error_ = (expression); error_ != cudaSuccess) return error_; \
  } while (false)

// x -> middle.
template <typename T>
cudaError_t attend(const Stack& s, const Layer& layer, int index) {
  const Sizes& size = s.sizes;
  const Buffers& b = s.buffers;
  const void* x = index == 0 ? b.x_in : b.x;
  // Only the first kernel has no predecessor in the chain.
  FDJAX_RETURN_IF_CUDA_ERROR(
      normalise<T>(s, x, layer.attention_norm, /*programmatic=*/index > 0));
  matmul::Params qkv =
      product_of(s, b.normal, layer.qkv, b.qkv, size.qkv_columns(), size.hidden);
  qkv.bias = layer.qkv_bias;
  FDJAX_RETURN_IF_CUDA_ERROR(multiply<T>(s, qkv, s.plan.qkv));

  decode_attention::Params attention = s.attention;
  attention.newest.kv = static_cast<char*>(attention.newest.kv) + index * s.layer_bytes;
  attention.kv = attention.newest.kv;
  attention.recomputed += int64_t{index} * size.rows * size.kv_heads;
  FDJAX_RETURN_IF_CUDA_ERROR(decode_attention::launch_decode_attention<T>(
      s.stream, attention, s.plan.attention));

  matmul::Params out =
      product_of(s, b.mixed, layer.out, b.middle, size.hidden, size.mixed_columns());
  out.residual = x;
  return multiply<T>(s, out, s.plan.out);
}

// normal -> gated. The library writes the product whole, and a kernel gates it.
template <typename T>
cudaError_t multiply_gated(const Stack& s, const Layer& layer) {
  const Sizes& size = s.sizes;
  const Buffers& b = s.buffers;
  matmul::Params p =
      product_of(s, b.normal, layer.up, b.gated, 2 * size.intermediate, size.hidden);
  const bool by_library = s.plan.up.tiles == matmul::kByLibrary;
  if (by_library) {
    p.y = b.wide;
    FDJAX_RETURN_IF_CUDA_ERROR(multiply<T>(s, p, s.plan.up));
    p.x = b.wide;
    p.y = b.gated;
  }
  p.columns = size.intermediate;
  p.gated = true;
  p.activation = s.activation;
  if (!by_library) return multiply<T>(s, p, s.plan.up);
  return matmul::launch_gate<T>(p, {.stream = s.stream, .programmatic = true});
}

// middle -> x.
template <typename T>
cudaError_t feed_forward(const Stack& s, const Layer& layer) {
  const Sizes& size = s.sizes;
  const Buffers& b = s.buffers;
  FDJAX_RETURN_IF_CUDA_ERROR(
      normalise<T>(s, b.middle, layer.mlp_norm, /*programmatic=*/true));
  FDJAX_RETURN_IF_CUDA_ERROR(multiply_gated<T>(s, layer));
  matmul::Params down =
      product_of(s, b.gated, layer.down, b.x, size.hidden, size.intermediate);
  down.residual = b.middle;
  return multiply<T>(s, down, s.plan.down);
}

template <typename T>
cudaError_t run_layer(const Stack& s, const Layer& layer, int index) {
  FDJAX_RETURN_IF_CUDA_ERROR(attend<T>(s, layer, index));
  return feed_forward<T>(s, layer);
}

#undef FDJAX_RETURN_IF_CUDA_ERROR

}  // namespace fdjax::decoder_stack
