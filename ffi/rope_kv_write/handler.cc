// rope_kv_write on a CPU: the same call, so that the plumbing runs where no GPU is.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "fdjax/dispatch.h"
#include "fdjax/host_float.h"
#include "rope_kv_write/arguments.h"

namespace fdjax::rope_kv_write {
namespace {

struct Angles {
  float cosines[kMaxFrequencies];
  float sines[kMaxFrequencies];
};

void fill(const Params& p, int token, Angles* angles) {
  const float position = static_cast<float>(p.positions[token]);
  for (int i = 0; i < p.num_frequencies; ++i) {
    const float angle = position * p.frequencies[i];
    angles->cosines[i] = std::cos(angle);
    angles->sines[i] = std::sin(angle);
  }
}

template <typename T>
void rotate_head(const Params& p, const Angles& angles, const T* source, T* target) {
  const int count = p.num_frequencies;
  const int step = p.interleaved ? 2 : 1, distance = p.interleaved ? 1 : count;
  for (int i = 0; i < count; ++i) {
    const float first = to_float(source[i * step]);
    const float second = to_float(source[i * step + distance]);
    const float cosine = angles.cosines[i], sine = angles.sines[i];
    target[i * step] = from_float<T>(first * cosine - second * sine);
    target[i * step + distance] = from_float<T>(second * cosine + first * sine);
  }
  std::copy(source + 2 * count, source + p.head_dim, target + 2 * count);
}

template <typename T>
void rotate_heads(const Params& p, const Angles& angles, int heads, const T* source,
                  T* target) {
  for (int head = 0; head < heads; ++head) {
    rotate_head(p, angles, source, target);
    source += p.head_dim;
    target += p.head_dim;
  }
}

template <typename T>
ffi::Error run(const Arguments& arguments) {
  Params p;
  FDJAX_RETURN_IF_ERROR(read<T>(arguments, &p));
  const int64_t q_size = static_cast<int64_t>(p.q_heads) * p.head_dim;
  const int64_t kv_size = static_cast<int64_t>(p.kv_heads) * p.head_dim;
  const T* query = static_cast<const T*>(p.qkv);
  T* query_out = static_cast<T*>(p.query);
  Angles angles;
  for (int token = 0; token < p.tokens; ++token) {
    fill(p, token, &angles);
    rotate_heads(p, angles, p.q_heads, query, query_out);
    const int64_t address = paged::slot_address(p.pages, p.slots[token]);
    if (address != paged::kNowhere) {
      T* key_out = reinterpret_cast<T*>(static_cast<char*>(p.pages.kv) + address);
      const T *key = query + q_size, *value = key + kv_size;
      rotate_heads(p, angles, p.kv_heads, key, key_out);
      std::copy(value, value + kv_size, key_out + p.pages.value_offset() / sizeof(T));
    }
    query += q_size + 2 * kv_size;
    query_out += q_size;
  }
  return ffi::Error::Success();
}

ffi::Error handle(const Attributes& attributes, ffi::AnyBuffer qkv, ffi::AnyBuffer kv,
                  ffi::Buffer<ffi::S32> positions, ffi::Buffer<ffi::S32> slots,
                  ffi::Buffer<ffi::F32> frequencies, ffi::Result<ffi::AnyBuffer> query,
                  ffi::Result<ffi::AnyBuffer> kv_out) {
  const Arguments arguments{attributes, qkv,         kv,    positions,
                            slots,      frequencies, query, kv_out};
  return dispatch_float<HostFloats>("qkv", qkv.element_type(), [&](auto type) {
    return run<typename decltype(type)::type>(arguments);
  });
}

}  // namespace
}  // namespace fdjax::rope_kv_write

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_rope_kv_write_cpu, fdjax::rope_kv_write::handle,
    fdjax::rope_kv_write::bind_arguments(xla::ffi::Ffi::Bind()));
