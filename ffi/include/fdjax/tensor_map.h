// Tensor maps: what TMA must know of a matrix in global memory.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace fdjax {

// A row-major matrix of 16 bit elements, read in tiles.
struct TileSource {
  const void* data;
  int64_t rows, columns;
  int tile_rows, tile_columns;
};

// The same of more dimensions, in the order in which a tile's elements arrive; the
// elements of the first are neighbours in memory, the others are `strides` bytes apart.
template <int kRank>
struct BoxSource {
  const void* data;
  cuuint64_t sizes[kRank], strides[kRank - 1];
  cuuint32_t box[kRank];
};

using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);

// cuTensorMapEncodeTiled, without linking the driver's library: nullptr if the driver
// has none.
inline TensorMapEncoder tensor_map_encoder() {
  static const TensorMapEncoder encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    const bool ok = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return reinterpret_cast<TensorMapEncoder>(ok ? function : nullptr);
  }();
  return encoder;
}

// No promotion to larger L2 accesses: 256 bytes cost 7 % of the read bandwidth of an
// H200 (4,320 instead of 4,665 GB/s, for TMA as for ordinary loads).
//
// Encodes a map whose tiles arrive in shared memory with the 128 byte swizzle: rows of
// 128 bytes (tile_columns = 64) one after another, the 16 byte chunks of row r permuted
// by chunk ^ (r % 8). Eight rows of the same columns then lie in different banks, which
// is how the tensor cores read. Host only, no CUDA call: it may run during capture.
inline bool encode_tensor_map(const void* data, int rank, const cuuint64_t* sizes,
                              const cuuint64_t* strides, const cuuint32_t* box,
                              bool bfloat16, CUtensorMap* map) {
  const auto encode = tensor_map_encoder();
  if (encode == nullptr) return false;
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUresult result = encode(
      map,
      bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      rank, const_cast<void*>(data), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS;
}

inline bool encode_tensor_map(const TileSource& source, bool bfloat16,
                              CUtensorMap* map) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(source.columns),
                              static_cast<cuuint64_t>(source.rows)};
  const cuuint64_t strides[] = {sizes[0] * 2};
  const cuuint32_t tile[] = {static_cast<cuuint32_t>(source.tile_columns),
                             static_cast<cuuint32_t>(source.tile_rows)};
  return encode_tensor_map(source.data, 2, sizes, strides, tile, bfloat16, map);
}

template <int kRank>
bool encode_tensor_map(const BoxSource<kRank>& source, bool bfloat16,
                       CUtensorMap* map) {
  static_assert(kRank <= 4);
  return encode_tensor_map(source.data, kRank, source.sizes, source.strides, source.box,
                           bfloat16, map);
}

}  // namespace fdjax
