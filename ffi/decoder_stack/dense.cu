// The launch of a layer's dense part.
#include <algorithm>

#include "decoder_stack/dense.cuh"
#include "fdjax/launch.h"
#include "fdjax/tensor_map.h"

namespace fdjax::decoder_stack {
namespace {

cudaError_t launch_blocks(cudaStream_t stream, const DenseMaps& maps,
                          const DenseParams& p) {
  int blocks = 0;
  for (int i = 0; i < p.count; ++i) blocks = std::max(blocks, p.segments[i].blocks());
  // Blocks wait for each other: all of them must be on the machine.
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (blocks > multiprocessors) return cudaErrorCooperativeLaunchTooLarge;
  const int bytes = p.stages * p.slot_bytes + kWarpgroups * kSumFloats * 4 + 1024;
  return launch({.stream = stream,
                 .grid = dim3(blocks),
                 .threads = kDenseThreads,
                 .shared_bytes = bytes,
                 .programmatic = true},
                dense, maps, p);
}

}  // namespace

cudaError_t launch_dense(cudaStream_t stream, DenseParams p, const void* const* x,
                         const void* const* weights) {
  DenseMaps maps;
  p.slot_bytes = 0;
  for (int i = 0; i < p.count; ++i) {
    Segment& s = p.segments[i];
    s.depth = (s.k / kBoxColumns + kBoxes - 1) / kBoxes;
    p.slot_bytes = std::max(p.slot_bytes, s.weight_bytes() + x_bytes());
    const BoxSource weight{weights[i], s.n, s.k, s.tile_rows, kBoxes};
    const BoxSource tokens{x[i], p.m, s.k, kTokens, kBoxes};
    if (!encode_box_map(weight, &maps.weights[i]) ||
        !encode_box_map(tokens, &maps.x[i])) {
      return cudaErrorInvalidValue;
    }
  }
  return launch_blocks(stream, maps, p);
}

}  // namespace fdjax::decoder_stack
