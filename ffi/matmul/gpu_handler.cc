// matmul on a GPU: checks and launch.
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

#include "fdjax/check.h"
#include "fdjax/dispatch.h"
#include "matmul/arguments.h"
#include "matmul/launch_matmul.h"

namespace fdjax::matmul {
namespace {

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

bool aligned(const WeightView& weight) {
  return std::visit([](const DenseView& dense) { return aligned(dense.values); },
                    weight);
}

template <typename T>
ffi::Error run(gpu_stream stream, const MatmulParams& p, const MatmulConfig& config) {
  if (std::holds_alternative<LibraryConfig>(config)) {
    int device = 0;
    cudaGetDevice(&device);
    const std::string problem = library_problem(device);
    if (!problem.empty()) return ffi::Error::Internal("matmul: " + problem);
  }
  const cudaError_t error = launch_matmul<T>(p, config, {.stream = stream});
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("matmul: ") + cudaGetErrorString(error));
}

ffi::Error handle(gpu_stream stream, const Attributes& attributes,
                  ffi::Span<const int64_t> config_numbers, ffi::AnyBuffer x,
                  ffi::AnyBuffer bias, ffi::AnyBuffer residual,
                  ffi::RemainingArgs weight, ffi::Result<ffi::AnyBuffer> y) {
  Numbers numbers(config_numbers);
  const MatmulConfig config = read_config(numbers);
  if (numbers.has_more())
    numbers.refuse("launch_config has more numbers than its kernel");
  if (!numbers.problem().empty()) return invalid("matmul: " + numbers.problem());
  MatmulParams p{};
  FDJAX_RETURN_IF_ERROR(read({attributes, x, bias, residual, weight, y}, &p));
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
                                  .Attr<fdjax::matmul::Attributes>("attributes")
                                  .Attr<xla::ffi::Span<const int64_t>>("launch_config")
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
