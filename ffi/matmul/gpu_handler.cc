// matmul on a GPU: checks and launch.
#include <cstdint>
#include <string>
#include <type_traits>

#include "fdjax/check.h"
#include "fdjax/dispatch.h"
#include "matmul/arguments.h"
#include "matmul/launch.h"
#include "matmul/library.h"

namespace fdjax::matmul {
namespace {

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

template <typename T>
ffi::Error run(gpu_stream stream, const Params& p, const FlatConfig& config) {
  const How how{.stream = stream, .programmatic = false};
  cudaError_t error = cudaSuccess;
  if (config.tiles == kByLibrary) {
    int device = 0;
    cudaGetDevice(&device);
    const std::string problem = library_problem(device);
    if (!problem.empty()) return ffi::Error::Internal("matmul: " + problem);
    error = launch_library<T>(p, /*candidate=*/config.boxes, stream);
  } else if (config.tiles == kByGemv) {
    error = launch_gemv<T>(p, how);
  } else if (config.tiles == kByGemm) {
    error = launch_gemm<T>(p, gemm_from(config), how);
  } else {
    error = launch_flat<T>(p, config, how);
  }
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("matmul: ") + cudaGetErrorString(error));
}

ffi::Error handle(gpu_stream stream, bool gated, bool has_bias, bool has_residual,
                  int64_t activation, int64_t tiles, int64_t boxes, int64_t tile_rows,
                  int64_t splits, int64_t stages, ffi::AnyBuffer x,
                  ffi::AnyBuffer weight, ffi::RemainingArgs rest,
                  ffi::Result<ffi::AnyBuffer> y) {
  const FlatConfig config{static_cast<int>(tiles), static_cast<int>(boxes),
                          static_cast<int>(tile_rows), static_cast<int>(splits),
                          static_cast<int>(stages)};
  Params p{};
  FDJAX_RETURN_IF_ERROR(
      read({gated, has_bias, has_residual, activation, x, weight, rest, y}, &p));
  if (p.m == 0 || p.columns == 0) return ffi::Error::Success();
  if (!aligned(p.x) || !aligned(p.weight) || !aligned(p.bias) || !aligned(p.residual) ||
      !aligned(p.y)) {
    return invalid("matmul: an array does not start at a multiple of 16 bytes");
  }
  return dispatch_float<GpuFloats>("x", x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, float>) {
      return invalid("x is float32; the handler takes bfloat16 and float16");
    } else {
      return run<T>(stream, p, config);
    }
  });
}

// The library's handle cannot be made while XLA captures the call.
ffi::Error prepare(int32_t device) {
  prepare_library(device);
  return ffi::Error::Success();
}

}  // namespace

}  // namespace fdjax::matmul

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_matmul_gpu_initialize, fdjax::matmul::prepare,
    xla::ffi::Ffi::BindInitialize().Ctx<xla::ffi::DeviceOrdinal>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_matmul_gpu, fdjax::matmul::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Attr<bool>("gated")
                                  .Attr<bool>("has_bias")
                                  .Attr<bool>("has_residual")
                                  .Attr<int64_t>("activation")
                                  .Attr<int64_t>("tiles")
                                  .Attr<int64_t>("boxes")
                                  .Attr<int64_t>("tile_rows")
                                  .Attr<int64_t>("splits")
                                  .Attr<int64_t>("stages")
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
