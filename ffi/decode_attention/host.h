// Attention on a CPU, for the handlers: compiled once, in decode_attention/handler.cc.
#pragma once

#include "decode_attention/params.h"
#include "xla/ffi/api/ffi.h"

namespace fdjax::decode_attention {

// Attends with each row's query, rows and key/value heads over the threads of `pool`.
// `dtype` is that of q, kv and out; `max_lanes` is 4 or 8 float32 of a vector.
xla::ffi::Error attend_on_host(xla::ffi::ThreadPool& pool, xla::ffi::DataType dtype,
                               int64_t max_lanes, const Params& p);

}  // namespace fdjax::decode_attention
