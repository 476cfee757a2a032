// Programmatic dependent launch: a kernel that starts before its predecessor has ended.
//
// With the launch attribute (launch.h), the blocks of a kernel start as soon as every
// block of the kernel before it has called `pdl_release` (or has ended) and there is
// room on the SMs. Whatever does not depend on the predecessor, such as
// weights, may be read at once; everything else after `pdl_wait`, which returns when
// the predecessor has ended and its writes are visible. Nothing may be *written* before
// `pdl_wait` either: the predecessor may still read the buffer that our result reuses.
// Without the attribute both do nothing.
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
