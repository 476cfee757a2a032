// The handler's signature and its checks.
#pragma once

#include <limits>
#include <string>

#include "fdjax/check.h"
#include "matmul/params.h"

namespace fdjax::matmul {

struct Attributes {
  bool gated;
  int64_t activation;  // an Activation, if gated
  int64_t format;      // of the weight: its place in WeightView
};

}  // namespace fdjax::matmul

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(fdjax::matmul::Attributes,
                                      StructMember<bool>("gated"),
                                      StructMember<int64_t>("activation"),
                                      StructMember<int64_t>("format"));

namespace fdjax::matmul {

struct Arguments {
  Attributes attributes;
  ffi::AnyBuffer x, bias, residual;  // bias, residual: may be absent
  ffi::RemainingArgs weight;         // the arrays of its format
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

// Reads the weight, by the arrays of its format.
inline ffi::Error read_weight(const Arguments& a, Dim* n, Dim* k, WeightView* weight) {
  const int64_t format = a.attributes.format;
  if (format != 0) return invalid("weight has format " + std::to_string(format));
  if (a.weight.size() != 1) {
    return invalid("a dense weight has " + std::to_string(a.weight.size()) +
                   " arrays, the handler takes 1");
  }
  const auto values = a.weight.get<ffi::AnyBuffer>(0);
  if (values.has_error()) return values.error();
  FDJAX_RETURN_IF_ERROR(check_shape("weight", values->dimensions(), {n, k}));
  *weight = DenseView{values->untyped_data()};
  return check_dtype("weight", values->element_type(), "x", a.x.element_type());
}

// Reads an operand that may be absent into `data`, after checking its shape.
inline ffi::Error read_optional(const char* name, const ffi::AnyBuffer& buffer,
                                std::initializer_list<Dim*> shape, ffi::DataType dtype,
                                const void** data) {
  if (is_absent(buffer)) return ffi::Error::Success();
  FDJAX_RETURN_IF_ERROR(check_shape(name, buffer.dimensions(), shape));
  FDJAX_RETURN_IF_ERROR(check_dtype(name, buffer.element_type(), "x", dtype));
  *data = buffer.untyped_data();
  return ffi::Error::Success();
}

// Checks everything that can be known without the data, then fills `params`.
inline ffi::Error read(const Arguments& a, MatmulParams* params) {
  const auto [gated, activation, format] = a.attributes;
  Dim m{"M"}, n{"N"}, k{"K"};
  FDJAX_RETURN_IF_ERROR(check_shape("x", a.x.dimensions(), {&m, &k}));
  WeightView weight;
  FDJAX_RETURN_IF_ERROR(read_weight(a, &n, &k, &weight));
  FDJAX_RETURN_IF_ERROR(check_sizes(*n, *k, gated));
  Dim columns{gated ? "N / 2" : "N", gated ? *n / 2 : *n};
  FDJAX_RETURN_IF_ERROR(check_shape("y", a.y->dimensions(), {&m, &columns}));
  const ffi::DataType dtype = a.x.element_type();
  const bool float32 = a.y->element_type() == ffi::DataType::F32;
  if (!float32)
    FDJAX_RETURN_IF_ERROR(check_dtype("y", a.y->element_type(), "x", dtype));
  if (activation < 0 || activation > kLastActivation) {
    return invalid("activation is " + std::to_string(activation));
  }
  if (gated && !is_absent(a.residual)) return invalid("a gated GEMM takes no residual");
  *params = MatmulParams{.x = a.x.untyped_data(),
                         .weight = weight,
                         .bias = nullptr,
                         .residual = nullptr,
                         .y = a.y->untyped_data(),
                         .m = static_cast<int>(*m),
                         .n = static_cast<int>(*n),
                         .k = static_cast<int>(*k),
                         .columns = static_cast<int>(*columns),
                         .gated = gated,
                         .float32 = float32,
                         .activation = static_cast<Activation>(activation)};
  FDJAX_RETURN_IF_ERROR(read_optional("bias", a.bias, {&n}, dtype, &params->bias));
  return read_optional("residual", a.residual, {&m, &columns}, dtype,
                       &params->residual);
}

}  // namespace fdjax::matmul
