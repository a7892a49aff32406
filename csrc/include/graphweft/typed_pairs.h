// Rows of the pairs of a typed graph, gathered.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "graphweft/edge_blocks.h"
#include "graphweft/gemm.h"
#include "graphweft/heads.h"
#include "graphweft/typed_rows.h"

namespace gw {

// Rows of one end of the edges, and a number per edge and head, or per edge where heads is 1; null: ones.
struct typed_rows {
  const float* x;
  int64_t width;
  const float* weight;
  int64_t heads;
};

// How many rows ahead of its use a gathered row is asked for.
inline constexpr int64_t typed_ahead = 24;

// Rows that the next chunk reads: fetched while this one is multiplied.
class coming_rows {
 public:
  void add(const float* row, int64_t bytes) {
    if (count_ == most) return;
    list_[size_t(count_++)] = {reinterpret_cast<const char*>(row), bytes};
    bytes_ += bytes;
  }
  // All of them, in `steps` looks.
  [[nodiscard]] row_queue queue(int64_t steps) const { return {list_.data(), list_.data() + count_, bytes_, steps}; }
  // The share `part` of `parts`.
  void fetch(int64_t part, int64_t parts) const {
    for (int64_t i = count_ * part / parts; i < count_ * (part + 1) / parts; ++i)
      fetch_row<2>(list_[size_t(i)].at, list_[size_t(i)].bytes);
  }

 private:
  static constexpr int64_t most = 512;
  std::array<row_queue::entry, most> list_;
  int64_t count_ = 0, bytes_ = 0;
};

// A typed view of gw_typed_pairs.
template <class I>
class pair_view {
 public:
  explicit pair_view(const gw_typed_pairs& p)
      : all(p),
        node(static_cast<const I*>(p.node)),
        other(static_cast<const I*>(p.other)),
        edge(static_cast<const I*>(p.edge)) {}

  const gw_typed_pairs& all;
  const I *node, *other, *edge;

  // The rows that `own`, or else `summed`, reads for the pairs of a chunk.
  void coming(int64_t chunk, bool own_end, const typed_rows& rows, coming_rows& to) const {
    int64_t begin = all.rows.chunk_begin[chunk], end = all.rows.chunk_begin[chunk + 1];
    const I* ids = own_end ? node : other;
    if (!own_end) begin = all.entries[begin], end = all.entries[end];
    for (int64_t i = begin; i < end; ++i)
      to.add(rows.x + int64_t(ids[i]) * rows.width, rows.width * int64_t(sizeof(float)));
  }

  // out[p - begin] = what is multiplied for pair p.
  void rows(int64_t begin, int64_t end, bool own_end, const typed_rows& from, float* out) const {
    own_end ? own(begin, end, from, out) : summed(begin, end, from, out);
  }

  // out[p - begin] = the row of pair p's own end.
  void own(int64_t begin, int64_t end, const typed_rows& rows, float* out) const {
    const int64_t bytes = rows.width * int64_t(sizeof(float));
    for (int64_t p = begin; p < end; ++p, out += rows.width) {
      if (p + typed_ahead < end) fetch<2>(rows.x + int64_t(node[p + typed_ahead]) * rows.width, bytes);
      std::copy_n(rows.x + int64_t(node[p]) * rows.width, rows.width, out);
    }
  }

  // out[p - begin] = the sum over pair p's edges of weight[e] times the row of the other end.
  void summed(int64_t begin, int64_t end, const typed_rows& rows, float* out) const {
    for_each_head_tile<few_shapes || sizeof(I) == 8>(rows.heads, rows.width / rows.heads, [&](auto tile) {
      using T = decltype(tile);
      const int64_t last = all.entries[end];
      for (int64_t p = begin; p < end; ++p) {
        typename T::vec t[T::vectors], v[T::vectors];
#pragma GCC unroll 8
        for (auto& part : t) part = typename T::vec{};
        for (int64_t e = all.entries[p]; e < all.entries[p + 1]; ++e) {
          if (e + typed_ahead < last)
            fetch<2>(rows.x + int64_t(other[e + typed_ahead]) * rows.width + tile.first(), tile.bytes());
          tile.load(rows.x + int64_t(other[e]) * rows.width + tile.first(), v);
          if (rows.weight) {
            const typename T::weights w(rows.weight + int64_t(edge[e]) * rows.heads + tile.h0);
#pragma GCC unroll 8
            for (int k = 0; k < T::vectors; ++k) t[k] += w[k] * v[k];
          } else {
#pragma GCC unroll 8
            for (int k = 0; k < T::vectors; ++k) t[k] += v[k];
          }
        }
        tile.store(out + (p - begin) * rows.width + tile.first(), t);
      }
    });
  }
};

}  // namespace gw
