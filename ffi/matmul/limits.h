// What the GPU handler of matmul takes: sizes, and fields of launch configs.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::matmul {

inline constexpr int kUnit = 8;        // K, and N without a gate, are multiples of it
inline constexpr int kGatedUnit = 16;  // N of a gated weight

// The most rows of x that each kernel takes; the library takes more.
inline constexpr int kMaxGemvTokens = 4;
inline constexpr int kMaxFlatTokens = 64;
inline constexpr int kMaxGemmTokens = 128;

// FlatConfig, and the ring of GemmConfig.
inline constexpr int kMaxTiles = 2;
inline constexpr int kMaxBoxes = 2;
inline constexpr int kMaxTileRows = 64;  // of weights: the M of wgmma
inline constexpr int kTileRowMultiple = 8;
inline constexpr int kMaxSplits = 8;
inline constexpr int kMaxStages = 16;
inline constexpr int kTileColumns = 64;                  // of K, in a stage
inline constexpr int kPaddedTokens[] = {8, 16, 32, 64};  // FlatConfig pads M to one

// The launches of gemm.cuh that are compiled: weight rows of a block, blocks that share
// K.
#define FDJAX_GEMMS(USE) \
  USE(96, 2) USE(128, 2) USE(192, 2) USE(128, 4) USE(144, 4) USE(256, 1)
#define FDJAX_GEMM_NUMBERS(rows, split) rows, split,
inline constexpr int kGemms[] = {FDJAX_GEMMS(FDJAX_GEMM_NUMBERS)};
#undef FDJAX_GEMM_NUMBERS

// The tiles of persistent.cuh that are compiled, by their weight rows.
#define FDJAX_PERSISTENT_ROWS(USE) USE(128) USE(256)
#define FDJAX_PERSISTENT_NUMBERS(rows) rows,
inline constexpr int kPersistentRows[] = {
    FDJAX_PERSISTENT_ROWS(FDJAX_PERSISTENT_NUMBERS)};
#undef FDJAX_PERSISTENT_NUMBERS
// Those of a gated GEMM with a bias, or with an activation other than SiLU and GELU by
// tanh, have no more rows: what it computes at their end leaves sums fewer registers.
inline constexpr int kMaxOtherGateRows = 128;
inline constexpr int kPersistentTokens = 128;  // of a tile
inline constexpr int kPair = 2;  // blocks of a cluster, with tiles side by side

inline constexpr Limit kLimits[] = {{"unit", kUnit},
                                    {"gated_unit", kGatedUnit},
                                    {"max_gemv_tokens", kMaxGemvTokens},
                                    {"max_flat_tokens", kMaxFlatTokens},
                                    {"max_gemm_tokens", kMaxGemmTokens},
                                    {"max_tiles", kMaxTiles},
                                    {"max_boxes", kMaxBoxes},
                                    {"max_tile_rows", kMaxTileRows},
                                    {"tile_row_multiple", kTileRowMultiple},
                                    {"max_splits", kMaxSplits},
                                    {"max_stages", kMaxStages},
                                    {"tile_columns", kTileColumns},
                                    {"padded_tokens", kPaddedTokens},
                                    {"gemms", kGemms},
                                    {"persistent_rows", kPersistentRows},
                                    {"max_other_gate_rows", kMaxOtherGateRows},
                                    {"persistent_tokens", kPersistentTokens},
                                    {"persistent_pair", kPair}};

}  // namespace fdjax::matmul
