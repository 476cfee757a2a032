#include "matmul/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <type_traits>

#include "fdjax/gpu.h"
#include "matmul/cublaslt.h"

namespace fdjax::matmul {
namespace {

using namespace cublaslt;

class Library {
 public:
  Library() {
    // JAX's CUDA plugin has loaded one of these.
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      if (handle_ == nullptr) handle_ = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    }
    if (handle_ == nullptr) {
      problem = "JAX has not loaded libcublasLt.so.13; install jax[cuda13]";
      return;
    }
    find("cublasLtCreate", &call.Create);
    find("cublasLtMatmulDescCreate", &call.MatmulDescCreate);
    find("cublasLtMatmulDescSetAttribute", &call.MatmulDescSetAttribute);
    find("cublasLtMatmulDescDestroy", &call.MatmulDescDestroy);
    find("cublasLtMatrixLayoutCreate", &call.MatrixLayoutCreate);
    find("cublasLtMatrixLayoutDestroy", &call.MatrixLayoutDestroy);
    find("cublasLtMatmulPreferenceCreate", &call.MatmulPreferenceCreate);
    find("cublasLtMatmulPreferenceSetAttribute", &call.MatmulPreferenceSetAttribute);
    find("cublasLtMatmulPreferenceDestroy", &call.MatmulPreferenceDestroy);
    find("cublasLtMatmulAlgoGetHeuristic", &call.MatmulAlgoGetHeuristic);
    find("cublasLtMatmul", &call.Matmul);
  }

  Functions call{};
  std::string problem;

 private:
  template <typename F>
  void find(const char* name, F* function) {
    *function = reinterpret_cast<F>(dlsym(handle_, name));
    if (*function == nullptr) problem = std::string("libcublasLt has no ") + name;
  }

  void* handle_ = nullptr;
};

// The same library for all devices, loaded for as long as the process lives.
const Library& library() {
  static const Library* const library = new Library();
  return *library;
}

// What decides an algorithm: device, types of x and y, whether there is a bias, m, n,
// k, candidate.
using Key = std::tuple<int, cudaDataType_t, cudaDataType_t, bool, int, int, int, int>;

inline constexpr int kMaxCandidates = 8;

struct Made {
  std::mutex mutex;
  std::map<int, Handle> handles;
  std::map<Key, Algorithm> algorithms;
};

Made& made() {
  static Made* const made = new Made();
  return *made;
}

Handle handle_of(int device) {
  const std::lock_guard lock(made().mutex);
  const auto found = made().handles.find(device);
  return found == made().handles.end() ? nullptr : found->second;
}

template <typename T, int (*Functions::*kDestroy)(T*)>
struct Destroyer {
  void operator()(T* object) const { (library().call.*kDestroy)(object); }
};
using OwnedOperation =
    std::unique_ptr<OperationOf, Destroyer<OperationOf, &Functions::MatmulDescDestroy>>;
using OwnedLayout =
    std::unique_ptr<LayoutOf, Destroyer<LayoutOf, &Functions::MatrixLayoutDestroy>>;
using OwnedPreference =
    std::unique_ptr<PreferenceOf,
                    Destroyer<PreferenceOf, &Functions::MatmulPreferenceDestroy>>;

// A row-major [rows, columns] is a column-major [columns, rows].
OwnedLayout layout_of(cudaDataType_t type, int rows, int columns) {
  Layout layout = nullptr;
  library().call.MatrixLayoutCreate(&layout, type, columns, rows, columns);
  return OwnedLayout(layout);
}

// y^T = weight x^T, and a bias for each row of y^T.
OwnedOperation operation_of(const Params& p) {
  const Functions& call = library().call;
  Operation operation = nullptr;
  call.MatmulDescCreate(&operation, kCompute32F, CUDA_R_32F);
  call.MatmulDescSetAttribute(operation, kTransposeA, &kTransposed, sizeof kTransposed);
  if (p.bias != nullptr) {
    call.MatmulDescSetAttribute(operation, kEpilogue, &kEpilogueBias,
                                sizeof kEpilogueBias);
    call.MatmulDescSetAttribute(operation, kBiasPointer, &p.bias, sizeof p.bias);
  }
  return OwnedOperation(operation);
}

// A GEMM in the library's terms.
struct Gemm {
  OwnedOperation operation;
  OwnedLayout weight, x, y;
};

// A candidate of the heuristic's for GEMMs without workspace, its last if it has
// fewer. It computes on the host alone.
bool choose(Handle handle, const Gemm& gemm, const Key& key, int candidate,
            Algorithm* chosen) {
  const std::lock_guard lock(made().mutex);
  if (const auto found = made().algorithms.find(key);
      found != made().algorithms.end()) {
    *chosen = found->second;
    return true;
  }
  const Functions& call = library().call;
  Preference made_preference = nullptr;
  call.MatmulPreferenceCreate(&made_preference);
  const OwnedPreference preference(made_preference);
  const size_t workspace_bytes = 0;
  call.MatmulPreferenceSetAttribute(preference.get(), kMaxWorkspaceBytes,
                                    &workspace_bytes, sizeof workspace_bytes);
  Heuristic candidates[kMaxCandidates];
  int found = 0;
  const int status = call.MatmulAlgoGetHeuristic(
      handle, gemm.operation.get(), gemm.weight.get(), gemm.x.get(), gemm.y.get(),
      gemm.y.get(), preference.get(), std::min(candidate + 1, kMaxCandidates),
      candidates, &found);
  if (status != kSuccess || found == 0) return false;
  *chosen = made().algorithms[key] = candidates[found - 1].algorithm;
  return true;
}

}  // namespace

