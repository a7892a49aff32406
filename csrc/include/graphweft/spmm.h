// Sparse times dense, by destination row:
//
//   y[i] = epilogue(reduce_{e = (j -> i)} w[e] * s[j] * x[j] + self * s[i] * x[i]),   reduce = sum or mean
//
// The tile of the output row stays in registers while its neighbours stream by; a neighbour some edges ahead, of this
// row or the next ones, is prefetched. Coefficients that need a look-up (weights by edge id, source scale) are gathered
// once per piece, so the inner loop has no branch on them.
#pragma once

#include <type_traits>
#include <vector>

#include "graphweft/epilogue.h"
#include "graphweft/reduce.h"

namespace gw {

template <class E>
struct spmm_operands {
  using stored = typename E::stored;
  using real = typename E::real;
  const stored* x;
  int64_t ldx;
  const real* weight;     // by edge id, or null
  const real* src_scale;  // by column, or null
  real self_coef;
  bool mean;
  const gw_epilogue_f32* stages;  // float only, or null
  int prefetch;                   // distance in edges; 0: none
  stored* y;
  int64_t ldy;
};

// Prefetches the lines of `bytes` bytes at p.
template <int Bytes>
inline void prefetch_tile(const void* p) {
  for (int at = 0; at < Bytes; at += 64) __builtin_prefetch(static_cast<const char*>(p) + at);
}

template <class E, class Index, bool Weighted>
class spmm_op {
 public:
  using element = E;
  using stored = typename E::stored;
  using real = typename E::real;
  using vec = typename E::vec;
  static constexpr int max_vectors = std::is_same_v<E, f32> && sizeof(Index) == 4 ? 8 : 4;

  spmm_op(const gw_adjacency& adj, const spmm_operands<E>& operands, int64_t width, const balanced_pieces& shares)
      : adj_(adj),
        o_(operands),
        indices_(static_cast<const Index*>(adj.indices)),
        prefetch_end_(o_.prefetch > 0 ? adj.num_edges - o_.prefetch : 0),
        slot_stride_((width + 15) / 16 * 16),
        slots_(size_t(checked_mul(shares.num_slots(), slot_stride_))),
        sums_(o_.stages && o_.stages->col_sum, int64_t(shares.pieces().size()) + 1, width) {}

  void finish_sums(float* out) const { sums_.finish(out); }

  struct scratch {
    const real* coef;  // coefficient of edge position p is coef[p - first]
    int64_t first;
    float* col_sum;
  };

  scratch open(int64_t k, const piece& p) {
    if constexpr (!Weighted) return {nullptr, 0, sums_.row(k)};
    if (!adj_.edge_ids && !o_.src_scale) return {o_.weight, 0, sums_.row(k)};
    return {stage(p), p.edge_begin, sums_.row(k)};
  }

  template <int V, bool Full>
  class tile {
   public:
    tile(const spmm_op& op, scratch& s, int64_t col, int tail)
        : op_(op), x_(op.o_.x + col), coef_(s.coef), first_(s.first), col_sum_(s.col_sum), col_(col), tail_(tail) {}

    inline void clear() {
      for (int u = 0; u < chains; ++u)
        for (int v = 0; v < V; ++v) t_[u][v] = vec{};
    }

    inline void gather(int64_t, int64_t begin, int64_t end) {
      const Index* indices = op_.indices_ + begin;
      const real* coef = Weighted ? coef_ + (begin - first_) : nullptr;
      const int64_t ldx = op_.o_.ldx;
      const int ahead = op_.o_.prefetch;
      const int64_t count = end - begin;
      const int64_t fetched = std::min(count, op_.prefetch_end_ - begin);
      int64_t k = 0;
      for (; k + chains <= fetched; k += chains)
        for (int u = 0; u < chains; ++u) {
          prefetch_tile<V * E::lanes * int(sizeof(stored))>(x_ + int64_t(indices[k + u + ahead]) * ldx);
          add(t_[u], coef, k + u, int64_t(indices[k + u]) * ldx);
        }
      for (; k + chains <= count; k += chains)
        for (int u = 0; u < chains; ++u) add(t_[u], coef, k + u, int64_t(indices[k + u]) * ldx);
      for (; k < count; ++k) add(t_[0], coef, k, int64_t(indices[k]) * ldx);
      for (int u = 1; u < chains; ++u)
        for (int v = 0; v < V; ++v) t_[0][v] += t_[u][v];
    }

