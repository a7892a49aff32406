// Sparse times dense, by destination row:
//
//   y[i] = epilogue(reduce_{e = (j -> i)} w[e] * s[j] * x[j] + self * s[i] * x[i]),   reduce = sum or mean
//
// The tile of the output row stays in registers while its neighbours stream by. Rows of x that lie in memory are
// brought into the second-level cache some hundred edges ahead, of this row or the next ones: only that cache has
// enough requests in flight to hide the latency. A wide x is first copied, panel by panel (panel.h), which may hold
// bfloat16 rows of a float x, half the bytes; sums stay float. Coefficients that need a look-up (weights by edge id,
// source scale) are gathered once per piece, so the inner loop has no branch on them.
#pragma once

#include <type_traits>
#include <vector>

#include "graphweft/bf16_pairs.h"
#include "graphweft/epilogue.h"
#include "graphweft/id_type.h"
#include "graphweft/panel.h"
#include "graphweft/reduce.h"
#include "graphweft/row_stream.h"
#include "graphweft/stretches.h"

namespace gw {

// x and y are of element E, the rows of the panel of element P.
template <class E, class P = E>
struct spmm_operands {
  using stored = typename E::stored;
  using real = typename E::real;
  const stored* x;
  int64_t ldx;
  const real* weight;     // by edge id, or null
  const real* src_scale;  // by column, or null
  real self_coef;
  bool mean;
  const gw_epilogue_f32* stages;  // of sums in float, or null
  int prefetch;                   // distance in edges; 0: none
  typename P::stored* panel;      // room for num_cols rows of widest_panel elements, or null: x is read in place
  bool plain;                     // y has the bits that it has without a panel
  stored* y;
  int64_t ldy;
  float* wide = nullptr;  // in place of y where bfloat16 rows are summed into float ones
};

template <class E, class P, class Index, bool Weighted>
class spmm_op {
 public:
  using element = E;
  using stored = typename E::stored;
  using held = typename P::stored;
  using real = typename E::real;
  using vec = typename E::vec;
  // Rows of bfloat16 pairs take two vectors at least.
  static constexpr bool few = few_for<E, Index>;
  static constexpr int max_vectors = few ? 2 : widest_tile(std::is_same_v<E, f32> ? 8 : 4, E::lanes);

  spmm_op(const gw_adjacency& adj, const spmm_operands<E, P>& operands, int64_t width, const balanced_pieces& shares)
      : adj_(adj),
        o_(operands),
        indices_(static_cast<const Index*>(adj.indices)),
        ldx_(o_.ldx),
        slot_stride_((width + 15) / 16 * 16),
        slots_(size_t(checked_mul(shares.num_slots(), slot_stride_))),
        sums_(o_.stages && o_.stages->col_sum, int64_t(shares.pieces().size()) + 1, width) {
    if constexpr (std::is_same_v<E, P>) x_ = o_.x;
  }

  // Copies the columns [begin, end) of x, times the source scale, to the panel and reads them there from now on.
  void use_panel(int64_t begin, int64_t end) {
    ldx_ = fill_panel<E, P>(o_.x, o_.ldx, adj_.num_cols, folds_scale() ? o_.src_scale : nullptr, begin, end, o_.panel);
    x_ = o_.panel - begin;
  }

  void finish_sums(float* out) const { sums_.finish(out); }

  struct scratch {
    const real* coef;  // coefficient of edge position p is coef[p - first]
    int64_t first;
    int64_t last_edge;  // of the piece: nothing is prefetched beyond it
    float* col_sum;
  };

  scratch open(int64_t k, const piece& p) {
    if constexpr (!Weighted) return {nullptr, 0, p.edge_end, sums_.row(k)};
    if (o_.weight && !adj_.edge_ids && !reads_scale()) return {o_.weight, 0, p.edge_end, sums_.row(k)};
    return {stage(p), p.edge_begin, p.edge_end, sums_.row(k)};
  }

  template <int V, bool Full>
  class tile {
   public:
    tile(const spmm_op& op, const scratch& s, int64_t col, int tail)
        : op_(op),
          x_(op.x_ + col, op.ldx_ * int64_t(sizeof(held)), op.indices_, op.o_.prefetch, s.last_edge),
          coef_(s.coef),
          first_(s.first),
          plain_(!op.o_.mean && op.o_.self_coef == 0 && !op.o_.stages),
          y_(op.o_.y + col),
          wide_(op.o_.wide ? op.o_.wide + col : nullptr),
          ldy_(op.o_.ldy),
          col_sum_(s.col_sum),
          col_(col),
          tail_(tail) {}

    void start(int64_t edge) const { x_.start(edge); }

    GW_INLINE void clear() {
      for (int v = 0; v < V; ++v) t_[v] = vec{};
    }

