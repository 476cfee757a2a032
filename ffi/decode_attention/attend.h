// Attention of one query and key/value head on a CPU: the synchronised scheme, a block
// of tokens at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "decode_attention/params.h"
#include "fdjax/host_vector.h"

namespace fdjax::decode_attention {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Query heads that are served together.
inline constexpr int kHostHeads = 8;
// Below this many multiplications one thread is as fast as two.
inline constexpr int64_t kParallelWork = 1 << 18;
// Keys of 64 tokens of 64 float32 are 16 KiB: they stay in the L1 for all query heads.
inline constexpr int kBlockTokens = 64;

// Tokens that a row's query sees; it is the last of them.
struct Span {
  int begin, end;
};

inline Span seen(const Params& p, int row) {
  const int room = p.table_width * static_cast<int>(p.page_size);
  const int end = std::clamp(p.lengths[row], 0, room);
  return {std::max(end - p.window, 0), end};
}

// Sums of products that grow together: they hide an addition's latency, and fit the
// registers of any machine.
inline constexpr int kSums = 4;

// Some tokens of a row, present ones only.
template <typename T>
struct Block {
  int count;
  const T* keys[kBlockTokens];
  float distances[kBlockTokens];  // from the query, negative
};

// What a query head keeps of the tokens it has seen.
struct Partial {
  float highest;  // score
  float total;    // sum of the weights
  float out[kMaxHostHeadDim];
};

// Nothing seen but the sink, if there is one.
FDJAX_INLINE void clear(const Params& p, int head, Partial* partial) {
  partial->highest = p.sinks == nullptr ? -kInfinity : p.sinks[head];
  partial->total = p.sinks == nullptr ? 0.0f : 1.0f;
  std::fill_n(partial->out, p.head_dim, 0.0f);
}

// A row without tokens has nothing to compute again.
FDJAX_INLINE bool out_of_bounds(const Params& p, float highest) {
  return p.unified && std::isfinite(highest) &&
         (highest >= p.phi + p.high || highest <= p.phi + p.low);
}

// Fills `block` from `token` on; returns the first token after it.
template <typename T>
FDJAX_INLINE int fill(const Params& p, int row, int kv_head, int token, int end,
                      Block<T>* block) {
  const int64_t slot = p.slot_bytes / static_cast<int64_t>(sizeof(T));
  const int64_t table_row = p.table_rows == nullptr ? row : p.table_rows[row];
  const int32_t* pages = p.page_table + table_row * p.table_width;
  const T* keys = static_cast<const T*>(p.kv) + kv_head * (p.head_bytes / sizeof(T));
  const int page_size = static_cast<int>(p.page_size);
  block->count = 0;
  while (token < end && block->count < kBlockTokens) {
    const uint32_t page = pages[token / page_size];
    const int place = token % page_size;
    const int run =
        std::min({page_size - place, end - token, kBlockTokens - block->count});
    if (page < p.num_pages) {
      const T* first = keys + (page * int64_t{p.slots_per_page} + place) * slot;
      for (int i = 0; i < run; ++i) {
        block->keys[block->count] = first + i * slot;
        block->distances[block->count++] = static_cast<float>(token + i + 1 - end);
      }
    }
    token += run;
  }
  return token;
}

// `scores[i]` of the block's keys, and -inf up to a multiple of the lanes.
template <typename V, typename T>
FDJAX_INLINE void score(const Params& p, const T* query, float slope,
                        const Block<T>& block, float (&scores)[kBlockTokens]) {
  const int whole = p.head_dim / kLanes<V> * kLanes<V>, rest = p.head_dim - whole;
  for (int t = 0; t < block.count; t += kSums) {
    const T* keys[kSums];  // the last one again where there are fewer
    for (int i = 0; i < kSums; ++i) {
      keys[i] = block.keys[std::min(t + i, block.count - 1)];
    }
    V products[kSums] = {};
    for (int d = 0; d < whole; d += kLanes<V>) {
      const V q = load<V>(query + d);
      for (int i = 0; i < kSums; ++i) products[i] += q * load<V>(keys[i] + d);
    }
    if (rest != 0) {
      const V q = load_some<V>(query + whole, rest);
      for (int i = 0; i < kSums; ++i) {
        products[i] += q * load_some<V>(keys[i] + whole, rest);
      }
    }
    store_sums(scores + t, products);
  }
  for (int t = 0; t < block.count; ++t) scores[t] *= p.scale;
  if (p.soft_cap != 0.0f) {
    for (int t = 0; t < block.count; ++t) {
      scores[t] = p.soft_cap * std::tanh(scores[t] / p.soft_cap);
    }
  }
  if (slope != 0.0f) {
    for (int t = 0; t < block.count; ++t) scores[t] += slope * block.distances[t];
  }
  for (int t = block.count; t % kLanes<V> != 0; ++t) scores[t] = -kInfinity;
}

// Scores become weights relative to the largest score so far. Returns the factor of
// everything weighted before.
template <typename V>
FDJAX_INLINE float weigh(int count, float (&scores)[kBlockTokens], Partial* partial) {
  V top = broadcast<V>(partial->highest);
  for (int t = 0; t < count; t += kLanes<V>) {
    const V x = load<V>(scores + t);
    top = x > top ? x : top;
  }
  float highest = top[0];
  for (int i = 1; i < kLanes<V>; ++i) highest = std::max(highest, top[i]);
  const float base = std::isinf(highest) ? 0.0f : highest;
  const float factor = std::exp(partial->highest - base);
  V total{};
  for (int t = 0; t < count; t += kLanes<V>) {
    const V weights = exp_of_negative(load<V>(scores + t) - base);
    store(scores + t, weights);
    total += weights;
  }
  partial->highest = highest;
  partial->total *= factor;
  for (int i = 0; i < kLanes<V>; ++i) partial->total += total[i];
  return factor;
}

// Adds weighted values to `kVectors` vectors of the result.
template <typename V, int kVectors, typename T>
FDJAX_INLINE void mix(const Block<T>& block, const float* weights, int64_t offset,
                      float factor, float* out) {
  V sums[kVectors];
  for (int i = 0; i < kVectors; ++i) sums[i] = load<V>(out + i * kLanes<V>) * factor;
  for (int t = 0; t < block.count; ++t) {
    const T* values = block.keys[t] + offset;
    for (int i = 0; i < kVectors; ++i) {
      sums[i] += weights[t] * load<V>(values + i * kLanes<V>);
    }
  }
  for (int i = 0; i < kVectors; ++i) store(out + i * kLanes<V>, sums[i]);
}

template <typename V, typename T>
FDJAX_INLINE void mix_all(const Params& p, const Block<T>& block, const float* weights,
                          float factor, float* out) {
  const int64_t to_values = p.value_offset() / static_cast<int64_t>(sizeof(T));
  int d = 0;
  for (; d + kSums * kLanes<V> <= p.head_dim; d += kSums * kLanes<V>) {
    mix<V, kSums>(block, weights, to_values + d, factor, out + d);
  }
  for (; d + kLanes<V> <= p.head_dim; d += kLanes<V>) {
    mix<V, 1>(block, weights, to_values + d, factor, out + d);
  }
  for (; d < p.head_dim; ++d) {
    out[d] *= factor;
    for (int t = 0; t < block.count; ++t) {
      out[d] += weights[t] * to_float(block.keys[t][to_values + d]);
    }
  }
}

// The query heads `head` to `head + count - 1` of a row. Returns how many of them the
// unified scheme would compute again.
template <typename V, typename T>
FDJAX_INLINE int attend_heads(const Params& p, int row, int kv_head, int head,
                              int count) {
  const int64_t start = (int64_t{row} * p.kv_heads * p.group + head) * p.head_dim;
  const T* queries = static_cast<const T*>(p.q) + start;
  Partial partials[kHostHeads];
  for (int i = 0; i < count; ++i) clear(p, head + i, &partials[i]);
  const Span span = seen(p, row);
  for (int token = span.begin; token < span.end;) {
    Block<T> block;
    token = fill(p, row, kv_head, token, span.end, &block);
    for (int i = 0; i < count; ++i) {
      float scores[kBlockTokens];
      const float slope = p.slopes == nullptr ? 0.0f : p.slopes[head + i];
      score<V>(p, queries + int64_t{i} * p.head_dim, slope, block, scores);
      const float factor = weigh<V>(block.count, scores, &partials[i]);
      mix_all<V>(p, block, scores, factor, partials[i].out);
    }
  }
  T* out = static_cast<T*>(p.out) + start;
  int recomputed = 0;
  for (int i = 0; i < count; ++i) {
    const Partial& partial = partials[i];
    const float total = partial.total > 0.0f ? partial.total : 1.0f;
    for (int d = 0; d < p.head_dim; ++d) {
      out[int64_t{i} * p.head_dim + d] = from_float<T>(partial.out[d] / total);
    }
    recomputed += out_of_bounds(p, partial.highest);
  }
  return recomputed;
}

// All query heads of a row and key/value head.
template <typename V, typename T>
FDJAX_INLINE void attend_group(const Params& p, int row, int kv_head) {
  int recomputed = 0;
  for (int i = 0; i < p.group; i += kHostHeads) {
    recomputed += attend_heads<V, T>(p, row, kv_head, kv_head * p.group + i,
                                     std::min(kHostHeads, p.group - i));
  }
  if (p.recomputed != nullptr) {
    p.recomputed[int64_t{row} * p.kv_heads + kv_head] = recomputed;
  }
}

}  // namespace fdjax::decode_attention
