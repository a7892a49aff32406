// What the kernels of a CUDA program share: launches, the rows of a structure, random draws.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels.h"

// A launch on the device; where another compiler reads this file, its header of that name runs blocks and threads.
#ifdef __CUDACC__
#define LAUNCH(kernel, blocks, threads, ...) kernel<<<unsigned(blocks), unsigned(threads)>>>(__VA_ARGS__)
#else
#define LAUNCH(kernel, blocks, threads, ...) \
  emulated::launch(unsigned(blocks), unsigned(threads), [=] { kernel(__VA_ARGS__); })
#endif

namespace program {

constexpr int64_t wide = 256;  // threads of a block over elements

// Threads of a block that has a row of so many columns: whole warps.
inline int64_t threads_for(int64_t cols) {
  return std::min<int64_t>((std::max<int64_t>(cols, 1) + 31) / 32 * 32, wide);
}
inline int64_t blocks_for(int64_t count) { return std::max<int64_t>((count + wide - 1) / wide, 1); }

// Room for `count` numbers, the same at every call; what an earlier call left there is lost.
float* scratch(int64_t count);

struct Rows {
  const int64_t* indptr;
  const int32_t* indices;
  const int32_t* edge_ids;  // null: position p is edge p
};

inline Rows rows_of(const gw_adjacency& a) {
  return {a.indptr, static_cast<const int32_t*>(a.indices), static_cast<const int32_t*>(a.edge_ids)};
}

// The number of the edge at place p.
__device__ inline int64_t number_of(const Rows& a, int64_t p) { return a.edge_ids ? int64_t(a.edge_ids[p]) : p; }

// One block of random numbers: Philox 4x32-10 (Salmon et al., SC 2011).
struct Draws {
  uint32_t word[4];
};

__device__ inline Draws philox(uint64_t seed, uint64_t stream, uint64_t block) {
  uint32_t c0 = uint32_t(block), c1 = uint32_t(block >> 32), c2 = uint32_t(stream), c3 = uint32_t(stream >> 32);
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c0, b = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(b >> 32) ^ c1 ^ key0;
    c1 = uint32_t(b);
    c2 = uint32_t(a >> 32) ^ c3 ^ key1;
    c3 = uint32_t(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace program
