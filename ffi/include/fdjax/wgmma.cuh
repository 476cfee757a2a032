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

inline constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
inline constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;  // to the next 8 rows

// A matrix of rows of 128 bytes, swizzled, that starts at a multiple of 1024 bytes.
// Advancing by 16 elements along K adds kWgmmaStepK.
__device__ inline uint64_t wgmma_matrix(uint32_t address) {
  constexpr uint64_t kUnused = uint64_t{1} << 16;  // only without a swizzle
  return kSwizzle128 | kEightRows | kUnused | (address & 0x3ffff) >> 4;
}
inline constexpr uint64_t kWgmmaStepK = 32 >> 4;

// A matrix [16, n] whose rows lie along N, in boxes of 64 columns: rows of 128 bytes,
// swizzled, that start at a multiple of 1024 bytes; `box_bytes` from a box to the next.
__device__ inline uint64_t wgmma_rows(uint32_t address, uint64_t box_bytes) {
  return kSwizzle128 | kEightRows | (box_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Registers of a warpgroup: it gives back all but `kCount`, or waits until it has them.
// All its warps do, and the block's sum must not exceed what it started with.
template <int kCount>
__device__ inline void release_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ inline void acquire_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

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
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The wgmma of a warpgroup, kN columns of D at a time.
//   add        D += A * B^T
//   set        D = A * B^T
//   add_rows   D += A * B, with B as `wgmma_rows`; A comes from registers: as D's, two
//              neighbouring columns a register, of columns 8 apart and rows 8 apart
template <typename T, int kN>
struct Wgmma;

#define FDJAX_D4(how, i) how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3])
#define FDJAX_D8(how, i) FDJAX_D4(how, i), FDJAX_D4(how, i + 4)
#define FDJAX_D16(how, i) FDJAX_D8(how, i), FDJAX_D8(how, i + 8)
#define FDJAX_D32(how, i) FDJAX_D16(how, i), FDJAX_D16(how, i + 16)
#define FDJAX_D48(how, i) FDJAX_D32(how, i), FDJAX_D16(how, i + 32)
#define FDJAX_D64(how, i) FDJAX_D32(how, i), FDJAX_D32(how, i + 32)
#define FDJAX_D72(how, i) FDJAX_D64(how, i), FDJAX_D8(how, i + 64)
#define FDJAX_D96(how, i) FDJAX_D64(how, i), FDJAX_D32(how, i + 64)
#define FDJAX_D128(how, i) FDJAX_D64(how, i), FDJAX_D64(how, i + 64)

#define FDJAX_R4 "%0,%1,%2,%3"
#define FDJAX_R8 FDJAX_R4 ",%4,%5,%6,%7"
#define FDJAX_R16 FDJAX_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define FDJAX_R32 \
  FDJAX_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define FDJAX_R48 \
  FDJAX_R32       \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define FDJAX_R64 \
  FDJAX_R48       \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define FDJAX_R72 FDJAX_R64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define FDJAX_R96                                            \
  FDJAX_R72                                                  \
  ",%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85" \
  ",%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define FDJAX_R128                                                          \
  FDJAX_R96                                                                 \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110" \
  ",%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124"  \
  ",%125,%126,%127"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FDJAX_WGMMA_ASM(type, n, ...)                                          \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " " __VA_ARGS__)
#else
#define FDJAX_WGMMA_ASM(...)
#endif

// `D`: the list of D's registers, `R`: their names; `i0` to `i4`: those of what
// follows.
#define FDJAX_WGMMA(T, type, n, D, R, i0, i1, i2, i3, i4)                              \
  template <>                                                                          \
  struct Wgmma<T, n> {                                                                 \
    __device__ static void add(float (&d)[n / 2], uint64_t a, uint64_t b) {            \
      FDJAX_WGMMA_ASM(type, n,                                                         \
                      "{" R "}, " i0 ", " i1 ", 1, 1, 1, 0, 0;" : D("+f", 0) : "l"(a), \
                      "l"(b));                                                         \
    }                                                                                  \
    __device__ static void set(float (&d)[n / 2], uint64_t a, uint64_t b) {            \
      FDJAX_WGMMA_ASM(type, n,                                                         \
                      "{" R "}, " i0 ", " i1 ", 0, 1, 1, 0, 0;" : D("=f", 0) : "l"(a), \
                      "l"(b));                                                         \
    }                                                                                  \
    __device__ static void add_rows(float (&d)[n / 2], const uint32_t (&a)[4],         \
                                    uint64_t b) {                                      \
      FDJAX_WGMMA_ASM(type, n,                                                         \
                      "{" R "}, {" i0 ", " i1 ", " i2 ", " i3 "}, " i4                 \
                      ", 1, 1, 1, 1;" : D("+f", 0) : "r"(a[0]),                        \
                      "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }                                                                                  \
  };

#define FDJAX_WGMMA_OF(T, type)                                                       \
  FDJAX_WGMMA(T, type, 8, FDJAX_D4, FDJAX_R4, "%4", "%5", "%6", "%7", "%8")           \
  FDJAX_WGMMA(T, type, 16, FDJAX_D8, FDJAX_R8, "%8", "%9", "%10", "%11", "%12")       \
  FDJAX_WGMMA(T, type, 32, FDJAX_D16, FDJAX_R16, "%16", "%17", "%18", "%19", "%20")   \
  FDJAX_WGMMA(T, type, 64, FDJAX_D32, FDJAX_R32, "%32", "%33", "%34", "%35", "%36")   \
  FDJAX_WGMMA(T, type, 96, FDJAX_D48, FDJAX_R48, "%48", "%49", "%50", "%51", "%52")   \
  FDJAX_WGMMA(T, type, 128, FDJAX_D64, FDJAX_R64, "%64", "%65", "%66", "%67", "%68")  \
  FDJAX_WGMMA(T, type, 144, FDJAX_D72, FDJAX_R72, "%72", "%73", "%74", "%75", "%76")  \
  FDJAX_WGMMA(T, type, 192, FDJAX_D96, FDJAX_R96, "%96", "%97", "%98", "%99", "%100") \
  FDJAX_WGMMA(T, type, 256, FDJAX_D128, FDJAX_R128, "%128", "%129", "%130", "%131",   \
              "%132")

FDJAX_WGMMA_OF(GpuFloats::bfloat16, "bf16")
FDJAX_WGMMA_OF(GpuFloats::float16, "f16")

#undef FDJAX_D4
#undef FDJAX_D8
#undef FDJAX_D16
#undef FDJAX_D32
#undef FDJAX_D48
#undef FDJAX_D64
#undef FDJAX_D72
#undef FDJAX_D96
#undef FDJAX_D128
#undef FDJAX_R4
#undef FDJAX_R8
#undef FDJAX_R16
#undef FDJAX_R32
#undef FDJAX_R48
#undef FDJAX_R64
#undef FDJAX_R72
#undef FDJAX_R96
#undef FDJAX_R128
#undef FDJAX_WGMMA_ASM
#undef FDJAX_WGMMA
#undef FDJAX_WGMMA_OF

}  // namespace fdjax
