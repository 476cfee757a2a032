// FDJAX_HOST_DEVICE: of functions that kernels call, and compilers without kernels,
// too.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define FDJAX_HOST_DEVICE __host__ __device__
#else
#define FDJAX_HOST_DEVICE
#endif
