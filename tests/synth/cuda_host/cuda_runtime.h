// Enough of CUDA to run kernels on the host: blocks by all threads of OpenMP, the threads of a block one after the
// other. Kernels that wait for each other within a block do not run here; atomic additions are real.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__

struct emulated_index {
  unsigned x;
};
inline thread_local emulated_index blockIdx, threadIdx, blockDim;

namespace emulated {
template <class Body>
void launch(unsigned blocks, unsigned threads, Body&& body) {
#pragma omp parallel for schedule(dynamic, 16)
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    blockDim.x = threads;
    for (unsigned thread = 0; thread < threads; ++thread) {
      threadIdx.x = thread;
      body();
    }
  }
}
}  // namespace emulated

inline float atomicAdd(float* at, float value) {
  unsigned before = __atomic_load_n(reinterpret_cast<unsigned*>(at), __ATOMIC_RELAXED), after;
  float sum;
  do {
    std::memcpy(&sum, &before, sizeof sum);
    sum += value;
    std::memcpy(&after, &sum, sizeof sum);
  } while (!__atomic_compare_exchange_n(reinterpret_cast<unsigned*>(at), &before, after, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  return sum - value;
}

enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation };
template <class T>
cudaError_t cudaMallocManaged(T** out, size_t bytes) {
  *out = static_cast<T*>(std::malloc(bytes));
  return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaMemset(void* at, int value, size_t bytes) { return std::memset(at, value, bytes), cudaSuccess; }
inline cudaError_t cudaFree(void* at) { return std::free(at), cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
