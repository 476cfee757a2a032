// The dense part of a layer as one persistent kernel: out, up, down, and the next
// layer's qkv, with the norms between them.
//
// Four products one kernel after the other leave memory idle at every boundary: the
// last blocks drain, the next ones start, and until x is there only as much of the next
// weight is loaded as its ring holds. Here one block stays on each multiprocessor and
// its ring does not know of the boundaries: while the blocks wait for each other's
// results, the copy engine goes on to load the next product's weights.
//
//   weights  one thread: every slot of every product in order, as slots become free
//   x        one thread: the same slots, but not before the product's x is complete
//   four warpgroups multiply (the operands swapped as in matmul/flat.cuh), add up, and
//   finish a block's columns; then the block counts itself in `counters`.
//
// A norm in between needs a row's sum of squares, which no block has. So the product
// before it writes x * scale and the sums of squares of its columns, and the product
// after it multiplies its results by 1 / rms: (x / rms * scale) W^T is the same as
// (x * scale) W^T / rms, and rounding to bfloat16 is relative, before or after.
//
// All blocks must be on the machine at once, or those that wait would wait forever: one
// block a multiprocessor, and no more blocks than multiprocessors. Blocks of other
// kernels delay a start but do not depend on it: kernels after this one are launched
// when all of its blocks have started (pdl_release).
#pragma once

#include "decoder_stack/dense_params.h"
#include "fdjax/gpu.h"
#include "fdjax/mbarrier.cuh"
#include "fdjax/pdl.cuh"
#include "fdjax/tma.cuh"
#include "fdjax/vector.cuh"
#include "fdjax/wgmma.cuh"
#include "matmul/epilogue.cuh"

namespace fdjax::decoder_stack {

using Element = GpuFloats::bfloat16;

inline constexpr int kConsumers = kWarpgroups * 128;
inline constexpr int kDenseThreads = kConsumers + 64;  // and two warps that load
inline constexpr int kUnit = 4;        // columns that a thread finishes at a time
inline constexpr int kPitch = 64 + 4;  // floats: accumulators spread over all banks

inline constexpr int kSumFloats = kTokens * kPitch;  // of a warpgroup

struct DenseShared {
  unsigned char* ring;
  float* sums;      // [kWarpgroups][kTokens][kPitch]
  uint64_t* full;   // weights and x of a slot have arrived
  uint64_t* empty;  // the consumers are done with it
  float* inverse;   // [kSegments][kTokens]: 1 / rms
  float* squares;   // [kConsumers]
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// A position in the ring: which slot, and the parity of its current use.
struct DenseCursor {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// What the i-th slot of a product holds: the next tile of the block, or the first tile
// of the next columns. Blocks start at different columns, so that they do not all ask
// for the same ones of rows that lie a power of two apart.
struct SlotPlace {
  int tile, box;

  __device__ SlotPlace(const Segment& s, int i) : tile(i % s.tiles) {
    int at = i / s.tiles + static_cast<int>(blockIdx.x) * 5 % s.depth;
    if (at >= s.depth) at -= s.depth;
    box = at * kBoxes;
  }
};

// One thread.
__device__ inline void load_weights(const DenseParams& p, const DenseMaps& maps,
                                    unsigned char* ring, uint64_t* full,
                                    uint64_t* empty) {
  DenseCursor cursor;
#pragma unroll 1
  for (int index = 0; index < p.count; ++index) {
    const Segment& s = p.segments[index];
    const int first = blockIdx.x * s.rows(), slots = s.slots();
#pragma unroll 1
    for (int i = 0; i < slots; ++i) {
      const SlotPlace place(s, i);
      int row = first + place.tile * s.tile_rows;
      if (s.gated && place.tile >= s.tiles / 2) row += s.columns - s.rows();
      mbarrier_wait(&empty[cursor.slot], cursor.parity ^ 1);
      mbarrier_arrive_expect(&full[cursor.slot], s.weight_bytes());
      tma_load(ring + cursor.slot * p.slot_bytes, &maps.weights[index],
               {0, row, place.box}, &full[cursor.slot], CachePolicy::kEvictFirst);
      cursor.advance(p.stages);
    }
  }
}

__device__ inline int32_t load_acquire(const int32_t* address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
               : "=r"(value)
               : "l"(address)
               : "memory");
  return value;
}

__device__ inline void add_release(int32_t* address) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(address) : "memory");
}

