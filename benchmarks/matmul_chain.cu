// Flat GEMMs as a decode step runs them: one after the other in a CUDA graph, with and
// without programmatic dependent launch, every launch config of flat, and cuBLAS.
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -Iffi/include -Iffi \
//     benchmarks/matmul_chain.cu -o matmul_chain -ldl
//   ./matmul_chain [path of libcublas.so] > matmul_chain.json
//
// Weights are random and rotated through memory: more than the L2 cache holds. Every
// launch config is checked against float32 sums before it is timed.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "matmul/launch.cuh"

namespace {

using namespace fdjax::matmul;
using T = fdjax::GpuFloats::bfloat16;

constexpr size_t kPoolBytes = size_t{5} << 30;
constexpr int kMaxColumns = 131072, kMaxDepth = 14336;

void check(cudaError_t error, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(expression) check((expression), __LINE__)

// Uniform in [-1, 1).
__global__ void fill(T* data, size_t count, unsigned seed) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += stride) {
    unsigned h = static_cast<unsigned>(i) * 2654435761u + seed * 40503u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    data[i] = __float2bfloat16(((h >> 8 & 0xffff) / 32768.0f) - 1.0f);
  }
}

// One warp a column of y, all tokens.
__global__ void reference(Params p, float* out) {
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (column >= p.columns) return;
  const T* w = static_cast<const T*>(p.weight.values) + size_t{unsigned(column)} * p.k;
  for (int m = 0; m < p.m; ++m) {
    const T* x = static_cast<const T*>(p.x) + size_t{unsigned(m)} * p.k;
    float sum = 0.0f;
    for (int k = threadIdx.x % 32; k < p.k; k += 32) {
      sum = fmaf(__bfloat162float(x[k]), __bfloat162float(w[k]), sum);
    }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    out[size_t{unsigned(m)} * p.columns + column] = sum;
  }
}

// The largest difference and the largest value, as bits of positive floats.
__global__ void compare(const float* expected, const void* y, bool float32,
                        size_t count, unsigned* largest) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += stride) {
    const float value = float32 ? static_cast<const float*>(y)[i]
                                : __bfloat162float(static_cast<const T*>(y)[i]);
    const float difference = fabsf(value - expected[i]);
    atomicMax(largest, __float_as_uint(difference < 1e30f ? difference : 1e30f));
    atomicMax(largest + 1, __float_as_uint(fabsf(expected[i])));
  }
}

struct Machine {
  cudaStream_t stream;
  cudaEvent_t start, stop;
  char* pool;
  T* x;
  void* y;
  float* expected;
  unsigned* largest;
};

Machine prepare() {
  Machine m;
  CHECK(cudaStreamCreate(&m.stream));
  CHECK(cudaEventCreate(&m.start));
  CHECK(cudaEventCreate(&m.stop));
  CHECK(cudaMalloc(&m.pool, kPoolBytes));
  CHECK(cudaMalloc(&m.x, size_t{64} * kMaxDepth * 2));
  CHECK(cudaMalloc(&m.y, size_t{64} * kMaxColumns * 4));
  CHECK(cudaMalloc(&m.expected, size_t{64} * kMaxColumns * 4));
  CHECK(cudaMalloc(&m.largest, 8));
  fill<<<2048, 256>>>(reinterpret_cast<T*>(m.pool), kPoolBytes / 2, 1);
  fill<<<256, 256>>>(m.x, size_t{64} * kMaxDepth, 2);
  CHECK(cudaDeviceSynchronize());
  return m;
}

using Launcher = std::function<cudaError_t(const Params&, bool programmatic)>;