    void save(int64_t slot) const {
      real* at = op_.slot(slot) + col_;
      for (int v = 0; v < V; ++v) std::memcpy(at + v * E::lanes, &t_[0][v], sizeof(vec));
    }

    void merge(int64_t slot) {
      const real* at = op_.slot(slot) + col_;
      for (int v = 0; v < V; ++v) {
        vec part;
        std::memcpy(&part, at + v * E::lanes, sizeof(vec));
        t_[0][v] += part;
      }
    }

    inline void finish(int64_t row) {
      const spmm_operands<E>& o = op_.o_;
      if (o.mean) {
        const int64_t degree = op_.adj_.indptr[row + 1] - op_.adj_.indptr[row];
        const real count = real(degree > 0 ? degree : 1);
        for (int v = 0; v < V; ++v) t_[0][v] /= count;
      }
      if (o.self_coef != 0) {
        const real coef = o.src_scale ? o.self_coef * o.src_scale[row] : o.self_coef;
        const stored* own = x_ + row * o.ldx;
        for (int v = 0; v < V; ++v) t_[0][v] += coef * tile_io<E, V, Full>::load(own, v, tail_);
      }
      if constexpr (std::is_same_v<E, f32>) {
        if (o.stages) apply_epilogue<V, Full>(*o.stages, row, col_, tail_, col_sum_, t_[0]);
      }
      tile_io<E, V, Full>::store(o.y + row * o.ldy + col_, tail_, t_[0]);
    }

   private:
    // Independent sums per register column, so that short tiles do not wait for one addition after the other.
    static constexpr int chains = V == 1 ? 4 : V <= 3 ? 2 : 1;

    inline void add(vec (&t)[V], const real* coef, int64_t k, int64_t offset) const {
      for (int v = 0; v < V; ++v) {
        const vec x = tile_io<E, V, Full>::load(x_ + offset, v, tail_);
        if constexpr (Weighted)
          t[v] += coef[k] * x;
        else
          t[v] += x;
      }
    }

    const spmm_op& op_;
    const stored* x_;
    const real* coef_;
    int64_t first_;
    float* col_sum_;
    int64_t col_;
    int tail_;
    vec t_[chains][V];
  };

 private:
  // w[edge_ids[p]] * s[indices[p]] for the piece's edges, in a buffer of this thread.
  const real* stage(const piece& p) const {
    thread_local std::vector<real> buffer;
    const int64_t count = p.edge_end - p.edge_begin;
    if (int64_t(buffer.size()) < count) buffer.resize(size_t(count));
    const Index* ids = static_cast<const Index*>(adj_.edge_ids);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t at = p.edge_begin + k;
      real coef = o_.weight ? o_.weight[ids ? int64_t(ids[at]) : at] : real(1);
      if (o_.src_scale) coef *= o_.src_scale[indices_[at]];
      buffer[size_t(k)] = coef;
    }
    return buffer.data();
  }

  [[nodiscard]] real* slot(int64_t k) const noexcept { return const_cast<real*>(slots_.data()) + k * slot_stride_; }

  const gw_adjacency& adj_;
  const spmm_operands<E> o_;
  const Index* indices_;
  int64_t prefetch_end_;
  int64_t slot_stride_;
  std::vector<real> slots_;
  column_sums sums_;
};

template <class E, class Index, bool Weighted>
void spmm_rows(const gw_adjacency& adj, const spmm_operands<E>& operands, int64_t width) {
  const balanced_pieces shares(adj, width);
  spmm_op<E, Index, Weighted> op(adj, operands, width, shares);
  reduce_rows(op, adj, width, shares);
  if constexpr (std::is_same_v<E, f32>) {
    if (operands.stages && operands.stages->col_sum) op.finish_sums(operands.stages->col_sum);
  }
}

template <class E>
void spmm(const gw_adjacency& adj, const spmm_operands<E>& operands, int64_t width) {
  const bool weighted = operands.weight || operands.src_scale;
  if (adj.wide)
    weighted ? spmm_rows<E, int64_t, true>(adj, operands, width) : spmm_rows<E, int64_t, false>(adj, operands, width);
  else
    weighted ? spmm_rows<E, int32_t, true>(adj, operands, width) : spmm_rows<E, int32_t, false>(adj, operands, width);
}

}  // namespace gw
