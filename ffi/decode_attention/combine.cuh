// From the warps' partial results to the output: first within a block, then within a
// cluster, whose blocks hold the splits of the same row and heads.
//
// Nothing of a whole row goes through device memory, nothing is counted there and no
// order is left to chance (merge.cuh has the pieces of others): a block sums its warps
// in shared memory, sends each block of the cluster the part of the result that is that
// block's to finish, and sums what it was sent, as soon as its inbox is full. No
// barrier of the cluster: its release would be a fence of the device, with pages still
// being written.
//
// Sums of the warps lie where the rings were. So does the inbox, unless blocks have one
// head at most: then it has a place of its own, and nobody need wait for others to be
// done with their rings before sending.
#pragma once

#include "decode_attention/attend.cuh"
#include "decode_attention/inbox.cuh"
#include "decode_attention/merge.cuh"
#include "decode_attention/sums.cuh"

namespace fdjax::decode_attention {

struct Column {  // a query head
  float highest, total;
};

// Where things lie in the memory of the rings. A unit is 4 dimensions of a query head.
template <typename G>
struct Exchange {
  float* partials;   // [warps, columns, kPartialStride]
  Column* warps;     // [warps, columns]: beside the rings
  Column* received;  // [splits, columns of the block]
  float4* sums;      // [splits, units of a block of the cluster]
  Inbox inbox;
  int columns;       // of the block: its heads' groups, without padding
  int units, share;  // of all its columns; of one block of the cluster
  bool is_apart;     // the inbox, from the rings

  // `apart`: of inbox_bytes, before the rings.
  __device__ Exchange(const Params& p, const Block& block, char* apart, char* rings,
                      Column* of_warps, uint64_t* barrier)
      : warps(of_warps), inbox{barrier, block.split} {
    columns = block.heads() * p.group;
    units = columns * (G::kHeadDim / 4);
    share = min(static_cast<int>(p.block.share.value), units);
    is_apart = p.block.inbox_bytes > 0;
    partials = reinterpret_cast<float*>(rings);
    char* const after = rings + partial_bytes(block.warps);
    sums = reinterpret_cast<float4*>(is_apart ? apart : after);
    received = reinterpret_cast<Column*>(sums + block.splits * share);
  }

  // What other blocks send to this one: of its units and of all columns.
  __device__ uint32_t expected_bytes(const Block& block) const {
    const int kept = max(min(share, units - block.split * share), 0);
    return (block.splits - 1) * (kept * sizeof(float4) + columns * sizeof(Column));
  }

  static constexpr int inbox_bytes(int heads, int group, int splits) {
    return heads == 1 ? received_bytes(heads, group, splits) : 0;
  }

  // Of a block's sums, in units: what a block of the cluster adds.
  static constexpr int share_of(int heads, int group, int splits) {
    return (heads * group * (G::kHeadDim / 4) + splits - 1) / splits;
  }

  // Of what lies where the rings were.
  static constexpr int bytes(int warps, int heads, int group, int splits) {
    return partial_bytes(warps) +
           (heads == 1 ? 0 : received_bytes(heads, group, splits));
  }

 private:
  __host__ __device__ static constexpr int partial_bytes(int warps) {
    return warps * G::kColumns * G::kPartialStride * 4;
  }

