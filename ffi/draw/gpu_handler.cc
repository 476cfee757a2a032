// draw on a GPU: checks and launch.
#include "draw/launch.h"
#include "fdjax/check.h"

namespace fdjax::draw {

using Floats = ffi::Buffer<ffi::F32>;
using Integers = ffi::Buffer<ffi::S32>;
using Words = ffi::Buffer<ffi::U32>;

namespace {

// An argument of one number a row, which may be absent.
template <typename B, typename T>
ffi::Error read_rows(const char* name, const B& buffer, Dim& rows, const T** data) {
  if (is_absent(buffer)) return ffi::Error::Success();
  FDJAX_RETURN_IF_ERROR(check_shape(name, buffer.dimensions(), {&rows}));
  *data = buffer.typed_data();
  return ffi::Error::Success();
}

ffi::Error check_count(const char* name, int64_t count, int64_t least, int64_t most) {
  if (least <= count && count <= most) return ffi::Error::Success();
  return ffi::Error::InvalidArgument(
      std::string("logits: dimension ") + name + " is " + std::to_string(count) +
      "; the handler takes " + std::to_string(least) + " to " + std::to_string(most));
}

ffi::Error handle(gpu_stream stream, Floats logits, Words keys, Integers steps,
                  Floats temperature, Integers top_k, Floats top_p, Floats min_p,
                  ffi::Result<Integers> tokens) {
  Params p{};
  Dim rows{"B"}, vocab{"V"}, words{"words of a key", 2};
  FDJAX_RETURN_IF_ERROR(check_shape("logits", logits.dimensions(), {&rows, &vocab}));
  FDJAX_RETURN_IF_ERROR(check_shape("tokens", tokens->dimensions(), {&rows}));
  FDJAX_RETURN_IF_ERROR(check_count("B", *rows, 0, kMaxRows));
  FDJAX_RETURN_IF_ERROR(check_count("V", *vocab, 1, kMaxVocab));
  if (*rows == 0) return ffi::Error::Success();
  if (!is_absent(keys)) {
    FDJAX_RETURN_IF_ERROR(check_shape("keys", keys.dimensions(), {&rows, &words}));
    FDJAX_RETURN_IF_ERROR(check_shape("steps", steps.dimensions(), {&rows}));
    FDJAX_RETURN_IF_ERROR(
        check_shape("temperature", temperature.dimensions(), {&rows}));
    p.keys = keys.typed_data();
    p.steps = steps.typed_data();
    p.temperature = temperature.typed_data();
  }
  FDJAX_RETURN_IF_ERROR(read_rows("top_k", top_k, rows, &p.top_k));
  FDJAX_RETURN_IF_ERROR(read_rows("top_p", top_p, rows, &p.top_p));
  FDJAX_RETURN_IF_ERROR(read_rows("min_p", min_p, rows, &p.min_p));
  p.logits = logits.typed_data();
  p.tokens = tokens->typed_data();
  p.rows = static_cast<int>(*rows);
  p.vocab = static_cast<int>(*vocab);
  const gpu_error error = launch_draw(stream, p);
  if (error == kGpuSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("draw: ") + gpu_error_string(error));
}

}  // namespace

}  // namespace fdjax::draw

XLA_FFI_DEFINE_HANDLER_SYMBOL(fdjax_draw_gpu, fdjax::draw::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<fdjax::gpu_stream>>()
                                  .Arg<fdjax::draw::Floats>()
                                  .Arg<fdjax::draw::Words>()
                                  .Arg<fdjax::draw::Integers>()
                                  .Arg<fdjax::draw::Floats>()
                                  .Arg<fdjax::draw::Integers>()
                                  .Arg<fdjax::draw::Floats>()
                                  .Arg<fdjax::draw::Floats>()
                                  .Ret<fdjax::draw::Integers>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
