// What decode_attention is given on any platform, and how the kernel is launched.
#pragma once

#include <cstdint>

#include "decode_attention/limits.h"
#include "fdjax/divisor.h"
#include "paged/view.h"

namespace fdjax::decode_attention {

// What attention is to do before it attends, if anything: RoPE on q and k, and k and v
// into their pages. Then q is not read.
struct Newest {
  // [rows, (group + 2) * kv_heads, head_dim]: q, k, v as their GEMM left them;
  // nullptr: q is ready, and the newest keys and values are in their pages.
  const void* qkv;
  paged::Layout pages;   // of the array, where those of Params are of the page table
  const int32_t* slots;  // [rows]: page * page_size + place; others are not written
  const float* cosines;  // [rows, num_frequencies]: of each row's position
  const float* sines;
  int num_frequencies;  // a multiple of 8
  bool interleaved;
};

// The launch config as the kernel wants it: without divisions (launch.cuh).
struct KernelConfig {
  int heads = 0;         // of a block, at most
  int inbox_bytes = 0;   // apart from the rings; 0: what is received lies there
  int slots = 0;         // clusters of the grid
  int64_t items_at = 0;  // of the plan
  Divisor splits;        // blocks of a cluster
  Divisor group;         // query heads of a key/value head
  Divisor share;         // of a block's sums, those that a block of the cluster adds
};

struct Params : paged::View {
  const void* q;        // [rows, kv_heads * group, head_dim]
  const float* slopes;  // of ALiBi, [kv_heads * group], or nullptr
  // [kv_heads * group], or nullptr: the score of one more token that every query sees,
  // and whose value is zero.
  const float* sinks;
  void* out;  // as q
  // Query heads computed again: of each row and group, [rows, kv_heads], where rows
  // have one token; else of each row, [rows].
  int32_t* recomputed;
  // [rows, kv_heads * group, 2], or nullptr: the number that a head's weights are
  // relative to, in units of log 2, and their sum.
  float* about = nullptr;
  int kv_heads;
  int group;  // query heads of a key/value head
  int head_dim;
  int window;      // tokens a query sees; paged::kAllTokens: all
  float scale;     // of the scores
  float soft_cap;  // of the scores; 0: none
  bool unified;    // the asynchronous scheme, or the synchronised one throughout
  float phi;       // the unified maximum
  // A row keeps its result where phi + low < its largest score < phi + high.
  float low, high;
  Newest newest = {};
  // Who does what (attention_plan/plan.h). Its counters are zero before and after.
  int32_t* plan = nullptr;
  // What the pieces of cut rows leave for merge.cuh to add, aligned to 16 bytes:
  // [max_pieces, group, 4 + head_dim].
  float* records = nullptr;
  KernelConfig block = {};
  // On a CPU only, [rows]: the row of the page table that each row reads; nullptr: its
  // own.
  const int32_t* table_rows = nullptr;
};

inline constexpr float kLog2E = 1.44269504f;

// What the kernel computes with, of what the call says: scores in units of log 2, the
// bounds as scores, and the reciprocal of the page size. With a soft cap the scale is
// that of 2 x in tanh(x) = 1 - 2 / (e^(2 x) + 1).
inline Params in_units_of_log2(Params p) {
  p.page_reciprocal = paged::page_reciprocal_of(p.page_size);
  p.scale *= p.soft_cap > 0.0f ? 2.0f * kLog2E / p.soft_cap : kLog2E;
  p.soft_cap *= kLog2E;
  p.low = (p.phi + p.low) * kLog2E;
  p.high = (p.phi + p.high) * kLog2E;
  p.phi *= kLog2E;
  return p;
}

// The launch config, which config.py chooses, and when the kernel may start.
struct LaunchConfig {
  int slots;      // clusters of the grid, those of the plan
  int splits;     // blocks of a cluster along its tokens, up to 8
  int heads;      // key/value heads of a block at most: a power of two; 1 with splits
  int warps = 8;  // of a block; see Geometry::kMaxWarps
  bool in_runs = false;  // the page table has slots, of which most are neighbours
  // The kernel may start before its predecessor ends. With Params::newest it then reads
  // pages at once, of which the predecessor must write none.
  bool programmatic = false;
};

}  // namespace fdjax::decode_attention
