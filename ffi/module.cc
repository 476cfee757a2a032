// fdjax._ffi: what Python needs to register the handlers, and how they were built.
#include <nanobind/nanobind.h>

// The operations that have handlers, and their limits: CMakeLists.txt writes it.
#include "operations.h"
#include "xla/ffi/api/c_api.h"

// As XLA_FFI_DECLARE_HANDLER_SYMBOL, whose header takes 3 s to compile.
#define FDJAX_DECLARE_CPU(name) \
  extern "C" XLA_FFI_Error* fdjax_##name##_cpu(XLA_FFI_CallFrame*);
#define FDJAX_DECLARE_GPU(name) \
  extern "C" XLA_FFI_Error* fdjax_##name##_gpu(XLA_FFI_CallFrame*);
FDJAX_CPU_OPERATIONS(FDJAX_DECLARE_CPU)
#ifdef FDJAX_GPU_PLATFORM
FDJAX_GPU_OPERATIONS(FDJAX_DECLARE_GPU)
#endif
#ifdef FDJAX_GPU_IS_CUDA
extern "C" XLA_FFI_Error* fdjax_layer_program_gpu_initialize(XLA_FFI_CallFrame*);
extern "C" XLA_FFI_Error* fdjax_matmul_gpu_initialize(XLA_FFI_CallFrame*);
#endif

namespace nb = nanobind;
using fdjax::Limit;

namespace {

nb::capsule encapsulate(XLA_FFI_Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

#ifdef FDJAX_GPU_IS_CUDA
// Gives a handler a first stage, before any execution.
void add_initialize(nb::dict& handlers, const char* name, XLA_FFI_Handler* initialize) {
  nb::dict stages;
  stages["initialize"] = encapsulate(initialize);
  stages["execute"] = handlers[name];
  handlers[name] = stages;
}
#endif

nb::dict targets() {
  nb::dict platforms, cpu;
#define FDJAX_ADD_CPU(name) cpu[#name] = encapsulate(fdjax_##name##_cpu);
  FDJAX_CPU_OPERATIONS(FDJAX_ADD_CPU)
  platforms["cpu"] = cpu;
#ifdef FDJAX_GPU_PLATFORM
  nb::dict gpu;
#define FDJAX_ADD_GPU(name) gpu[#name] = encapsulate(fdjax_##name##_gpu);
  FDJAX_GPU_OPERATIONS(FDJAX_ADD_GPU)
#ifdef FDJAX_GPU_IS_CUDA
  add_initialize(gpu, "layer_program", fdjax_layer_program_gpu_initialize);
  add_initialize(gpu, "matmul", fdjax_matmul_gpu_initialize);
#endif
  platforms[FDJAX_GPU_PLATFORM] = gpu;
#endif
  return platforms;
}

// A number, or several as a tuple.
nb::object value_of(const Limit& limit) {
  if (limit.list == nullptr) return nb::int_(limit.value);
  nb::list values;
  for (size_t i = 0; i < limit.count; ++i) values.append(limit.list[i]);
  return nb::tuple(values);
}

template <size_t kCount>
void add_limits(nb::dict& operations, const char* name, const Limit (&limits)[kCount]) {
  nb::dict values;
  for (const Limit& limit : limits) values[limit.name] = value_of(limit);
  operations[name] = values;
}

// Of every operation, whether its handlers are built or not.
nb::dict limits() {
  nb::dict operations;
#define FDJAX_ADD_LIMITS(name) add_limits(operations, #name, fdjax::name::kLimits);
  FDJAX_OPERATIONS(FDJAX_ADD_LIMITS)
  return operations;
}

nb::dict build_info() {
  nb::dict info;
  info["version"] = FDJAX_VERSION;
  info["build_id"] = FDJAX_BUILD_ID;
  info["jaxlib"] = FDJAX_JAXLIB;
  info["ffi_api"] = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  nb::list architectures;
#ifdef FDJAX_GPU_PLATFORM
  architectures = nb::list(nb::str(FDJAX_GPU_ARCHITECTURES).attr("split")(","));
#endif
  info["gpu_architectures"] = nb::tuple(architectures);
  return info;
}

}  // namespace

NB_MODULE(_ffi, module) {
  module.def("targets", targets);
  module.def("limits", limits);
  module.def("build_info", build_info);
}