// Microseconds of one GEMM, the weight rotated through the pool.
float time_chain(const Machine& machine, Params p, const Launcher& launch,
                 bool programmatic) {
  const size_t bytes = size_t{unsigned(p.n)} * p.k * 2;
  const int copies = static_cast<int>(std::min<size_t>(16, kPoolBytes / bytes));
  const int launches = std::max(copies, 8);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(machine.stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) {
    p.weight.values = machine.pool + bytes * (i % copies);
    CHECK(launch(p, programmatic));
  }
  CHECK(cudaStreamEndCapture(machine.stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    float milliseconds;
    CHECK(cudaEventRecord(machine.start, machine.stream));
    CHECK(cudaGraphLaunch(executable, machine.stream));
    CHECK(cudaEventRecord(machine.stop, machine.stream));
    CHECK(cudaEventSynchronize(machine.stop));
    CHECK(cudaEventElapsedTime(&milliseconds, machine.start, machine.stop));
    if (i > 1) times.push_back(milliseconds * 1000 / launches);
  }
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

float relative_error(const Machine& machine, const Params& p, const Launcher& launch) {
  const size_t count = size_t{unsigned(p.m)} * p.columns;
  unsigned bits[2];
  CHECK(cudaMemset(machine.y, 0xff, count * 4));  // NaN
  CHECK(cudaMemset(machine.largest, 0, 8));
  CHECK(launch(p, false));
  CHECK(cudaStreamSynchronize(machine.stream));
  compare<<<512, 256>>>(machine.expected, machine.y, p.float32, count, machine.largest);
  CHECK(cudaMemcpy(bits, machine.largest, 8, cudaMemcpyDeviceToHost));
  return *reinterpret_cast<float*>(&bits[0]) / *reinterpret_cast<float*>(&bits[1]);
}

// As `_with_stages` in fdjax/kernels/matmul/config.py.
constexpr int kSharedBytes = 227 * 1024;  // of a block, on Hopper

FlatConfig with_stages(FlatConfig c, int m, int per_sm) {
  const int padded = m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
  const int stage = c.boxes * 128 * (c.tiles * c.tile_rows + padded);
  const int rest = (64 - c.tile_rows) * 128 + 1024;
  const int room = kSharedBytes / per_sm - 1024;
  c.stages = std::min(kMaxStages, (room - rest) / stage);
  return c;
}

std::vector<FlatConfig> candidates(int m) {
  std::vector<FlatConfig> all;
  for (int boxes : {1, 2}) {
    for (int rows : {48, 56, 64}) {
      for (int blocks : {1, 2, 3}) {
        all.push_back(with_stages({1, boxes, rows, 1, 0}, m, blocks));
        if (rows == 64) all.push_back(with_stages({1, boxes, rows, 2, 0}, m, blocks));
      }
    }
    for (int rows : {56, 64}) all.push_back(with_stages({2, boxes, rows, 1, 0}, m, 2));
  }
  std::erase_if(all, [](const FlatConfig& c) { return c.stages < 2; });
  return all;
}

// cublasGemmEx, without its header: y^T[N, M] = W[N, K] x^T[K, M] by columns.
Launcher cublas(const Machine& machine, const char* path) {
  using Gemm =
      int (*)(void*, int, int, int, int, int, const void*, const void*, int, int,
              const void*, int, int, const void*, void*, int, int, int, int);
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW);
  if (library == nullptr) return nullptr;
  void *handle = nullptr, *workspace = nullptr;
  constexpr size_t kWorkspace = 32 << 20;
  CHECK(cudaMalloc(&workspace, kWorkspace));
  reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"))(&handle);
  reinterpret_cast<int (*)(void*, cudaStream_t)>(dlsym(library, "cublasSetStream_v2"))(
      handle, machine.stream);
  reinterpret_cast<int (*)(void*, void*, size_t)>(
      dlsym(library, "cublasSetWorkspace_v2"))(handle, workspace, kWorkspace);
  const auto gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
  return [=](const Params& p, bool) {
    constexpr int kBfloat16 = 14, kFloat32 = 0, kCompute32F = 68, kDefault = -1;
    const float one = 1.0f, zero = 0.0f;
    const int type = p.float32 ? kFloat32 : kBfloat16;
    return gemm(handle, 1, 0, p.n, p.m, p.k, &one, p.weight.values, kBfloat16, p.k, p.x,
                kBfloat16, p.k, &zero, p.y, type, p.n, kCompute32F, kDefault) == 0
               ? cudaSuccess
               : cudaErrorUnknown;
  };
}

struct Report {
  const char* shape;
  const Params& p;

  void print(const char* what, const FlatConfig& c, float error, float us,
             float programmatic_us) const {
    std::printf(
        "%s {\"shape\": \"%s\", \"n\": %d, \"k\": %d, \"m\": %d, \"what\": \"%s\", "
        "\"tiles\": %d, \"boxes\": %d, \"tile_rows\": %d, \"splits\": %d, "
        "\"stages\": %d, \"error\": %.1e, \"us\": %.2f, \"programmatic_us\": %.2f}",
        first ? "[\n" : ",\n", shape, p.n, p.k, p.m, what, c.tiles, c.boxes,
        c.tile_rows, c.splits, c.stages, error, us, programmatic_us);
    first = false;
  }

  static inline bool first = true;
};

void measure(const Machine& machine, const Launcher& library, const char* shape,
             const Params& p) {
  const Report report{shape, p};
  const auto run = [&](const char* what, const FlatConfig& config,
                       const Launcher& launch) {
    const float error = relative_error(machine, p, launch);
    if (!(error < 4.0f / 256)) {
      std::fprintf(stderr, "%s M=%d %s: error %g\n", shape, p.m, what, error);
      std::exit(1);
    }
    report.print(what, config, error, time_chain(machine, p, launch, false),
                 time_chain(machine, p, launch, true));
  };
  reference<<<(p.columns * 32 + 255) / 256, 256>>>(p, machine.expected);
  CHECK(cudaDeviceSynchronize());
  if (library) run("cublas", {}, library);
  if (p.m <= 4) {
    run("gemv", {}, [&](const Params& q, bool programmatic) {
      return launch_gemv<T>(q, {machine.stream, programmatic});
    });
  }
  for (const FlatConfig& config : candidates(p.m)) {
    run("flat", config, [&](const Params& q, bool programmatic) {
      return launch_flat<T>(q, config, {machine.stream, programmatic});
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Machine machine = prepare();
  const Launcher library = cublas(machine, argc > 1 ? argv[1] : nullptr);
  struct {
    const char* name;
    int n, k;
    bool float32;
  } shapes[] = {{"qkv", 6144, 4096, false},
                {"out", 4096, 4096, false},
                {"gate_up", 28672, 4096, false},
                {"down", 4096, 14336, false},
                {"head", 128256, 4096, true}};
  for (const auto& shape : shapes) {
    for (int m : {1, 2, 4, 8, 16, 32, 64}) {
      const Params p{.x = machine.x,
                     .weight = {machine.pool},
                     .bias = nullptr,
                     .residual = nullptr,
                     .y = machine.y,
                     .m = m,
                     .n = shape.n,
                     .k = shape.k,
                     .columns = shape.n,
                     .gated = false,
                     .float32 = shape.float32,
                     .activation = Activation::kSilu};
      measure(machine, library, shape.name, p);
    }
  }
  std::printf("\n]\n");
}
