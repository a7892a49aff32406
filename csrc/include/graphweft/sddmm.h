// Work on single edges: dot products of their end rows, and dropout of sparse entries.
#pragma once

#include <cstdint>

#include "graphweft/reduce.h"
#include "graphweft/row_stream.h"
#include "graphweft/rows.h"

namespace gw {

template <class E>
struct dot_operands {
  using real = typename E::real;
  const real* a;  // [num_rows, width]
  int64_t lda;
  const real* b;  // [num_cols, width]
  int64_t ldb;
  int prefetch;
  real* out;  // by edge id
};

// out[e] = <a[row of e], b[column of e]>; a wide row is added up tile by tile.
template <class E, class Index>
class dot_op {
 public:
  using element = E;
  using real = typename E::real;
  using vec = typename E::vec;
  static constexpr bool few = few_for<E, Index>;
  static constexpr int max_vectors = 4;

  dot_op(const gw_adjacency& adj, const dot_operands<E>& operands)
      : o_(operands),
        columns_(static_cast<const Index*>(adj.indices)),
        edge_ids_(static_cast<const Index*>(adj.edge_ids)) {}

  struct scratch {
    int64_t last_edge;
  };
  scratch open(int64_t, const piece& p) const { return {p.edge_end}; }

  template <int V, bool Full>
  class tile {
   public:
    tile(const dot_op& op, const scratch& s, int64_t col, int tail)
        : op_(op),
          b_(op.o_.b + col, op.o_.ldb * int64_t(sizeof(real)), op.columns_, op.o_.prefetch, s.last_edge),
          col_(col),
          tail_(tail) {}

    void start(int64_t edge) const { b_.start(edge); }
    void clear() const {}
    void save(int64_t) const {}
    void merge(int64_t) const {}
    void finish(int64_t) const {}

    GW_INLINE void gather(int64_t row, int64_t begin, int64_t end) const {
      vec a[V];
      tile_io<E, V, Full>::load(op_.o_.a + row * op_.o_.lda + col_, tail_, a);
      const Index* ids = op_.edge_ids_;
      real* out = op_.o_.out;
      const bool first = col_ == 0;
      b_.visit(begin, end, [&](int64_t p, const char* at) GW_INLINE_LAMBDA {
        vec sum{};
        for (int v = 0; v < V; ++v)
          sum += a[v] * tile_io<E, V, Full>::load(reinterpret_cast<const real*>(at), v, tail_);
        const int64_t e = ids ? int64_t(ids[p]) : p;
        out[e] = first ? sum_lanes(sum) : out[e] + sum_lanes(sum);
      });
    }

   private:
    // Halves folded onto each other: a fixed order at any width.
    static GW_INLINE real sum_lanes(vec v) {
      real lanes[E::lanes];
      std::memcpy(lanes, &v, sizeof(v));
      for (int half = E::lanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      return lanes[0];
    }

    const dot_op& op_;
    row_stream<Index, V * E::lanes* int(sizeof(real))> b_;
    int64_t col_;
    int tail_;
  };

 private:
  const dot_operands<E> o_;
  const Index* columns_;
  const Index* edge_ids_;
};

template <class E, class Index>
void sddmm_dot(const gw_adjacency& adj, const dot_operands<E>& operands, int64_t width) {
  const balanced_pieces shares(adj, width);
  dot_op<E, Index> op(adj, operands);
  reduce_rows(op, adj, 0, width, shares);
}

// Entry p, which is element (node, feature), keeps its value times `scale` when its draw number node * features +
// feature is at least `threshold`, else becomes 0: what drop_elements does to the dense matrix. Rows are nodes, or
// features when `turned`; `features` is the width of the dense matrix.
template <class Index>
void drop_entries(const gw_adjacency& adj, const float* values, int64_t features, bool turned, uint32_t threshold,
                  float scale, uint64_t seed, uint64_t stream, float* out) {
  const auto* columns = static_cast<const Index*>(adj.indices);
  const balanced_pieces shares(adj, 16);
  const auto& pieces = shares.pieces();
  parallel_chunks(int64_t(pieces.size()), [&](int64_t k) {
    const piece& part = pieces[size_t(k)];
    int64_t row = part.head_slot >= 0 ? part.row_begin - 1 : part.row_begin;
    for (int64_t p = part.edge_begin; p < part.edge_end; p += 8) {
      const int count = int(std::min<int64_t>(8, part.edge_end - p));
      u64x8 element{};
      for (int lane = 0; lane < count; ++lane) {
        while (p + lane >= adj.indptr[row + 1]) ++row;
        const auto column = int64_t(columns[p + lane]);
        element[lane] = uint64_t(turned ? column * features + row : row * features + column);
      }
      const u64x8 draw = random_draws(seed, stream, element);
      for (int lane = 0; lane < count; ++lane)
        out[p + lane] = uint32_t(draw[lane]) >= threshold ? values[p + lane] * scale : 0.0f;
    }
  });
}

}  // namespace gw
