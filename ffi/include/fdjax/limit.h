// A number, or a list of them, that Python asks the extension for by its name.
//
// Every operation's folder has a limits.h, which no GPU compiler and no XLA header is
// needed for: what its handlers take is said there once, for C++, for kernels and, in
// `kLimits`, for Python (fdjax/kernels/ffi.py), in builds without GPU handlers too.
#pragma once

#include <cstddef>

namespace fdjax {

struct Limit {
  const char* name;
  int value = 0;
  const int* list = nullptr;
  size_t count = 0;  // of the list

  constexpr Limit(const char* name, int value) : name(name), value(value) {}
  template <size_t kCount>
  constexpr Limit(const char* name, const int (&list)[kCount])
      : name(name), list(list), count(kCount) {}
};

}  // namespace fdjax
