// The chain with the dense part of each layer as one kernel; bfloat16 only.
#pragma once

#include "decoder_stack/stack.cuh"

namespace fdjax::decoder_stack {

inline constexpr int kMaxDenseBlocks = 256;
inline constexpr int kCounters = 3;  // of a layer

// Blocks count themselves, and leave sums of squares, in here.
struct Scratch {
  int32_t* counters;        // [layers, kCounters]
  float *of_middle, *of_x;  // [kMaxDenseBlocks, kTokens] each

  static constexpr int64_t kSquares = int64_t{kMaxDenseBlocks} * kTokens;
  static constexpr int64_t counters_of(int64_t layers) { return layers * kCounters; }
  static constexpr int64_t size(int64_t layers) {
    return counters_of(layers) + 2 * kSquares;
  }
  explicit Scratch(const Stack& s)
      : counters(s.buffers.scratch),
        of_middle(reinterpret_cast<float*>(s.buffers.scratch + counters_of(s.layers))),
        of_x(of_middle + kSquares) {}
};

// The products of one launch, in order.
struct Dense {
  const Stack& s;
  DenseParams p{};
  const void* x[kSegments];
  const void* weights[kSegments];

  explicit Dense(const Stack& stack, int32_t* counters) : s(stack) {
    p.m = s.sizes.rows;
    p.stages = s.plan.dense.stages;
    p.norm_size = s.norm.size;
    p.epsilon = s.norm.epsilon;
    p.scale_offset = s.norm.scale_offset;
    p.activation = s.activation;
    p.counters = counters;
  }

  // A product that needs, if it is not the first, the results of the one before.
  Segment& add(const void* input, const void* weight, const Tiles& cut, int n, int k) {
    const int index = p.count++;
    x[index] = input;
    weights[index] = weight;
    Segment& segment = p.segments[index];
    segment.tiles = cut.tiles;
    segment.tile_rows = cut.tile_rows;
    segment.n = segment.columns = n;
    segment.k = k;
    segment.wait_for = index == 0 ? kNoCounter : index - 1;
    segment.signal = index < kCounters ? index : kNoCounter;
    return segment;
  }

  cudaError_t launch() const { return launch_dense(s.stream, p, x, weights); }
};

inline void add_qkv(Dense& dense, const Layer& layer, const float* squares) {
  const Stack& s = dense.s;
  Segment& qkv = dense.add(s.buffers.normal, layer.qkv, s.plan.dense.qkv,
                           s.sizes.qkv_columns(), s.sizes.hidden);
  qkv.bias = layer.qkv_bias;
  qkv.y = s.buffers.qkv;
  qkv.squares_before = squares;
}

// mixed -> x, and the norm's input for what follows.
inline void add_feed_forward(Dense& dense, const Layer& layer, int index,
                             const void* next_norm, const Scratch& scratch) {
  const Stack& s = dense.s;
  const Buffers& b = s.buffers;
  const Sizes& size = s.sizes;
  Segment& out = dense.add(b.mixed, layer.out, s.plan.dense.out, size.hidden,
                           size.mixed_columns());
  out.residual = index == 0 ? b.x_in : b.x;
  out.y = b.middle;
  out.scale = layer.mlp_norm;
  out.scaled = b.normal;
  out.squares = scratch.of_middle;

  Segment& up = dense.add(b.normal, layer.up, s.plan.dense.up, 2 * size.intermediate,
                          size.hidden);
  up.columns = size.intermediate;
  up.gated = true;
  up.y = b.gated;
  up.squares_before = scratch.of_middle;

  Segment& down =
      dense.add(b.gated, layer.down, s.plan.dense.down, size.hidden, size.intermediate);
  down.residual = b.middle;
  down.y = b.x;
  down.scale = next_norm;
  down.scaled = b.normal;
  down.squares = scratch.of_x;
}

// Every layer as three kernels.
template <typename T>
cudaError_t run_dense(const Stack& s, const Layer* layers) {
  const Scratch scratch(s);
  FDJAX_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(
      scratch.counters, 0, Scratch::counters_of(s.layers) * sizeof(int32_t), s.stream));
  FDJAX_RETURN_IF_CUDA_ERROR(normalise<T>(s, s.buffers.x_in, layers[0].attention_norm,
                                          /*programmatic=*/false));
  Dense first(s, nullptr);
  add_qkv(first, layers[0], nullptr);
  FDJAX_RETURN_IF_CUDA_ERROR(first.launch());
  for (int i = 0; i < s.layers; ++i) {
    FDJAX_RETURN_IF_CUDA_ERROR(mix<T>(s, i));
    const bool last = i + 1 == s.layers;
    Dense dense(s, scratch.counters + Scratch::counters_of(i));
    add_feed_forward(dense, layers[i], i, last ? nullptr : layers[i + 1].attention_norm,
                     scratch);
    if (!last) add_qkv(dense, layers[i + 1], scratch.of_x);
    FDJAX_RETURN_IF_CUDA_ERROR(dense.launch());
  }
  return cudaSuccess;
}

#undef FDJAX_RETURN_IF_CUDA_ERROR

}  // namespace fdjax::decoder_stack
