// decode_attention on a CPU: checks, and rows and key/value heads over threads.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "decode_attention/arguments.h"
#include "decode_attention/attend.h"
#include "decode_attention/host.h"
#include "fdjax/dispatch.h"
#include "fdjax/host_parallel.h"

namespace fdjax::decode_attention {

struct HostAttributes {
  Attributes attention;
  SchemeAttributes scheme;
  int64_t max_lanes;  // the widest vectors to use: 4 or 8 float32
};

}  // namespace fdjax::decode_attention

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    fdjax::decode_attention::HostAttributes,
    StructMember<fdjax::paged::Attributes>("attention"),
    StructMember<fdjax::decode_attention::SchemeAttributes>("scheme"),
    StructMember<int64_t>("max_lanes"));

namespace fdjax::decode_attention {
namespace {

using Attend = void (*)(const Params&, int row, int kv_head);

template <typename T>
void attend_narrow(const Params& p, int row, int kv_head) {
  attend_group<Lanes4, T>(p, row, kv_head);
}

template <typename T>
FDJAX_WIDE void attend_wide(const Params& p, int row, int kv_head) {
  attend_group<Lanes8, T>(p, row, kv_head);
}

// Built for every x86-64, and for those since 2013 as well: on one of 2023, eight lanes
// take 0.9 (4 heads of 64, bound by reading) to 0.7 (32 of 128) of the time of four in
// float32, and half of it in 16 bits.
template <typename T>
Attend choose(int64_t max_lanes) {
  const bool wide = max_lanes >= kLanes<Lanes8> && has_wide_vectors();
  return wide ? attend_wide<T> : attend_narrow<T>;
}

// Multiplications and additions of the whole call.
int64_t work_of(const Params& p) {
  int64_t tokens = 0;
  for (int row = 0; row < p.rows; ++row) {
    const Span span = seen(p, row);
    tokens += span.end - span.begin;
  }
  return tokens * p.kv_heads * p.group * p.head_dim * 2;
}

}  // namespace

ffi::Error attend_on_host(ffi::ThreadPool& pool, ffi::DataType dtype, int64_t max_lanes,
                          const Params& p) {
  FDJAX_RETURN_IF_ERROR(check_range("D", p.head_dim, 1, kMaxHostHeadDim));
  return dispatch_float<HostFloats>("q", dtype, [&](auto type) {
    const Attend attend = choose<typename decltype(type)::type>(max_lanes);
    const auto body = [&p, attend](int64_t i) {
      attend(p, static_cast<int>(i / p.kv_heads), static_cast<int>(i % p.kv_heads));
    };
    const int64_t count = static_cast<int64_t>(p.rows) * p.kv_heads;
    if (work_of(p) >= kParallelWork) {
      parallel_for(pool, count, body);
    } else {
      for (int64_t i = 0; i < count; ++i) body(i);
    }
    return ffi::Error::Success();
  });
}

namespace {

ffi::Error run(ffi::ThreadPool pool, const HostAttributes& a,
               const Arguments& arguments) {
  Dims d;
  FDJAX_RETURN_IF_ERROR(check_buffers(arguments, &d));
  FDJAX_RETURN_IF_ERROR(check_values(a.attention, d));
  return attend_on_host(pool, arguments.in.q.element_type(), a.max_lanes,
                        params_of(a.attention, a.scheme, arguments, d));
}

ffi::Error handle(ffi::ThreadPool pool, const HostAttributes& attributes,
                  ffi::AnyBuffer q, ffi::AnyBuffer kv, ffi::Buffer<ffi::S32> page_table,
                  ffi::Buffer<ffi::S32> lengths, ffi::Buffer<ffi::F32> slopes,
                  ffi::Buffer<ffi::F32> sinks, ffi::Result<ffi::AnyBuffer> out,
                  ffi::Result<ffi::Buffer<ffi::S32>> recomputed) {
  return run(pool, attributes,
             {{q, kv, page_table, lengths, slopes, sinks}, out, recomputed});
}

}  // namespace
}  // namespace fdjax::decode_attention

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fdjax_decode_attention_cpu, fdjax::decode_attention::handle,
    fdjax::decode_attention::bind_operands(
        xla::ffi::Ffi::Bind()
            .Ctx<xla::ffi::ThreadPool>()
            .Attr<fdjax::decode_attention::HostAttributes>("attributes"))
        .Ret<xla::ffi::AnyBuffer>()
        .Ret<xla::ffi::Buffer<xla::ffi::S32>>());
