// From a buffer's element type to a C++ type.
#pragma once

#include <string>
#include <type_traits>

#include "xla/ffi/api/ffi.h"

namespace fdjax {

// Calls `body(std::type_identity<T>{})` with the C++ type of `dtype`. `Floats` names
// the 16 bit types of the platform: `Floats::bfloat16` and `Floats::float16`.
template <typename Floats, typename Body>
xla::ffi::Error dispatch_float(const char* name, xla::ffi::DataType dtype,
                               Body&& body) {
  switch (dtype) {
    case xla::ffi::DataType::F32:
      return body(std::type_identity<float>{});
    case xla::ffi::DataType::BF16:
      return body(std::type_identity<typename Floats::bfloat16>{});
    case xla::ffi::DataType::F16:
      return body(std::type_identity<typename Floats::float16>{});
    default:
      return xla::ffi::Error::InvalidArgument(
          std::string(name) + " has element type " +
          std::to_string(static_cast<int>(dtype)) +
          "; the handler takes float32, bfloat16 and float16");
  }
}

}  // namespace fdjax
