// matmul on a CPU: checks, and blocks of the result over threads.
#include <cstdint>

#include "fdjax/check.h"
#include "fdjax/dispatch.h"
#include "fdjax/host_parallel.h"
#include "matmul/host_matmul.h"

namespace fdjax::matmul {
namespace {

// Below this many multiplications one thread is as fast as two.
constexpr int64_t kParallelWork = 1 << 17;

template <typename T>
using Compute = void (*)(const HostMatmul<T>&, int64_t block);

template <typename T>
void compute_narrow(const HostMatmul<T>& p, int64_t block) {
  compute_block<Lanes4>(p, block);
}

template <typename T>
FDJAX_WIDE void compute_wide(const HostMatmul<T>& p, int64_t block) {
  compute_block<Lanes8>(p, block);
}

template <typename T>
void run(ffi::ThreadPool& pool, const HostMatmul<T>& p) {
  const Compute<T> compute = has_wide_vectors() ? compute_wide<T> : compute_narrow<T>;
  const int64_t count = blocks(p.m, p.n);
  const auto body = [&p, compute](int64_t block) { compute(p, block); };
  if (p.m * p.n * p.k >= kParallelWork) {
    parallel_for(pool, count, body);
  } else {
    for (int64_t block = 0; block < count; ++block) body(block);
  }
}

ffi::Error handle(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight,
                  ffi::Result<ffi::Buffer<ffi::F32>> y) {
  Dim m{"M"}, n{"N"}, k{"K"};
  FDJAX_RETURN_IF_ERROR(check_shape("x", x.dimensions(), {&m, &k}));
  FDJAX_RETURN_IF_ERROR(check_shape("weight", weight.dimensions(), {&n, &k}));
  FDJAX_RETURN_IF_ERROR(check_shape("y", y->dimensions(), {&m, &n}));
  FDJAX_RETURN_IF_ERROR(
      check_dtype("weight", weight.element_type(), "x", x.element_type()));
  if (*k == 0)
    return ffi::Error::InvalidArgument("x has no columns; K must be above 0");
  return dispatch_float<HostFloats>("x", x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    run(pool, HostMatmul<T>{static_cast<const T*>(x.untyped_data()),
                            static_cast<const T*>(weight.untyped_data()),
                            y->typed_data(), *m, *n, *k});
    return ffi::Error::Success();
  });
}

}  // namespace
}  // namespace fdjax::matmul

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_matmul_cpu, fdjax::matmul::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>());