// Between what other blocks' threads wrote, seen by load_acquire, and the copy engine's
// reads.
__device__ inline void proxy_fence() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// 1 / rms of every token from the blocks' sums of squares, in a fixed order. A warp.
__device__ inline void inverse_rms(const DenseParams& p, const float* squares,
                                   float* inverse) {
  constexpr int kUnits = 32 / kTokens;
  const int lane = threadIdx.x % 32, token = lane % kTokens;
  float sum = 0.0f;
#pragma unroll 4
  for (int block = lane / kTokens; block < static_cast<int>(gridDim.x);
       block += kUnits) {
    sum += __ldcg(squares + block * kTokens + token);
  }
#pragma unroll
  for (int distance = kTokens; distance < 32; distance *= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  if (lane < kTokens) inverse[token] = rsqrtf(sum / p.norm_size + p.epsilon);
}

// A warp; its first lane asks for the copies.
__device__ inline void load_x(const DenseParams& p, const DenseMaps& maps,
                              const DenseShared& shared) {
  const bool asking = threadIdx.x % 32 == 0;
  DenseCursor cursor;
#pragma unroll 1
  for (int index = 0; index < p.count; ++index) {
    const Segment& s = p.segments[index];
    if (s.wait_for != kNoCounter) {
      if (asking) {
        while (load_acquire(p.counters + s.wait_for) < static_cast<int>(gridDim.x)) {
        }
      }
      __syncwarp();
      proxy_fence();
    }
    const int slots = s.slots();
#pragma unroll 1
    for (int i = 0; i < slots; ++i) {
      // A tile's last slot tells its warpgroups that `inverse` stands.
      if (i == slots - s.tiles && s.squares_before != nullptr) {
        inverse_rms(p, s.squares_before, shared.inverse + index * kTokens);
        __syncwarp();
      }
      if (asking) {
        mbarrier_wait(&shared.empty[cursor.slot], cursor.parity ^ 1);
        mbarrier_arrive_expect(&shared.full[cursor.slot], x_bytes());
        tma_load(shared.ring + cursor.slot * p.slot_bytes + s.weight_bytes(),
                 &maps.x[index], {0, 0, SlotPlace(s, i).box}, &shared.full[cursor.slot],
                 CachePolicy::kEvictLast);
      }
      cursor.advance(p.stages);
    }
  }
}

// A warpgroup's boxes of every slot of its tile.
__device__ inline void multiply(const DenseParams& p, const Segment& s,
                                const DenseShared& shared, DenseCursor& cursor,
                                float (&sums)[kTokens / 2]) {
  const int group = threadIdx.x / 128, boxes = s.tiles;  // boxes of a slot for each
  const int tile = group / s.owners(), first = group % s.owners() * boxes;
  const int a_offset = first * s.tile_rows * kBoxColumns * 2;
  const int b_offset = s.weight_bytes() + first * kTokens * kBoxColumns * 2;
  const int slots = s.slots();
  const bool speaker = threadIdx.x % 32 == 0;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  wgmma_pin(sums);
  int at = 0;  // the slot's tile
#pragma unroll 1
  for (int i = 0; i < slots; ++i) {
    // Other tiles' slots are waited for and released too: with a parity, a barrier of
    // which a phase was missed cannot be told from one that has yet to complete it.
    mbarrier_wait(&shared.full[cursor.slot], cursor.parity);
    if (at == tile) {
      const unsigned char* slot = shared.ring + cursor.slot * p.slot_bytes;
      uint64_t a = wgmma_matrix(slot + a_offset);
      uint64_t b = wgmma_matrix(slot + b_offset);
#pragma unroll 1
      for (int box = 0; box < boxes; ++box) {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kBoxColumns / 16; ++step) {
          Wgmma<Element, kTokens>::add(sums, a + step * kWgmmaStepK,
                                       b + step * kWgmmaStepK);
        }
        a += s.tile_rows * kBoxColumns * 2 / 16;  // descriptors count 16 bytes
        b += kTokens * kBoxColumns * 2 / 16;
        wgmma_commit();
      }
      // Not one slot later: a slot that waits for the next one to arrive is a slot less
      // on its way, and the tensor cores have time.
      wgmma_wait<0>();
    }
    if (speaker) mbarrier_arrive(&shared.empty[cursor.slot]);
    cursor.advance(p.stages);
    at = at + 1 == s.tiles ? 0 : at + 1;
  }
  wgmma_pin(sums);
}

