// From a program to launches: one after the other, each with the launch of the
// operation whose kernel it is.
//
// Where a kernel may start before its predecessor has ended (pdl.cuh), it does: it
// loads weights or pages, which nothing in the chain writes, and waits before it reads
// what the predecessor makes. Rotation, prompts' attention, attention that does not
// rotate and the library's GEMMs start when all before them has ended.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <variant>

#include "add_norm/launch.h"
#include "embedding/launch.h"
#include "layer_program/attention.h"
#include "layer_program/launch.h"
#include "layer_program/reader.h"
#include "matmul/launch_matmul.h"

namespace fdjax::layer_program {

template <typename T>
class Chain {
 public:
  Chain(cudaStream_t stream, Reader reader, const Tokens& tokens,
        const Attention& attention)
      : stream_(stream),
        reader_(std::move(reader)),
        tokens_(tokens),
        attention_(attention),
        attend_(stream, reader_, tokens, attention) {}

  // Launches all; says what keeps it from that, or nothing.
  std::string run() {
    for (int index = 0; reader_.has_more(); ++index) {
      const Code code = reader_.code();
      const cudaError_t error = launch(code);
      if (!reader_.problem().empty()) return reader_.problem();
      if (error != cudaSuccess) {
        return "launch " + std::to_string(index) + ": " + cudaGetErrorString(error);
      }
      last_ = code;
    }
    return "";
  }

 private:
  cudaError_t launch(Code code) {
    switch (code) {
      case Code::kEmbed:
        return embed();
      case Code::kNorm:
        return norm();
      case Code::kHeadNorm:
        return head_norm();
      case Code::kLinear:
        return linear();
      case Code::kActivate:
        return activate();
      case Code::kRotate:
        return attend_.rotate();
      case Code::kDecode:
        return attend_.decode();
      case Code::kPrefill:
        return attend_.prefill();
      case Code::kSum:
        return sum();
      case Code::kGather:
        return move_rows(/*scatters=*/false);
      case Code::kScatter:
        return move_rows(/*scatters=*/true);
      case Code::kShare:
        return attend_.share(last_ == Code::kDecode);
      case Code::kEnd:
        break;
    }
    return cudaErrorInvalidValue;
  }

  bool is_right() const { return reader_.problem().empty(); }

  // Kernels load a row by 16 bytes.
  void check_columns(int columns) {
    if (columns % kUnit != 0) {
      reader_.refuse("columns is " + std::to_string(columns) +
                     "; the handler takes multiples of 8");
    }
  }

  matmul::Activation read_activation() {
    return static_cast<matmul::Activation>(
        reader_.number("activation", 0, matmul::kLastActivation));
  }

  cudaError_t embed() {
    embedding::Params p{};
    p.rows = reader_.number("rows", 0, tokens_.count);
    p.size = reader_.number("columns", 1);
    check_columns(p.size);
    p.scale = reader_.real();
    p.tokens.count = reader_.number("vectors", 1);
    p.positions.count = reader_.number("positions", 0);
    p.positions.offset = reader_.number("offset", 0);
    p.tokens.vectors = reader_.operand(int64_t{p.tokens.count} * p.size);
    p.positions.vectors = reader_.optional(int64_t{p.positions.count} * p.size);
    p.out = reader_.operand(int64_t{p.rows} * p.size);
    p.tokens.ids = tokens_.ids;
    p.positions.ids = tokens_.positions;
    if (!is_right() || p.rows == 0) return cudaSuccess;
    return embedding::launch_rows<T>(stream_, p);
  }

  cudaError_t norm() {
    add_norm::Params p{};
    p.rows = reader_.number("rows", 0);
    p.size = reader_.number("columns", 1, add_norm::kMaxSize<T>);
    check_columns(p.size);
    p.epsilon = reader_.real();
    p.scale_offset = reader_.real();
    const int64_t size = int64_t{p.rows} * p.size;
    p.x = reader_.operand(size);
    p.delta = reader_.optional(size);
    p.delta_scale = reader_.optional(p.size);
    p.scale = reader_.operand(p.size);
    p.bias = reader_.optional(p.size);
    p.sum = reader_.optional(size);
    p.out = reader_.operand(size);
    if (p.delta_scale != nullptr && p.delta == nullptr) {
      reader_.refuse("a norm has a scale for a delta, and no delta");
    }
    if (p.delta != nullptr && p.sum == nullptr) {
      reader_.refuse("a norm has a delta, and no sum to write");
    }
    if (!is_right() || p.rows == 0) return cudaSuccess;
    return add_norm::launch_rows<T>(stream_, p, /*programmatic=*/last_.has_value());
  }

