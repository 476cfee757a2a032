// TMA: one thread starts a copy of a tile of a matrix in global memory.
//
// The tensor map (tensor_map.h) knows the matrix and the tile's size; coordinates
// outside the matrix read as zero, so edges need no special case. Bytes are counted on
// an mbarrier.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdjax/mbarrier.cuh"

namespace fdjax {

// Hints for the L2 cache, as `createpolicy` encodes them.
enum class CachePolicy : uint64_t {
  kEvictFirst = 0x12F0000000000000,  // read once: weights
  kEvictLast = 0x14F0000000000000,   // read by every block: activations
  kNormal = 0x1000000000000000,
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Starts the copy of the tile whose first element is (row, column) to `target`.
__device__ inline void tma_load(void* target, const CUtensorMap* map, int column,
                                int row, uint64_t* barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(target)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

// The same of a tile of three dimensions, the first the one whose elements are
// neighbours.
__device__ inline void tma_load_3d(uint32_t target, const CUtensorMap* map, int x,
                                   int y, int z, uint64_t* barrier,
                                   CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(target),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

// The same of a tile of four dimensions.
__device__ inline void tma_load_4d(uint32_t target, const CUtensorMap* map, int x,
                                   int y, int z, int w, uint64_t* barrier,
                                   CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(target),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier)),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

// The same into every block of the cluster whose bit is set in `blocks`, at the same
// place of each, and counted by the same barrier of each.
__device__ inline void tma_load_to(uint16_t blocks, void* target,
                                   const CUtensorMap* map, int column, int row,
                                   uint64_t* barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(
          shared_address(target)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

// The same of a tile of three dimensions.
__device__ inline void tma_load_3d_to(uint16_t blocks, uint32_t target,
                                      const CUtensorMap* map, int x, int y, int z,
                                      uint64_t* barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::
          "r"(target),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)), "h"(blocks),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

// Starts the copy of a tile from shared memory to where (row, column) is its first
// element; what lies outside the matrix is not written. What threads wrote there must
// be known to the asynchronous proxy (async_proxy_fence). Copies belong to a group of
// the thread that starts them.
__device__ inline void tma_store(const CUtensorMap* map, int column, int row,
                                 uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], "
      "[%3];" ::"l"(map),
      "r"(column), "r"(row), "r"(source)
      : "memory");
}

__device__ inline void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until what this thread's copies read may be overwritten.
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until they have written.
__device__ inline void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif

}  // namespace fdjax