    GW_INLINE void gather(int64_t, int64_t begin, int64_t end) {
      x_.visit(begin, end, [&](int64_t p, const char* at) GW_INLINE_LAMBDA {
        vec x[V];
        if constexpr (std::is_same_v<E, P>)
          tile_io<E, V, Full>::load(reinterpret_cast<const held*>(at), tail_, x);
        else
          P::load(reinterpret_cast<const held*>(at), x);
        for (int v = 0; v < V; ++v) {
          if constexpr (Weighted)
            t_[v] += coef_[p - first_] * x[v];
          else
            t_[v] += x[v];
        }
      });
    }

    // Edges from `begin` on whose columns are below `bound`; they have no coefficients. Where they end.
    GW_INLINE int64_t gather_below(int64_t begin, int64_t end, int64_t bound) {
      static_assert(!Weighted && std::is_same_v<E, P>, "stretches are for plain sums");
      int64_t p = begin;
      for (; p < end && int64_t(op_.indices_[p]) < bound; ++p) {
        vec x[V];
        tile_io<E, V, Full>::load(reinterpret_cast<const held*>(x_.at(op_.indices_[p])), tail_, x);
        for (int v = 0; v < V; ++v) t_[v] += x[v];
      }
      return p;
    }

    GW_INLINE void gather_inside(const uint16_t* ids, int64_t count, int64_t first) {
      static_assert(!Weighted && std::is_same_v<E, P>, "stretches are for plain sums");
      const char* const from = x_.at(first);
      for (int64_t k = 0; k < count; ++k) {
        vec x[V];
        tile_io<E, V, Full>::load(reinterpret_cast<const held*>(x_.after(from, ids[k])), tail_, x);
        for (int v = 0; v < V; ++v) t_[v] += x[v];
      }
    }

    GW_INLINE void keep(int64_t row) const { tile_io<E, V, Full>::store(y_ + row * ldy_, tail_, t_); }
    GW_INLINE void resume(int64_t row) { tile_io<E, V, Full>::load(y_ + row * ldy_, tail_, t_); }
    GW_INLINE void resume_slot(int64_t slot) {
      const real* at = op_.slot(slot) + col_;
      for (int v = 0; v < V; ++v) std::memcpy(&t_[v], at + v * E::lanes, sizeof(vec));
    }
    GW_INLINE void expect(int64_t row) const {
      prefetch_tile<V * E::lanes* int(sizeof(stored)), false>(y_ + row * ldy_);
    }
    GW_INLINE void expect_edges(int64_t edge) const { prefetch_tile<256, false>(op_.indices_ + edge); }

    void save(int64_t slot) const {
      real* at = op_.slot(slot) + col_;
      for (int v = 0; v < V; ++v) std::memcpy(at + v * E::lanes, &t_[v], sizeof(vec));
    }

    void merge(int64_t slot) {
      const real* at = op_.slot(slot) + col_;
      for (int v = 0; v < V; ++v) {
        vec part;
        std::memcpy(&part, at + v * E::lanes, sizeof(vec));
        t_[v] += part;
      }
    }

    GW_INLINE void finish(int64_t row) {
      if (!plain_) transform(row);
      if constexpr (std::is_same_v<E, bf16>)
        if (wide_) return tile_io<f32, V, Full>::store(wide_ + row * ldy_, tail_, t_);
      tile_io<E, V, Full>::store(y_ + row * ldy_, tail_, t_);
    }

   private:
    // Mean, self term and epilogue.
    GW_INLINE void transform(int64_t row) {
      const spmm_operands<E, P>& o = op_.o_;
      if (o.mean) {
        const int64_t degree = op_.adj_.indptr[row + 1] - op_.adj_.indptr[row];
        const real count = real(degree > 0 ? degree : 1);
        for (int v = 0; v < V; ++v) t_[v] /= count;
      }
      if (o.self_coef != 0 && row < op_.adj_.num_cols) {
        const bool scaled = op_.reads_scale() || (op_.folds_scale() && !std::is_same_v<E, P>);
        const real coef = scaled ? o.self_coef * o.src_scale[row] : o.self_coef;
        for (int v = 0; v < V; ++v) t_[v] += coef * own(row, v);
      }
      if constexpr (std::is_same_v<real, float>) {
        if (o.stages) apply_epilogue<V, Full>(*o.stages, row, col_, tail_, col_sum_, t_);
      }
    }

    // A vector of the row's own entry: of x itself where the panel has less precision.
    GW_INLINE vec own(int64_t row, int v) const {
      if constexpr (std::is_same_v<E, P>)
        return tile_io<E, V, Full>::load(reinterpret_cast<const stored*>(x_.at(row)), v, tail_);
      else
        return tile_io<E, V, Full>::load(op_.o_.x + row * op_.o_.ldx + col_, v, tail_);
    }

