// Programmatic dependent launch: a kernel that starts before its predecessor has ended.
//
// With the launch attribute (launch.h), the blocks of a kernel start as soon as every
// block of the kernel before it has called `pdl_release` (or has ended) and there is
// room on the SMs. What no kernel in flight writes, such as weights, may be read at
// once; everything else after `pdl_wait`, which returns when the predecessor has ended
// and its writes are visible. Nothing may be *written* before `pdl_wait` either: the
// predecessor may still read the buffer that our result reuses. (The one exception is
// told in prefill_attention/launch.cuh.) Without the attribute both do nothing.
//
// Behind `pdl_wait` all kernels before have ended, not the predecessor alone: it ended
// after one of its threads had waited for its own predecessor, and so on. So in every
// kernel with the attribute some thread of the grid waits before it ends. (Not some
// thread of every block: a block of decode attention that has no item leaves at once,
// and so does one of `persistent` without a tile. Some other block has one, and the
// grid has not ended before that.)
//
// Ahead of `pdl_wait` any number of kernels may still be in flight: each may have
// released its successor before it waited. So what is read there must be older than a
// launch without the attribute, which begins when all before it has ended. In
// layer_program that is the chain's first kernel, an embedding. Behind it attention
// reads early a plan, page tables, slots, angles and older tokens' pages, which XLA's
// kernels or earlier steps have written; the chain writes none of them but the newest
// token's slot, for which shared memory has what attention itself makes
// (decode_attention/newest.cuh), and a plan's counters, which nobody reads early. Where
// other kernels of the chain write pages, attention of rows that decode is launched
// without the attribute.
#pragma once

namespace fdjax {

__device__ inline void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void pdl_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fdjax
