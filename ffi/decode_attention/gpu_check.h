// Checks of what decode attention's kernel takes, for every handler that launches it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>

#include "attention_plan/plan.h"
#include "decode_attention/arguments.h"

namespace fdjax::decode_attention {

// A LaunchConfig as config.py chooses and sends it, with what the plan has room for.
struct LaunchAttributes {
  int64_t slots, splits, heads, warps, max_items, max_pieces;
  bool in_runs;
};

}  // namespace fdjax::decode_attention

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    fdjax::decode_attention::LaunchAttributes, StructMember<int64_t>("slots"),
    StructMember<int64_t>("splits"), StructMember<int64_t>("heads"),
    StructMember<int64_t>("warps"), StructMember<int64_t>("max_items"),
    StructMember<int64_t>("max_pieces"), StructMember<bool>("in_runs"));

namespace fdjax::decode_attention {

inline ffi::Error check_head_dim(int64_t size) {
  std::string served;
  for (const int one : kHeadDims) {
    if (size == one) return ffi::Error::Success();
    served += " " + std::to_string(one);
  }
  return invalid("D is " + std::to_string(size) + "; the handler takes" + served);
}

// What the kernel's tiles and grid have room for.
inline ffi::Error check_kernel(const Dims& d) {
  const bool large = std::ranges::count(kLargeGroupHeadDims, *d.head_dim) != 0;
  FDJAX_RETURN_IF_ERROR(check_range("Hq / Hkv", *d.q_heads / *d.kv_heads, 1,
                                    large ? kMaxLargeGroup : kMaxGroup));
  FDJAX_RETURN_IF_ERROR(check_range("Z", *d.page_size, 1, kMaxPageSize));
  FDJAX_RETURN_IF_ERROR(check_alignment(d));
  FDJAX_RETURN_IF_ERROR(check_range("B", *d.rows, 0, attention_plan::kMaxRows));
  return check_head_dim(*d.head_dim);
}

// The plan's counters. To XLA the plan is an operand, and after the call it is as it
// was before: the last block to count sets each counter back. Calls with one plan run
// one after the other, as all calls of a device's stream do.
inline int32_t* counters_of(const ffi::Buffer<ffi::S32>& plan) {
  return const_cast<int32_t*>(plan.typed_data());
}

inline ffi::Error check_power(const char* name, int64_t value, int64_t high) {
  FDJAX_RETURN_IF_ERROR(check_range(name, value, 1, high));
  if (std::has_single_bit(static_cast<uint64_t>(value))) return ffi::Error::Success();
  return invalid(std::string(name) + " is " + std::to_string(value) +
                 "; it must be a power of two");
}

// `integers`: of a plan. `floats`: of the records.
inline ffi::Error check_config(const LaunchAttributes& config, const Dims& d,
                               int64_t integers, int64_t floats) {
  FDJAX_RETURN_IF_ERROR(
      check_range("slots", config.slots, 1, attention_plan::kMaxSlots));
  FDJAX_RETURN_IF_ERROR(check_range("splits", config.splits, 1, kMaxSplits));
  FDJAX_RETURN_IF_ERROR(check_power("warps", config.warps, kMaxWarps));
  FDJAX_RETURN_IF_ERROR(
      check_power("heads", config.heads, config.splits == 1 ? kMaxHeads : 1));
  if (config.warps % config.heads != 0 || *d.kv_heads % config.heads != 0) {
    return invalid("heads is " + std::to_string(config.heads) +
                   "; it must divide warps = " + std::to_string(config.warps) +
                   " and Hkv = " + std::to_string(*d.kv_heads));
  }
  FDJAX_RETURN_IF_ERROR(
      check_range("max_pieces", config.max_pieces, 0, attention_plan::kMaxItems));
  const int64_t whole = *d.rows * *d.kv_heads / config.heads;
  FDJAX_RETURN_IF_ERROR(check_range("max_items", config.max_items,
                                    std::max(whole, config.slots),
                                    attention_plan::kMaxItems));
  const int64_t planned =
      attention_plan::plan_size(*d.rows, *d.kv_heads, config.max_items);
  FDJAX_RETURN_IF_ERROR(check_range("integers of a plan", integers, planned, planned));
  const int64_t needed =
      config.max_pieces * (*d.q_heads / *d.kv_heads) * (4 + *d.head_dim);
  return check_range("floats of records", floats, needed, needed);
}

inline ffi::Error check_config(const LaunchAttributes& config, const Dims& d,
                               const ffi::Buffer<ffi::S32>& plan,
                               ffi::Result<ffi::Buffer<ffi::F32>> records) {
  Dim integers("integers of the plan");
  FDJAX_RETURN_IF_ERROR(check_shape("plan", plan.dimensions(), {&integers}));
  return check_config(config, d, *integers, records->element_count());
}

inline LaunchConfig config_of(const LaunchAttributes& told, bool programmatic) {
  return {.slots = static_cast<int>(told.slots),
          .splits = static_cast<int>(told.splits),
          .heads = static_cast<int>(told.heads),
          .warps = static_cast<int>(told.warps),
          .in_runs = told.in_runs,
          .programmatic = programmatic};
}

}  // namespace fdjax::decode_attention
