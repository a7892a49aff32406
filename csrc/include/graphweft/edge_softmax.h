// The softmax of numbers per edge and head over the in-edges of each destination, and its gradient.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "graphweft/csr.h"
#include "graphweft/heads.h"
#include "graphweft/parallel.h"

namespace gw {

// Blocks of rows of about equal work, by offsets alone.
inline std::vector<int64_t> softmax_blocks(const gw_adjacency& adj) {
  const int64_t work = adj.num_edges + adj.num_rows;
  const int64_t count = std::clamp<int64_t>(work >> 11, 1, 256);
  std::vector<int64_t> cuts(size_t(count) + 1, adj.num_rows);
  cuts[0] = 0;
  for (int64_t b = 1; b < count; ++b) {
    const int64_t done = work / count * b;
    int64_t low = cuts[size_t(b - 1)], high = adj.num_rows;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (adj.indptr[middle] + middle < done)
        low = middle + 1;
      else
        high = middle;
    }
    cuts[size_t(b)] = low;
  }
  return cuts;
}

// out[e][h] = exp(x[e][h]) / the sum over the in-edges of e's destination, shifted by their maximum.
template <class I>
void edge_softmax(const gw_adjacency& adj, int64_t heads, const float* x, float* out) {
  const csr_view<I> view(adj);
  const std::vector<int64_t> cuts = softmax_blocks(adj);
  parallel_chunks(int64_t(cuts.size()) - 1, [&](int64_t block) {
    std::vector<float> top(static_cast<size_t>(heads)), total(static_cast<size_t>(heads));
    for (int64_t row = cuts[size_t(block)]; row < cuts[size_t(block + 1)]; ++row) {
      const int64_t begin = view.indptr[row], end = view.indptr[row + 1];
      if (begin == end) continue;
      std::fill(top.begin(), top.end(), -INFINITY);
      std::fill(total.begin(), total.end(), 0.0f);
      for (int64_t p = begin; p < end; ++p) {
        const float* from = x + view.id(p) * heads;
        for (int64_t h = 0; h < heads; ++h) top[size_t(h)] = std::max(top[size_t(h)], from[h]);
      }
      for (int64_t p = begin; p < end; ++p) {
        const int64_t at = view.id(p) * heads;
        for (int64_t h = 0; h < heads; ++h) {
          const float e = std::exp(x[at + h] - top[size_t(h)]);
          out[at + h] = e;
          total[size_t(h)] += e;
        }
      }
      for (int64_t h = 0; h < heads; ++h) total[size_t(h)] = 1.0f / total[size_t(h)];
      for (int64_t p = begin; p < end; ++p) {
        float* to = out + view.id(p) * heads;
        for (int64_t h = 0; h < heads; ++h) to[h] *= total[size_t(h)];
      }
    }
  });
}

// dx[e] = s[e] (g[e] - the sum over the in-edges of e's destination of s g), s the softmax.
template <class I>
void edge_softmax_grad(const gw_adjacency& adj, int64_t heads, const float* s, const float* g, float* dx) {
  constexpr int64_t ahead = 16;  // edges: their numbers lie by id, out of order
  const csr_view<I> view(adj);
  const std::vector<int64_t> cuts = softmax_blocks(adj);
  parallel_chunks(int64_t(cuts.size()) - 1, [&](int64_t block) {
    for (int64_t row = cuts[size_t(block)]; row < cuts[size_t(block + 1)]; ++row) {
      const int64_t begin = view.indptr[row], end = view.indptr[row + 1];
      for_heads(heads, [&](int64_t h, auto n) {
        vf::vec total{};
        for (int64_t p = begin; p < end; ++p) {
          if (p + ahead < adj.num_edges) {
            const int64_t next = view.id(p + ahead) * heads + h;
            __builtin_prefetch(s + next);
            __builtin_prefetch(g + next);
          }
          const int64_t at = view.id(p) * heads + h;
          total += some(s + at, n) * some(g + at, n);
        }
        for (int64_t p = begin; p < end; ++p) {
          const int64_t at = view.id(p) * heads + h;
          put(dx + at, some(s + at, n) * (some(g + at, n) - total), n);
        }
      });
    }
  });
}

}  // namespace gw
