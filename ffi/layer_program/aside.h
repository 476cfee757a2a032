// A second stream, for launches that need not wait for those before them.
#pragma once

#include <cuda_runtime.h>

namespace fdjax::layer_program {

// The same stream for all calls of a thread on a device: XLA captures the launches of a
// call into a graph, and what two threads capture must not meet.
class Aside {
 public:
  // Of the current device.
  static cudaError_t of_thread(Aside** aside);

  cudaStream_t stream() const { return stream_; }

  // What is launched here from now on waits for all that `main` has.
  cudaError_t fork(cudaStream_t main);
  // What `main` gets from now on waits for all that was launched here.
  cudaError_t join(cudaStream_t main);

 private:
  cudaError_t create();

  cudaStream_t stream_ = nullptr;
  cudaEvent_t forked_ = nullptr, done_ = nullptr;
};

}  // namespace fdjax::layer_program
