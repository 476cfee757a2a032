// Checks of a handler's arguments: named dimensions, and errors instead of exceptions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "xla/ffi/api/ffi.h"

#define FDJAX_RETURN_IF_ERROR(expression)                          \
  do {                                                             \
    if (xla::ffi::Error error_ = (expression); error_.failure()) { \
      return error_;                                               \
    }                                                              \
  } while (false)

namespace fdjax {

namespace ffi = xla::ffi;

inline constexpr int64_t kInt32 = std::numeric_limits<int32_t>::max();

// An operand or a result that is absent is an array without elements
// (`or_empty` in fdjax/kernels/ffi.py).
template <typename Buffer>
bool is_absent(const Buffer& buffer) {
  return buffer.element_count() == 0;
}

// The data of a buffer of a known type; nullptr where it is absent.
template <typename Buffer>
auto data_or_null(Buffer& buffer) -> decltype(buffer.typed_data()) {
  return is_absent(buffer) ? nullptr : buffer.typed_data();
}

// A size that several buffers share: the first check that meets it binds it, later
// ones compare. One made with a value is bound from the start.
class Dim {
 public:
  explicit Dim(const char* name) : name_(name) {}
  Dim(const char* name, int64_t value) : name_(name), value_(value), source_("fdjax") {}

  int64_t operator*() const { return value_; }

 private:
  friend ffi::Error check_shape(const char*, ffi::AnyBuffer::Dimensions,
                                std::initializer_list<Dim*>);
  const char* name_;
  int64_t value_ = 0;
  const char* source_ = nullptr;  // the buffer that bound it
};

inline ffi::Error check_shape(const char* name, ffi::AnyBuffer::Dimensions shape,
                              std::initializer_list<Dim*> dims) {
  if (shape.size() != dims.size()) {
    return ffi::Error::InvalidArgument(
        std::string(name) + " has " + std::to_string(shape.size()) +
        " dimensions, the handler takes " + std::to_string(dims.size()));
  }
  size_t axis = 0;
  for (Dim* dim : dims) {
    const int64_t size = shape[axis++];
    if (dim->source_ == nullptr) {
      dim->value_ = size;
      dim->source_ = name;
    } else if (dim->value_ != size) {
      return ffi::Error::InvalidArgument(
          std::string(name) + ": dimension " + dim->name_ + " (axis " +
          std::to_string(axis - 1) + ") is " + std::to_string(size) + ", but " +
          dim->source_ + " has " + dim->name_ + " = " + std::to_string(dim->value_));
    }
  }
  return ffi::Error::Success();
}

inline ffi::Error check_dtype(const char* name, ffi::DataType actual,
                              const char* reference, ffi::DataType expected) {
  if (actual == expected) return ffi::Error::Success();
  return ffi::Error::InvalidArgument(std::string(name) + " has element type " +
                                     std::to_string(static_cast<int>(actual)) +
                                     ", but " + reference + " has " +
                                     std::to_string(static_cast<int>(expected)));
}

}  // namespace fdjax
