// Instructions of attention's kernels that C++ has no words for.
#pragma once

#include <cstdint>

#include "fdjax/mma.cuh"

namespace fdjax::decode_attention {

__device__ inline uint32_t transpose(uint32_t matrix) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(matrix));
  return out;
}

// k = 8, operands in TF32: float32's range, 10 bits of mantissa.
__device__ inline void multiply_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t to_tf32(float x) {
  uint32_t out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));
  return out;
}

__device__ inline void store_shared(uint32_t target, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ inline uint4 load_shared(uint32_t source) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(source)
               : "memory");
  return value;
}

// A load of what every layer reads again, a step's plan and page ids: the weights and
// pages that stream by between two layers do not push it out of the L2.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr uint64_t kKeep = 0x14F0000000000000;  // CachePolicy::kEvictLast
__device__ inline int load_kept(const int32_t* source) {
  int value;
  asm volatile("ld.global.L2::cache_hint.s32 %0, [%1], %2;"
               : "=r"(value)
               : "l"(source), "l"(kKeep));
  return value;
}
__device__ inline uint4 load_kept(const uint4* source) {
  uint4 value;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(source), "l"(kKeep));
  return value;
}
#else
__device__ inline int load_kept(const int32_t* source) { return *source; }
__device__ inline uint4 load_kept(const uint4* source) { return *source; }
#endif

}  // namespace fdjax::decode_attention