  static constexpr int received_bytes(int heads, int group, int splits) {
    return splits * (share_of(heads, group, splits) * 16 + heads * group * 8);
  }
};

// Writes a warp's partial result, relative to the largest score of all warps of its
// head: what comes after adds plain numbers. kPartialStride spreads the 32 threads of a
// store over all banks.
template <typename G>
__device__ void store_partial(const Block& block, Scheme scheme, const Exchange<G>& e,
                              const Partial<G>& partial) {
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int first = block.head * block.warps_per_head;
  Column* const own = e.warps + warp * G::kColumns;
  if (lane < 4) {
#pragma unroll
    for (int i = 0; i < 2 * G::kBlocks; ++i) {
      own[i / 2 * 8 + lane * 2 + i % 2].highest = partial.highest[i / 2][i % 2];
    }
  }
  __syncthreads();  // every warp's largest scores stand, and every ring is read
  float* out = e.partials + warp * G::kColumns * G::kPartialStride;
#pragma unroll
  for (int n = 0; n < G::kBlocks; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = n * 8 + lane % 4 * 2 + j;
      float highest = -INFINITY;
#pragma unroll 8
      for (int w = first; w < first + block.warps_per_head; ++w) {
        highest = fmaxf(highest, e.warps[w * G::kColumns + column].highest);
      }
      const float factor = scheme.factor(partial.highest[n][j], highest);
      float* at = out + column * G::kPartialStride + lane / 4;
#pragma unroll
      for (int m = 0; m < G::kHeadDim / 16; ++m) {
        at[m * 16] = partial.out[m][n][j] * factor;
        at[m * 16 + 8] = partial.out[m][n][j + 2] * factor;
      }
      if (lane < 4) own[column].total = partial.total[n][j] * factor;
    }
}

// Sends every block of the cluster its share of this block's sums, and all columns.
template <typename G>
__device__ void send(const Params& p, const Block& block, const Exchange<G>& e) {
  constexpr int kUnits = G::kHeadDim / 4;  // of a query head
  const int warps = block.warps_per_head;
  for (int unit = threadIdx.x; unit < e.units; unit += blockDim.x) {
    const int column = unit / kUnits, head = quotient(column, p.block.group);
    const int at = head * warps * G::kColumns + column - head * p.group;
    const float* source = e.partials + at * G::kPartialStride + unit % kUnits * 4;
    float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
    for (int w = 0; w < warps; ++w) {
      add(sum, *reinterpret_cast<const float4*>(source));
      source += G::kColumns * G::kPartialStride;
    }
    const int to = quotient(unit, p.block.share);
    e.inbox.put(e.sums + block.split * e.share + unit - to * e.share, sum, to);
  }
  // By the last threads: they have no units if there are few.
  for (int i = blockDim.x - 1 - threadIdx.x; i < block.splits * e.columns;
       i += blockDim.x) {
    // A cluster of several blocks has one head: each takes columns of it.
    const int to = block.splits == 1 ? 0 : quotient(i, p.block.group);
    const int column = i - to * e.columns;
    const int head = quotient(column, p.block.group);
    const Column* of_warp =
        e.warps + head * warps * G::kColumns + column - head * p.group;
    Column sum{-INFINITY, 0.0f};
#pragma unroll 8
    for (int w = 0; w < warps; ++w) {
      sum.highest = fmaxf(sum.highest, of_warp[w * G::kColumns].highest);
      sum.total += of_warp[w * G::kColumns].total;
    }
    e.inbox.put(
        reinterpret_cast<float2*>(e.received + block.split * e.columns + column),
        float2{sum.highest, sum.total}, to);
  }
}

// One column over the splits.
template <typename G>
__device__ Column sum_splits(Scheme scheme, const Exchange<G>& e, int column,
                             int splits) {
  Column sum{-INFINITY, 0.0f};
  for (int s = 0; s < splits; ++s) {
    sum.highest = fmaxf(sum.highest, e.received[s * e.columns + column].highest);
  }
  for (int s = 0; s < splits; ++s) {
    const Column c = e.received[s * e.columns + column];
    sum.total += c.total * scheme.factor(c.highest, sum.highest);
  }
  return sum;
}

// One of the block's columns over the splits, and its sink.
template <typename G>
__device__ Column sum_all(const Params& p, const Block& block, Scheme scheme,
                          const Exchange<G>& e, int column) {
  const Column sum = sum_splits(scheme, e, column, block.splits);
  if (p.sinks == nullptr || block.item.piece > 0) return sum;
  const float sink = kLog2E * p.sinks[block.kv_head() * p.group + column];
  const float highest = fmaxf(sum.highest, sink);
  return {highest, sum.total * scheme.factor(sum.highest, highest) +
                       scheme.weight_of(p, sink, highest)};
}

// Writes this block's share of the columns: those of which `done` says `wanted`, or all
// if it is nullptr. Every thread sums its column over the splits itself. Of a piece of
// a row the sums are left for who is done last to add.
template <typename G>
__device__ void finish(const Params& p, const Block& block, Scheme scheme,
                       const Exchange<G>& e, const bool* done, bool wanted) {
  constexpr int kUnits = G::kHeadDim / 4;  // of a query head
  uint2* out = static_cast<uint2*>(p.out) + block.query_head(p) * kUnits;
  for (int i = threadIdx.x; i < e.share; i += blockDim.x) {
    const int unit = block.split * e.share + i;
    if (unit >= e.units) return;
    const int column = unit / kUnits;
    if (done != nullptr && done[column] != wanted) continue;
    const Column all = sum_all(p, block, scheme, e, column);
    float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int s = 0; s < block.splits; ++s) {
      const float highest = e.received[s * e.columns + column].highest;
      add_scaled(sum, e.sums[s * e.share + i], scheme.factor(highest, all.highest));
    }
    if (!block.is_whole()) {
      float4* const record = record_of<kUnits>(p, block.item, block.item.piece, column);
      record[1 + unit % kUnits] = sum;
      if (unit % kUnits == 0) {
        const float base = scheme.unified ? p.phi : all.highest;
        record[0] = {base, all.total, /*again=*/wanted ? 0.0f : 1.0f, 0.0f};
      }
      continue;
    }
    if (p.about != nullptr && unit % kUnits == 0) {
      const float base = scheme.unified ? p.phi : all.highest;
      reinterpret_cast<float2*>(p.about)[block.query_head(p) + column] = {base,
                                                                          all.total};
    }
    const float inverse = all.total > 0.0f ? 1.0f / all.total : 0.0f;
    out[unit] = pack(typename G::T{}, sum, inverse);
  }
}

}  // namespace fdjax::decode_attention
