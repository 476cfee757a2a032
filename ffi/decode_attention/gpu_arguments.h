// What handlers take that launch decode attention's kernel alone, and what they check.
#pragma once

#include "decode_attention/gpu_check.h"

namespace fdjax::decode_attention {

struct GpuAttributes {
  Attributes attention;
  SchemeAttributes scheme;
  LaunchAttributes launch;
  bool by_slot;  // the page table has slots
};

}  // namespace fdjax::decode_attention

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    fdjax::decode_attention::GpuAttributes,
    StructMember<fdjax::paged::Attributes>("attention"),
    StructMember<fdjax::decode_attention::SchemeAttributes>("scheme"),
    StructMember<fdjax::decode_attention::LaunchAttributes>("launch"),
    StructMember<bool>("by_slot"));

namespace fdjax::decode_attention {

struct GpuArguments {
  Arguments call;
  ffi::Buffer<ffi::S32> plan;
  ffi::Result<ffi::Buffer<ffi::F32>> records;
};

// `params` has nothing where `dims` have no rows.
inline ffi::Error read(const GpuAttributes& a, const GpuArguments& arguments,
                       Dims* dims, Params* params) {
  const Arguments& call = arguments.call;
  FDJAX_RETURN_IF_ERROR(check_buffers(call, dims));
  FDJAX_RETURN_IF_ERROR(check_values(a.attention, *dims));
  FDJAX_RETURN_IF_ERROR(check_kernel(*dims));
  FDJAX_RETURN_IF_ERROR(
      check_config(a.launch, *dims, arguments.plan, arguments.records));
  if (*dims->rows == 0) return ffi::Error::Success();
  *params = params_of(a.attention, a.scheme, call, *dims);
  if (a.by_slot) *params = paged::by_slot(*params);
  params->plan = counters_of(arguments.plan);
  params->records = arguments.records->typed_data();
  return ffi::Error::Success();
}

}  // namespace fdjax::decode_attention
