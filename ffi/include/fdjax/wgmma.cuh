// wgmma: the tensor cores of Hopper, fed from shared memory by four warps at once.
//
// D[64, n] += A[64, 16] * B[n, 16]^T. Both operands lie in shared memory as rows of 64
// elements along K (128 bytes) with the 128 byte swizzle of tensor_map.h. D is spread
// over the 128 threads' registers: thread t of warp w holds, for each group of 8
// columns j, d[4 * j + 2 * i + c] = D[16 * w + t / 4 + 8 * i][8 * j + t % 4 * 2 + c].
//
// The instructions are asynchronous: fence before the first one that uses registers
// written otherwise, commit a group, wait for it before reading its registers or
// overwriting its operands.
#pragma once

#include <cstdint>

#include "fdjax/gpu.h"
#include "fdjax/mbarrier.cuh"

namespace fdjax {

// A matrix of rows of 128 bytes, swizzled, that starts at a multiple of 1024 bytes.
// Advancing by 16 elements along K adds kWgmmaStepK.
__device__ inline uint64_t wgmma_matrix(const void* pointer) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;  // to the next 8 rows
  constexpr uint64_t kUnused = uint64_t{1} << 16;             // only without a swizzle
  const uint64_t address = (shared_address(pointer) & 0x3ffff) >> 4;
  return kSwizzle128 | kEightRows | kUnused | address;
}
inline constexpr uint64_t kWgmmaStepK = 32 >> 4;

__device__ inline void wgmma_fence() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ inline void wgmma_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most kPending groups, the latest ones, are unfinished.
template <int kPending>
__device__ inline void wgmma_wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// Keeps the compiler from moving other uses of accumulators between the instructions of
// a group; it would have to serialise those (ptxas says so as C7515).
template <int kCount>
__device__ inline void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");
}

template <typename T, int kN>
struct Wgmma;

#define FDJAX_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FDJAX_D8(i) FDJAX_D4(i), FDJAX_D4(i + 4)
#define FDJAX_D16(i) FDJAX_D8(i), FDJAX_D8(i + 8)
#define FDJAX_D32(i) FDJAX_D16(i), FDJAX_D16(i + 16)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FDJAX_WGMMA_ASM(type, n, registers, a_index, b_index, ...)             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" registers "}, " a_index ", " b_index ", 1, 1, 1, 0, 0;"    \
               : __VA_ARGS__                                                   \
               : "l"(a), "l"(b))
#else
#define FDJAX_WGMMA_ASM(...)
#endif

#define FDJAX_WGMMA(T, type, n, registers, a_index, b_index, ...)           \
  template <>                                                               \
  struct Wgmma<T, n> {                                                      \
    __device__ static void add(float (&d)[n / 2], uint64_t a, uint64_t b) { \
      FDJAX_WGMMA_ASM(type, n, registers, a_index, b_index, __VA_ARGS__);   \
    }                                                                       \
  };

#define FDJAX_R4 "%0,%1,%2,%3"
#define FDJAX_R8 FDJAX_R4 ",%4,%5,%6,%7"
#define FDJAX_R16 FDJAX_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define FDJAX_R32 \
  FDJAX_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"

#define FDJAX_WGMMA_OF(T, type)                                   \
  FDJAX_WGMMA(T, type, 8, FDJAX_R4, "%4", "%5", FDJAX_D4(0))      \
  FDJAX_WGMMA(T, type, 16, FDJAX_R8, "%8", "%9", FDJAX_D8(0))     \
  FDJAX_WGMMA(T, type, 32, FDJAX_R16, "%16", "%17", FDJAX_D16(0)) \
  FDJAX_WGMMA(T, type, 64, FDJAX_R32, "%32", "%33", FDJAX_D32(0))

FDJAX_WGMMA_OF(GpuFloats::bfloat16, "bf16")
FDJAX_WGMMA_OF(GpuFloats::float16, "f16")

#undef FDJAX_D4
#undef FDJAX_D8
#undef FDJAX_D16
#undef FDJAX_D32
#undef FDJAX_R4
#undef FDJAX_R8
#undef FDJAX_R16
#undef FDJAX_R32
#undef FDJAX_WGMMA_ASM
#undef FDJAX_WGMMA
#undef FDJAX_WGMMA_OF

}  // namespace fdjax