// Several threads may prepare a device at a time, when they load programs; a handle
// that is made twice would be lost.
void prepare_library(int device) {
  if (!library().problem.empty()) return;
  const std::lock_guard lock(made().mutex);
  if (made().handles.contains(device)) return;
  Handle handle = nullptr;
  if (library().call.Create(&handle) == kSuccess) {
    made().handles.emplace(device, handle);
  }
}

std::string library_problem(int device) {
  if (!library().problem.empty()) return library().problem;
  return handle_of(device) == nullptr ? "cublasLtCreate failed" : "";
}

template <typename T>
cudaError_t launch_library(const Params& p, int candidate, cudaStream_t stream) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return error;
  }
  const Handle handle = handle_of(device);
  // What is added has the type of x, and the library takes that of y.
  const bool adds = p.bias != nullptr || p.residual != nullptr;
  if (handle == nullptr || p.gated || (p.float32 && adds)) return cudaErrorInvalidValue;
  const cudaDataType_t type =
      std::is_same_v<T, GpuFloats::bfloat16> ? CUDA_R_16BF : CUDA_R_16F;
  const cudaDataType_t y_type = p.float32 ? CUDA_R_32F : type;
  const Gemm gemm{operation_of(p), layout_of(type, p.n, p.k), layout_of(type, p.m, p.k),
                  layout_of(y_type, p.m, p.n)};
  Algorithm algorithm;
  const Key key{device, type, y_type, p.bias != nullptr, p.m, p.n, p.k, candidate};
  if (!choose(handle, gemm, key, candidate, &algorithm)) {
    return cudaErrorNotSupported;
  }
  const float one = 1.0f, beta = p.residual == nullptr ? 0.0f : 1.0f;
  const void* const added = p.residual == nullptr ? p.y : p.residual;
  const int status = library().call.Matmul(
      handle, gemm.operation.get(), &one, p.weight.values, gemm.weight.get(), p.x,
      gemm.x.get(), &beta, added, gemm.y.get(), p.y, gemm.y.get(), &algorithm, nullptr,
      0, stream);
  return status == kSuccess ? cudaSuccess : cudaErrorLaunchFailure;
}

template cudaError_t launch_library<GpuFloats::bfloat16>(const Params&, int,
                                                         cudaStream_t);
template cudaError_t launch_library<GpuFloats::float16>(const Params&, int,
                                                        cudaStream_t);

}  // namespace fdjax::matmul