  cudaError_t head_norm() {
    HeadNormParams p{};
    p.rows = reader_.number("rows", 0);
    p.q_heads = reader_.number("Hq", 1);
    p.kv_heads = reader_.number("Hkv", 1);
    p.head_dim = reader_.number("D", kUnit, kMaxHeadDim);
    if (p.head_dim % kUnit != 0) {
      reader_.refuse("D is " + std::to_string(p.head_dim) +
                     "; norms of heads take multiples of 8");
    }
    p.epsilon = reader_.real();
    p.scale_offset = reader_.real();
    const int64_t size = int64_t{p.rows} * (p.q_heads + 2 * p.kv_heads) * p.head_dim;
    p.x = reader_.operand(size);
    p.scale = reader_.operand(p.head_dim);
    p.bias = reader_.optional(p.head_dim);
    p.key_scale = reader_.operand(p.head_dim);
    p.key_bias = reader_.optional(p.head_dim);
    p.out = reader_.operand(size);
    if (!is_right() || p.rows == 0) return cudaSuccess;
    return launch_head_norm<T>(stream_, p);
  }

  cudaError_t linear() {
    matmul::MatmulParams p{};
    p.m = reader_.number("M", 0);
    p.n = reader_.number("N", 1);
    p.k = reader_.number("K", 1);
    p.gated = reader_.number("gated", 0, 1) == 1;
    p.activation = read_activation();
    p.columns = p.gated ? p.n / 2 : p.n;
    const matmul::MatmulConfig config = matmul::read_config(reader_);
    const int64_t size = int64_t{p.m} * p.columns;
    p.x = reader_.operand(int64_t{p.m} * p.k);
    p.weight = reader_.weight(p.n, p.k);
    p.bias = reader_.optional(p.n);
    p.residual = reader_.optional(size);
    p.y = reader_.operand(size);
    const int slice = reader_.number("slice", 0);
    void* const wide = reader_.optional(int64_t{slice} * p.n);
    if (!is_right() || p.m == 0) return cudaSuccess;
    if (p.gated && std::holds_alternative<matmul::LibraryConfig>(config)) {
      return gated_by_library(p, config, wide, slice);
    }
    const matmul::LaunchOptions options{.stream = stream_,
                                        .programmatic = last_.has_value()};
    return matmul::launch_matmul<T>(p, config, options);
  }

  // The library writes gate and up columns, of `slice` rows at a time: the next ones
  // overwrite them.
  cudaError_t gated_by_library(const matmul::MatmulParams& whole,
                               const matmul::MatmulConfig& library, void* wide,
                               int slice) {
    if (wide == nullptr || slice == 0) return cudaErrorInvalidValue;
    for (int first = 0; first < whole.m; first += slice) {
      matmul::MatmulParams p = whole;
      p.m = std::min(slice, whole.m - first);
      p.x = static_cast<const T*>(whole.x) + int64_t{first} * p.k;
      p.y = wide;
      p.gated = false;
      cudaError_t error = matmul::launch_matmul<T>(p, library, {.stream = stream_});
      if (error != cudaSuccess) return error;
      p.x = wide;
      p.y = static_cast<T*>(whole.y) + int64_t{first} * p.columns;
      p.bias = nullptr;
      p.gated = true;
      // The gate reads no weight.
      error = matmul::launch_gate<T>(matmul::with_weight(p, DenseView{}),
                                     {.stream = stream_, .programmatic = true});
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

  cudaError_t activate() {
    ActivateParams p{};
    p.size = reader_.integer();
    p.activation = read_activation();
    p.y = reader_.operand(p.size);
    if (!is_right() || p.size <= 0) return cudaSuccess;
    return launch_activate<T>(stream_, p);
  }

  cudaError_t sum() {
    SumParams p{};
    p.size = reader_.integer();
    p.x = reader_.operand(p.size);
    p.delta = reader_.operand(p.size);
    p.sum = reader_.operand(p.size);
    if (!is_right() || p.size <= 0) return cudaSuccess;
    return launch_sum<T>(stream_, p);
  }

  // The rows that are wanted, or those that decode.
  RowsParams read_rows() {
    RowsParams p{};
    const bool decoding = reader_.number("decoding", 0, 1) == 1;
    p.places = decoding ? attention_.places : attention_.wanted;
    p.count = decoding ? attention_.num_places : attention_.num_wanted;
    p.columns = reader_.number("columns", 1);
    return p;
  }

  cudaError_t move_rows(bool scatters) {
    RowsParams p = read_rows();
    const int rows = reader_.number("rows", 1);
    p.x_rows = scatters ? p.count : rows;
    p.out_rows = scatters ? rows : p.count;
    p.x = reader_.operand(int64_t{p.x_rows} * p.columns);
    p.out = reader_.operand(int64_t{p.out_rows} * p.columns);
    if (!is_right() || p.count == 0) return cudaSuccess;
    return scatters ? launch_scatter<T>(stream_, p) : launch_gather<T>(stream_, p);
  }

  cudaStream_t stream_;
  Reader reader_;
  const Tokens& tokens_;
  const Attention& attention_;
  AttentionChain<T> attend_;
  std::optional<Code> last_;  // the first kernel has no predecessor in the chain
};

}  // namespace fdjax::layer_program
