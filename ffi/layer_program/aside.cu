// The second stream's calls of the runtime, apart from the handler and its XLA headers.
#include <map>

#include "layer_program/aside.h"

namespace fdjax::layer_program {

cudaError_t Aside::create() {
  // A thread may come here while XLA captures: what follows belongs to no graph.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
  if (error != cudaSuccess) return error;
  error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  for (cudaEvent_t* event : {&forked_, &done_}) {
    if (error == cudaSuccess) {
      error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    }
  }
  const cudaError_t back = cudaThreadExchangeStreamCaptureMode(&mode);
  return error == cudaSuccess ? back : error;
}

cudaError_t Aside::of_thread(Aside** aside) {
  // Never destroyed: a thread may end after the driver.
  thread_local auto* const of_device = new std::map<int, Aside>;
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  *aside = &(*of_device)[device];
  return (*aside)->done_ == nullptr ? (*aside)->create() : cudaSuccess;
}

cudaError_t Aside::fork(cudaStream_t main) {
  const cudaError_t error = cudaEventRecord(forked_, main);
  return error == cudaSuccess ? cudaStreamWaitEvent(stream_, forked_, 0) : error;
}

cudaError_t Aside::join(cudaStream_t main) {
  const cudaError_t error = cudaEventRecord(done_, stream_);
  return error == cudaSuccess ? cudaStreamWaitEvent(main, done_, 0) : error;
}

}  // namespace fdjax::layer_program
