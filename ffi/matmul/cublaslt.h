// The part of cuBLASLt's C interface that is used here.
//
// JAX's wheels bring the library, and a CUDA toolkit need not bring its header. Numbers
// and layouts are those of cublasLt.h, which have not changed since version 11.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace fdjax::matmul::cublaslt {

inline constexpr int kSuccess = 0;
inline constexpr int kCompute32F = 68;
inline constexpr int kTransposed = 1;
inline constexpr int kEpilogueBias = 4;
// Attributes: of an operation, of a preference.
inline constexpr int kTransposeA = 3, kEpilogue = 7, kBiasPointer = 8;
inline constexpr int kMaxWorkspaceBytes = 1;

struct Algorithm {
  uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

using Handle = struct HandleOf*;
using Operation = struct OperationOf*;    // cublasLtMatmulDesc_t
using Layout = struct LayoutOf*;          // cublasLtMatrixLayout_t, column-major
using Preference = struct PreferenceOf*;  // cublasLtMatmulPreference_t

// The library's functions, by their names without cublasLt.
struct Functions {
  int (*Create)(Handle*);
  int (*MatmulDescCreate)(Operation*, int compute, cudaDataType_t scale);
  int (*MatmulDescSetAttribute)(Operation, int, const void*, size_t);
  int (*MatmulDescDestroy)(Operation);
  int (*MatrixLayoutCreate)(Layout*, cudaDataType_t, uint64_t rows, uint64_t columns,
                            int64_t leading);
  int (*MatrixLayoutDestroy)(Layout);
  int (*MatmulPreferenceCreate)(Preference*);
  int (*MatmulPreferenceSetAttribute)(Preference, int, const void*, size_t);
  int (*MatmulPreferenceDestroy)(Preference);
  int (*MatmulAlgoGetHeuristic)(Handle, Operation, Layout a, Layout b, Layout c,
                                Layout d, Preference, int wanted, Heuristic*,
                                int* found);
  int (*Matmul)(Handle, Operation, const void* alpha, const void* a, Layout,
                const void* b, Layout, const void* beta, const void* c, Layout, void* d,
                Layout, const Algorithm*, void* workspace, size_t workspace_bytes,
                cudaStream_t);
};

}  // namespace fdjax::matmul::cublaslt
