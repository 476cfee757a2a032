// A loop shared with the threads of XLA's own pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "xla/ffi/api/ffi.h"

namespace fdjax {

// Calls `body(i)` once for each i below `count` and returns when all calls have. The
// caller works too and waits only for calls that have begun: a pool whose threads are
// all busy, with callers of this function perhaps, costs speed and nothing else.
template <typename Body>
void parallel_for(xla::ffi::ThreadPool& pool, int64_t count, const Body& body) {
  struct Shared {
    const Body& body;  // alive while a call is under way or to come
    const int64_t count;
    std::atomic<int64_t> next{0}, done{0};

    void work() {
      for (int64_t i; (i = next.fetch_add(1)) < count;) {
        body(i);
        if (done.fetch_add(1) + 1 == count) done.notify_all();
      }
    }
  };
  // A task that starts late finds nothing to do, after the caller has gone.
  auto shared = std::make_shared<Shared>(body, count);
  const int64_t helpers = std::min(pool.num_threads(), count) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    pool.Schedule([shared] { shared->work(); });
  }
  shared->work();
  for (int64_t done; (done = shared->done.load()) < count;) shared->done.wait(done);
}

}  // namespace fdjax