    const spmm_op& op_;
    row_stream<Index, V * E::lanes* int(sizeof(held))> x_;
    const real* coef_;
    int64_t first_;
    bool plain_;
    stored* y_;
    float* wide_;
    int64_t ldy_;
    float* col_sum_;
    int64_t col_;
    int tail_;
    vec t_[V];
  };

 private:
  [[nodiscard]] bool folds_scale() const noexcept { return o_.panel && o_.src_scale && !o_.plain; }
  [[nodiscard]] bool reads_scale() const noexcept { return o_.src_scale && !folds_scale(); }

  // w[edge_ids[p]] * s[indices[p]] for the piece's edges, in a buffer of this thread.
  const real* stage(const piece& p) const {
    thread_local std::vector<real> buffer;
    const int64_t count = p.edge_end - p.edge_begin;
    if (int64_t(buffer.size()) < count) buffer.resize(size_t(count));
    const Index* ids = static_cast<const Index*>(adj_.edge_ids);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t at = p.edge_begin + k;
      real coef = o_.weight ? o_.weight[ids ? int64_t(ids[at]) : at] : real(1);
      if (reads_scale()) coef *= o_.src_scale[indices_[at]];
      buffer[size_t(k)] = coef;
    }
    return buffer.data();
  }

  [[nodiscard]] real* slot(int64_t k) const noexcept { return const_cast<real*>(slots_.data()) + k * slot_stride_; }

  const gw_adjacency& adj_;
  const spmm_operands<E, P> o_;
  const Index* indices_;
  const held* x_ = nullptr;  // x or the panel, such that column c of row j is at x_[j * ldx_ + c]
  int64_t ldx_;
  int64_t slot_stride_;
  std::vector<real> slots_;
  column_sums sums_;
};

// Whether sums may wait in y: nothing else that a row needs at its end lies there.
template <class E, class P>
bool keeps_sums(const spmm_operands<E, P>& o) {
  const auto* y = reinterpret_cast<const float*>(o.y);
  return !o.stages || (o.stages->addend != y && o.stages->mask != y);
}

// Reduces the columns [begin, end) by stretches, where they pay and sums may wait in y; false: nothing is done.
template <class Index, class Op, class E, class P>
bool spmm_by_stretches(Op& op, const gw_adjacency& adj, const spmm_operands<E, P>& o, int64_t begin, int64_t end,
                       const balanced_pieces& shares) {
  constexpr int vectors = std::min(64 / E::lanes, 8);
  if (!keeps_sums(o)) return false;
  return reduce_in_stretches<vectors, Index>(op, adj, begin, end, shares,
                                             (end - begin) * int64_t(sizeof(typename E::stored)));
}

template <class E, class P, class Index, bool Weighted>
void spmm_rows(const gw_adjacency& adj, const spmm_operands<E, P>& operands, int64_t width) {
  constexpr bool may_stretch = std::is_same_v<E, f32> && std::is_same_v<P, f32> && !Weighted;
  const balanced_pieces shares(adj,
                               operands.panel && !operands.plain ? std::min<int64_t>(panel_width<P>, width) : width);
  spmm_op<E, P, Index, Weighted> op(adj, operands, width, shares);
  const bool in_parts = operands.panel || (may_stretch && keeps_sums(operands) &&
                                           (has_stretches(adj, shares) || stretch_columns<Index>(adj, 128) > 0));
  for (int64_t begin = 0, end; begin < width; begin = end) {
    const int64_t rest = width - begin;
    end = begin + (!in_parts ? rest : may_stretch ? next_stretched<P>(rest) : next_panel<P>(rest));
    if (operands.panel) op.use_panel(begin, end);
    if constexpr (may_stretch)
      if (in_parts && spmm_by_stretches<Index>(op, adj, operands, begin, end, shares)) continue;
    require(adj.indices || adj.num_edges == 0, "spmm: expected edges by row, got them by stretches alone");
    reduce_rows(op, adj, begin, end, shares);
  }
  if constexpr (std::is_same_v<typename E::real, float>) {
    if (operands.stages && operands.stages->col_sum) op.finish_sums(operands.stages->col_sum);
  }
}

template <class E, class P>
void spmm(const gw_adjacency& adj, const spmm_operands<E, P>& operands, int64_t width) {
  const bool folded = operands.panel && !operands.plain;
  with_id_type(adj.wide != 0, [&](auto index) {
    using id = decltype(index);
    if constexpr (!few_for<E, id>)
      if (!operands.weight && (!operands.src_scale || folded)) return spmm_rows<E, P, id, false>(adj, operands, width);
    spmm_rows<E, P, id, true>(adj, operands, width);  // a weight of one changes no bit
  });
}

}  // namespace gw
