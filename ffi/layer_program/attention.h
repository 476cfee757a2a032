// The launches of attention, of rows with one token and of rows with any number.
#pragma once

#include <string>

#include "decode_attention/launch.h"
#include "layer_program/reader.h"
#include "prefill_attention/launch.h"
#include "rope_kv_write/launch.h"

namespace fdjax::layer_program {

// The tokens of a call.
struct Tokens {
  const int32_t *ids, *positions;  // [count]
  int count;
};

// What all launches of attention have in common. Parameters are those of layer 0.
struct Attention {
  decode_attention::Params decode;  // of rows with one token
  decode_attention::LaunchConfig decode_config;
  prefill_attention::Params prefill;  // of rows with any number
  prefill_attention::Params shared;   // of prefixes that those rows share
  prefill_attention::Joining joining;
  float* about;  // joining.about, which the rows' own attention writes
  rope_kv_write::Params rotate;
  int64_t layers;
  int64_t layer_bytes;  // of a page, from a layer's keys to the next layer's
  int64_t num_plans, plan_size;
  int64_t num_lists;  // of tiles
  const int32_t *wanted, *places;
  int num_wanted, num_places;
};

template <typename T>
class AttentionChain {
 public:
  AttentionChain(cudaStream_t stream, Reader& reader, const Tokens& tokens,
                 const Attention& attention)
      : stream_(stream), reader_(reader), tokens_(tokens), attention_(attention) {}

  cudaError_t rotate() {
    rope_kv_write::Params p = attention_.rotate;
    p.pages.kv = static_cast<char*>(p.pages.kv) + layer() * attention_.layer_bytes;
    p.qkv =
        reader_.operand(int64_t{p.tokens} * (p.q_heads + 2 * p.kv_heads) * p.head_dim);
    p.query = reader_.operand(int64_t{p.tokens} * p.q_heads * p.head_dim);
    if (!is_right() || p.tokens == 0) return cudaSuccess;
    return rope_kv_write::launch_tokens<T>(stream_, p);
  }

  cudaError_t decode() {
    decode_attention::Params p = attention_.decode;
    const int64_t index = layer();
    read_scores(&p);
    read_scheme(&p);
    p.plan +=
        reader_.number("plan", 0, attention_.num_plans - 1) * attention_.plan_size;
    const bool rotates = reader_.number("rotates", 0, 1) == 1;
    const bool shares = reader_.number("shares", 0, 1) == 1;
    const int64_t q_columns = int64_t{p.kv_heads} * p.group * p.head_dim;
    const int64_t qkv_columns = int64_t{p.kv_heads} * (p.group + 2) * p.head_dim;
    p.q = reader_.operand(p.rows * (rotates ? qkv_columns : q_columns));
    p.out = reader_.operand(p.rows * q_columns);
    if (rotates) check_rotation(p);
    check_shares(shares, rotates);
    shares_ = shares;
    if (!is_right() || p.rows == 0) return cudaSuccess;
    p.kv = static_cast<char*>(p.kv) + index * attention_.layer_bytes;
    p.newest.pages.kv = p.kv;
    p.newest.qkv = rotates ? p.q : nullptr;
    p.recomputed += index * p.rows * p.kv_heads;
    p.about = shares ? attention_.about : nullptr;
    decode_attention::LaunchConfig config = attention_.decode_config;
    // Without `rotates` the predecessors have written pages.
    config.programmatic = rotates;
    return decode_attention::launch_decode_attention<T>(stream_, p, config);
  }

  cudaError_t prefill() {
    prefill_attention::Params p = attention_.prefill;
    decode_attention::Params& a = p.attention;
    const int64_t index = layer();
    read_scores(&a);
    read_scheme(&a);
    p.tiles +=
        int64_t{reader_.number("list", 0, attention_.num_lists - 1)} * p.num_tiles;
    const int64_t size = int64_t{p.queries} * a.kv_heads * a.group * a.head_dim;
    a.q = reader_.operand(size);
    a.out = reader_.operand(size);
    a.kv = static_cast<char*>(a.kv) + index * attention_.layer_bytes;
    check_scale(a.scale);
    if (a.unified && a.recomputed == nullptr) {
      reader_.refuse("attention of prompts has no room to count in");
    }
    if (!is_right() || p.queries == 0 || p.num_tiles == 0) return cudaSuccess;
    if (a.unified && index == 0) {  // the first layer: it comes before the others
      const cudaError_t error =
          prefill_attention::clear_recomputed(stream_, p, attention_.layers);
      if (error != cudaSuccess) return error;
    }
    if (a.unified) a.recomputed += index * a.rows;
    return prefill_attention::launch_prefill_attention<T>(stream_, p);
  }

  // What queries find in prefixes that they share is added to what they have found. The
  // launch starts while the one before it, which must find that, is under way.
  cudaError_t share(bool follows_decode) {
    if (!follows_decode || !shares_) {
      reader_.refuse("what rows share does not follow what is their own");
    }
    prefill_attention::Params p = attention_.shared;
    decode_attention::Params& a = p.attention;
    const int64_t index = layer();
    read_scores(&a);
    if (a.window != paged::kAllTokens) {
      reader_.refuse("attention of what is shared takes no window");
    }
    const int64_t size = int64_t{p.queries} * a.kv_heads * a.group * a.head_dim;
    a.q = reader_.operand(size);
    a.out = reader_.operand(size);
    if (a.q == a.out) reader_.refuse("queries lie where what they find is added");
    a.kv = static_cast<char*>(a.kv) + index * attention_.layer_bytes;
    check_scale(a.scale);
    if (!is_right() || p.queries == 0 || p.num_tiles == 0) return cudaSuccess;
    return prefill_attention::launch_shared_prefixes<T>(stream_, p, attention_.joining);
  }

 private:
  bool is_right() const { return reader_.problem().empty(); }

  int64_t layer() { return reader_.number("layer", 0, attention_.layers - 1); }

  // What a launch of attention says of scores.
  void read_scores(decode_attention::Params* p) {
    p->scale = reader_.real();
    p->soft_cap = reader_.real();
    p->window = reader_.number("window", 1);
  }

  void read_scheme(decode_attention::Params* p) {
    p->unified = reader_.number("unified", 0, 1) == 1;
    p->phi = reader_.real();
    p->low = reader_.real();
    p->high = reader_.real();
  }

  // What attention rotates by, and a slot of each row's key and value.
  void check_rotation(const decode_attention::Params& p) {
    if (p.newest.num_frequencies != 0 && p.newest.cosines == nullptr) {
      reader_.refuse("attention rotates, and there are no angles");
    }
    if (p.rows > tokens_.count) {
      reader_.refuse("attention rotates " + std::to_string(p.rows) + " rows of " +
                     std::to_string(tokens_.count) + " tokens");
    }
  }

  void check_shares(bool shares, bool rotates) {
    if (!shares) return;
    if (attention_.about == nullptr) {
      reader_.refuse("rows share prefixes, and there are none");
    }
    if (rotates) reader_.refuse("rows that share prefixes rotate with their attention");
  }

  void check_scale(float scale) {
    if (scale > 0.0f) return;  // NaN is not
    reader_.refuse("scale is " + std::to_string(scale) +
                   "; attention of prompts takes one above 0");
  }

  cudaStream_t stream_;
  Reader& reader_;
  const Tokens& tokens_;
  const Attention& attention_;
  bool shares_ = false;  // the last rows that decode share prefixes
};

}  // namespace fdjax::layer_program
