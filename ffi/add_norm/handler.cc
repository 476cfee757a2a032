// add_norm on a CPU: each row by the same instructions, however many there are.
#include <cmath>
#include <cstdint>

#include "add_norm/arguments.h"
#include "fdjax/dispatch.h"
#include "fdjax/host_parallel.h"
#include "fdjax/host_vector.h"

namespace fdjax::add_norm {
namespace {

// Below this many elements one thread is as fast as two.
constexpr int64_t kParallelElements = 1 << 15;

// The sum of `term` of each element, in an order that `size` alone decides.
template <typename V, typename T, typename Term>
FDJAX_INLINE float sum_of(const T* row, int size, const Term& term) {
  V sums{};
  int i = 0;
  for (; i + kLanes<V> <= size; i += kLanes<V>) sums += term(load<V>(row + i));
  float total = 0.0f;
  for (int lane = 0; lane < kLanes<V>; ++lane) total += sums[lane];
  for (; i < size; ++i) total += term(to_float(row[i]));
  return total;
}

// One over the root of the mean of a row's (element - mean)^2.
template <typename V, typename T>
FDJAX_INLINE float factor_of(const Params& p, const T* row, float mean) {
  const float squares = sum_of<V>(row, p.size, [mean](auto element) {
    return (element - mean) * (element - mean);
  });
  return 1.0f / std::sqrt(squares / static_cast<float>(p.size) + p.epsilon);
}

template <typename V, typename T>
FDJAX_INLINE void normalise(const Params& p, int64_t row) {
  const int64_t start = row * p.size;
  const T* x = static_cast<const T*>(p.x) + start;
  if (p.delta != nullptr) {
    const T* delta = static_cast<const T*>(p.delta) + start;
    T* sum = static_cast<T*>(p.sum) + start;
    if (p.delta_scale == nullptr) {
      for (int i = 0; i < p.size; ++i) {
        sum[i] = from_float<T>(to_float(x[i]) + to_float(delta[i]));
      }
    } else {
      const T* scale = static_cast<const T*>(p.delta_scale);
      const float factor = factor_of<V>(p, delta, 0.0f);
      for (int i = 0; i < p.size; ++i) {
        const float normal =
            to_float(delta[i]) * factor * (to_float(scale[i]) + p.scale_offset);
        sum[i] = from_float<T>(to_float(x[i]) + to_float(from_float<T>(normal)));
      }
    }
    x = sum;
  }
  const float size = static_cast<float>(p.size);
  float mean = 0.0f;
  if (p.bias != nullptr) {
    mean = sum_of<V>(x, p.size, [](auto element) { return element; }) / size;
  }
  const float factor = factor_of<V>(p, x, mean);
  const T *scale = static_cast<const T*>(p.scale),
          *bias = static_cast<const T*>(p.bias);
  T* out = static_cast<T*>(p.out) + start;
  for (int i = 0; i < p.size; ++i) {
    float y = (to_float(x[i]) - mean) * factor * (to_float(scale[i]) + p.scale_offset);
    if (bias != nullptr) y += to_float(bias[i]);
    out[i] = from_float<T>(y);
  }
}

using Normalise = void (*)(const Params&, int64_t row);

template <typename T>
void normalise_narrow(const Params& p, int64_t row) {
  normalise<Lanes4, T>(p, row);
}

template <typename T>
FDJAX_WIDE void normalise_wide(const Params& p, int64_t row) {
  normalise<Lanes8, T>(p, row);
}

template <typename T>
void run(ffi::ThreadPool& pool, const Params& p) {
  const Normalise rows = has_wide_vectors() ? normalise_wide<T> : normalise_narrow<T>;
  const auto body = [&p, rows](int64_t row) { rows(p, row); };
  if (int64_t{p.rows} * p.size >= kParallelElements) {
    parallel_for(pool, p.rows, body);
  } else {
    for (int64_t row = 0; row < p.rows; ++row) body(row);
  }
}

ffi::Error handle(ffi::ThreadPool pool, const Attributes& attributes, ffi::AnyBuffer x,
                  ffi::AnyBuffer delta, ffi::AnyBuffer delta_scale,
                  ffi::AnyBuffer scale, ffi::AnyBuffer bias,
                  ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> sum) {
  Params p{};
  FDJAX_RETURN_IF_ERROR(
      read({attributes, x, delta, delta_scale, scale, bias, out, sum}, &p));
  return dispatch_float<HostFloats>("x", x.element_type(), [&](auto type) {
    run<typename decltype(type)::type>(pool, p);
    return ffi::Error::Success();
  });
}

}  // namespace
}  // namespace fdjax::add_norm

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_add_norm_cpu, fdjax::add_norm::handle,
    fdjax::add_norm::bind_arguments(xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));
