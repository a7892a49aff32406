// Dropout of the softmax weights of edges.
#pragma once

#include "device.h"
#include "heads.h"

namespace program {

struct Dropping {
  int64_t heads;
  float kept;          // what a weight that stays is multiplied by
  uint32_t threshold;  // of a 16-bit draw; 0: nothing is dropped
  uint64_t seed, stream;
};

inline Dropping dropping_of(const Heads& heads) {
  return {heads.count, float(1.0 / (1.0 - heads.drop)), uint32_t(std::lround(heads.drop * 65536.0)), heads.seed,
          heads.stream};
}

// 0 where the edge's softmax is dropped, else what it is multiplied by; draws are laid out as the library's.
__device__ inline float keep(const Dropping& d, int64_t edge, int64_t h) {
  if (d.threshold == 0) return 1.0f;
  const Draws found = philox(d.seed, d.stream, uint64_t(edge) * (uint64_t(d.heads + 7) / 8) + uint64_t(h) / 8);
  const uint32_t drawn = found.word[h % 8 / 2] >> (h % 2 * 16) & 0xFFFFu;
  return drawn >= d.threshold ? d.kept : 0.0f;
}

}  // namespace program
