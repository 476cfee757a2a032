// What the kernel of draw is given.
#pragma once

#include <cstdint>

namespace fdjax::draw {

struct Params {
  const float* logits;       // [rows, vocab]
  const uint32_t* keys;      // [rows, 2], or nullptr: no row draws
  const int32_t* steps;      // [rows]
  const float* temperature;  // [rows]; 0 takes the most likely token
  const int32_t* top_k;      // [rows], or nullptr; 0 keeps all
  const float* top_p;        // [rows], or nullptr; 1 keeps all
  const float* min_p;        // [rows], or nullptr; 0 keeps all
  int32_t* tokens;           // [rows]
  int rows, vocab;
};

}  // namespace fdjax::draw
