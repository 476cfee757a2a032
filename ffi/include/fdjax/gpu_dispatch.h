// From a buffer's element type to a launch of that type, on a GPU.
#pragma once

#include <string>
#include <type_traits>

#include "fdjax/gpu.h"
#include "xla/ffi/api/ffi.h"

namespace fdjax {

// Calls `launch(std::type_identity<T>{})` with the type of q, for operation `name`.
template <typename Launch>
xla::ffi::Error launch_16_bits(const char* name, xla::ffi::DataType dtype,
                               const Launch& launch) {
  gpu_error error;
  switch (dtype) {
    case xla::ffi::DataType::BF16:
      error = launch(std::type_identity<GpuFloats::bfloat16>{});
      break;
    case xla::ffi::DataType::F16:
      error = launch(std::type_identity<GpuFloats::float16>{});
      break;
    default:
      return xla::ffi::Error::InvalidArgument(
          "q has element type " + std::to_string(static_cast<int>(dtype)) +
          "; the handler takes bfloat16 and float16");
  }
  if (error == kGpuSuccess) return xla::ffi::Error::Success();
  return xla::ffi::Error::Internal(std::string(name) + ": " + gpu_error_string(error));
}

}  // namespace fdjax