__device__ inline void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// From the accumulators' layout to [kTokens][kPitch], tokens by weight rows.
__device__ inline void store_sums(const float (&sums)[kTokens / 2], float* target) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    target[column * kPitch + row] = sums[i];
  }
}

// What a thread finishes: kUnit columns of one token.
struct Unit {
  int token, row, column;  // row: in the block; column: of y
  bool active;

  __device__ Unit(const DenseParams& p, const Segment& s, int index) {
    const int units = s.rows() / kUnit;
    token = index / units;
    row = index % units * kUnit;
    column = blockIdx.x * s.rows() + row;
    active = token < p.m && column < s.columns;
  }
};

using Pack = Vec<Element, kUnit>;

// Sums of `kUnit` weight rows over the warpgroups of their tile.
__device__ inline void gather(const Segment& s, const float* sums, int tile, int token,
                              int row, float factor, float (&values)[kUnit]) {
  const float* source = sums + tile * s.owners() * kSumFloats + token * kPitch + row;
  float4 sum{0, 0, 0, 0};
#pragma unroll 1
  for (int owner = 0; owner < s.owners(); ++owner) {
    const float4 part = *reinterpret_cast<const float4*>(source);
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    source += kSumFloats;
  }
  values[0] = sum.x * factor, values[1] = sum.y * factor;
  values[2] = sum.z * factor, values[3] = sum.w * factor;
}

__device__ inline Pack load_pack(const void* source, int64_t at) {
  // Maybe other blocks' results of this very launch: not by way of L1.
  const float2 bits =
      __ldcg(reinterpret_cast<const float2*>(static_cast<const Element*>(source) + at));
  return reinterpret_cast<const Pack&>(bits);
}

// Writes columns [column, column + kUnit) of y and, scaled, of the norm's input.
// Returns the sum of y's squares.
__device__ inline float write(const DenseParams& p, const Segment& s, int64_t at,
                              int column, float (&values)[kUnit]) {
  Pack y;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) y.values[i] = from_float<Element>(values[i]);
  *reinterpret_cast<Pack*>(static_cast<Element*>(s.y) + at) = y;
  if (s.scale == nullptr) return 0.0f;
  const Pack scale = load_pack(s.scale, column);
  Pack scaled;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const float rounded = to_float(y.values[i]);
    squares += rounded * rounded;
    scaled.values[i] =
        from_float<Element>(rounded * (to_float(scale.values[i]) + p.scale_offset));
  }
  *reinterpret_cast<Pack*>(static_cast<Element*>(s.scaled) + at) = scaled;
  return squares;
}

// Finishes a unit. Returns the sum of its squares.
__device__ inline float finish(const DenseParams& p, const Segment& s, const Unit& unit,
                               const DenseShared& shared, float factor) {
  const int tile = unit.row / s.tile_rows, row = unit.row % s.tile_rows;
  const int64_t at = static_cast<int64_t>(unit.token) * s.columns + unit.column;
  Pack residual;
  if (s.residual != nullptr) residual = load_pack(s.residual, at);
  float values[kUnit];
  gather(s, shared.sums, tile, unit.token, row, factor, values);
  matmul::add<Element>(s.bias, unit.column, values);
  if (s.gated) {
    float second[kUnit];
    gather(s, shared.sums, tile + s.tiles / 2, unit.token, row, factor, second);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      values[i] = matmul::activate(p.activation, values[i]) * second[i];
    }
  }
  if (s.residual != nullptr) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) values[i] += to_float(residual.values[i]);
  }
  return write(p, s, at, unit.column, values);
}

