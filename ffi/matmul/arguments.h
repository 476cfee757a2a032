// The handler's signature and its checks.
#pragma once

#include <limits>
#include <string>

#include "fdjax/check.h"
#include "matmul/params.h"

namespace fdjax::matmul {

struct Arguments {
  bool gated, has_bias, has_residual;
  int64_t activation;  // an Activation, if gated
  ffi::AnyBuffer x, weight;
  ffi::RemainingArgs rest;  // the bias, then the residual, as far as there are any
  ffi::Result<ffi::AnyBuffer> y;
};

inline ffi::Error invalid(std::string message) {
  return ffi::Error::InvalidArgument(std::move(message));
}

inline ffi::Error check_sizes(int64_t n, int64_t k, bool gated) {
  const int64_t multiple = gated ? kGatedUnit : kUnit;
  if (n % multiple != 0 || k % kUnit != 0) {
    return invalid("weight is [" + std::to_string(n) + ", " + std::to_string(k) +
                   "]; N must be a multiple of " + std::to_string(multiple) +
                   " and K of " + std::to_string(kUnit));
  }
  if (n > std::numeric_limits<int>::max() || k > std::numeric_limits<int>::max()) {
    return invalid("weight has too many rows or columns");
  }
  return ffi::Error::Success();
}

// Reads the optional operand `index` into `data`, after checking its shape.
inline ffi::Error read_rest(const Arguments& a, size_t index, const char* name,
                            std::initializer_list<Dim*> shape, const void** data) {
  auto buffer = a.rest.get<ffi::AnyBuffer>(index);
  if (!buffer.has_value()) return invalid(std::string(name) + " is missing");
  FDJAX_RETURN_IF_ERROR(check_shape(name, buffer->dimensions(), shape));
  FDJAX_RETURN_IF_ERROR(
      check_dtype(name, buffer->element_type(), "x", a.x.element_type()));
  *data = buffer->untyped_data();
  return ffi::Error::Success();
}

// Checks everything that can be known without the data, then fills `params`.
inline ffi::Error read(const Arguments& a, Params* params) {
  Dim m{"M"}, n{"N"}, k{"K"};
  FDJAX_RETURN_IF_ERROR(check_shape("x", a.x.dimensions(), {&m, &k}));
  FDJAX_RETURN_IF_ERROR(check_shape("weight", a.weight.dimensions(), {&n, &k}));
  FDJAX_RETURN_IF_ERROR(check_sizes(*n, *k, a.gated));
  Dim columns{a.gated ? "N / 2" : "N", a.gated ? *n / 2 : *n};
  FDJAX_RETURN_IF_ERROR(check_shape("y", a.y->dimensions(), {&m, &columns}));
  const ffi::DataType dtype = a.x.element_type();
  FDJAX_RETURN_IF_ERROR(check_dtype("weight", a.weight.element_type(), "x", dtype));
  const bool float32 = a.y->element_type() == ffi::DataType::F32;
  if (!float32)
    FDJAX_RETURN_IF_ERROR(check_dtype("y", a.y->element_type(), "x", dtype));
  if (a.activation < 0 || a.activation > static_cast<int64_t>(Activation::kRelu)) {
    return invalid("activation is " + std::to_string(a.activation));
  }
  if (a.rest.size() != size_t{a.has_bias} + size_t{a.has_residual}) {
    return invalid("the operands are not those that the attributes announce");
  }
  if (a.gated && a.has_residual) return invalid("a gated GEMM takes no residual");
  *params = Params{.x = a.x.untyped_data(),
                   .weight = a.weight.untyped_data(),
                   .bias = nullptr,
                   .residual = nullptr,
                   .y = a.y->untyped_data(),
                   .m = static_cast<int>(*m),
                   .n = static_cast<int>(*n),
                   .k = static_cast<int>(*k),
                   .columns = static_cast<int>(*columns),
                   .gated = a.gated,
                   .float32 = float32,
                   .activation = static_cast<Activation>(a.activation)};
  if (a.has_bias) {
    FDJAX_RETURN_IF_ERROR(read_rest(a, 0, "bias", {&n}, &params->bias));
  }
  if (a.has_residual) {
    FDJAX_RETURN_IF_ERROR(
        read_rest(a, a.has_bias, "residual", {&m, &columns}, &params->residual));
  }
  return ffi::Error::Success();
}

}  // namespace fdjax::matmul