// All of the block's columns, and the sum of squares of every token, unit by unit.
__device__ inline void finish(const DenseParams& p, const Segment& s, int index,
                              const DenseShared& shared) {
  const int units = s.rows() / kUnit;
#pragma unroll 1
  for (int i = threadIdx.x; i < units * kTokens; i += kConsumers) {
    const Unit unit(p, s, i);
    float squares = 0.0f;
    if (unit.active) {
      const float factor = s.squares_before == nullptr
                               ? 1.0f
                               : shared.inverse[index * kTokens + unit.token];
      squares = finish(p, s, unit, shared, factor);
    }
    if (s.scale != nullptr) shared.squares[i] = squares;
  }
  if (s.scale == nullptr) return;
  sync_consumers();
  if (threadIdx.x >= kTokens) return;
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < units; ++i) sum += shared.squares[threadIdx.x * units + i];
  s.squares[blockIdx.x * kTokens + threadIdx.x] = sum;
}

__device__ inline void consume(const DenseParams& p, const DenseShared& shared) {
  DenseCursor cursor;
#pragma unroll 1
  for (int index = 0; index < p.count; ++index) {
    const Segment& s = p.segments[index];
    float sums[kTokens / 2];
    multiply(p, s, shared, cursor, sums);
    store_sums(sums, shared.sums + threadIdx.x / 128 * kSumFloats);
    sync_consumers();
    finish(p, s, index, shared);
    if (index == p.count - 1) return;
    sync_consumers();  // everything is written, and the sums are read
    if (s.signal != kNoCounter && threadIdx.x == 0) {
      add_release(p.counters + s.signal);
    }
  }
}
#endif

// Two blocks' registers: one of attention finds room beside us.
__global__ void __launch_bounds__(kDenseThreads, 2)
    dense(FDJAX_GRID_CONSTANT const DenseMaps maps,
          FDJAX_GRID_CONSTANT const DenseParams params) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ unsigned char dynamic[];
  __shared__ uint64_t barriers[2 * kMaxDenseStages];
  __shared__ float inverse[kSegments * kTokens];
  __shared__ float squares[kConsumers];
  // A copy near by: parameters are constants, and the first use of each line of those
  // takes a microsecond when memory is busy, in the way of every product's end.
  __shared__ DenseParams p;
  static_assert(sizeof(p) % 4 == 0 && sizeof(p) / 4 <= kDenseThreads);
  if (threadIdx.x < sizeof(p) / 4) {
    reinterpret_cast<int*>(&p)[threadIdx.x] =
        reinterpret_cast<const int*>(&params)[threadIdx.x];
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < params.stages; ++i) {
      mbarrier_init(&barriers[i], 2);  // weights, x
      mbarrier_init(&barriers[kMaxDenseStages + i], kConsumers / 32);
    }
    mbarrier_init_fence();
  } else if (threadIdx.x >= kConsumers && threadIdx.x < kConsumers + params.count) {
    prefetch_tensor_map(&maps.weights[threadIdx.x - kConsumers]);
    prefetch_tensor_map(&maps.x[threadIdx.x - kConsumers]);
  }
  pdl_release();
  __syncthreads();
  unsigned char* ring = dynamic + (-shared_address(dynamic) & 1023);
  const DenseShared shared{
      .ring = ring,
      .sums = reinterpret_cast<float*>(ring + p.stages * p.slot_bytes),
      .full = barriers,
      .empty = barriers + kMaxDenseStages,
      .inverse = inverse,
      .squares = squares};
  if (threadIdx.x == kConsumers) {
    load_weights(p, maps, shared.ring, shared.full, shared.empty);
  } else if (threadIdx.x >= kConsumers + 32) {
    pdl_wait();
    load_x(p, maps, shared);
  } else if (threadIdx.x < kConsumers) {
    pdl_wait();
    consume(p, shared);
  }
#endif
}

}  // namespace fdjax::decoder_stack
