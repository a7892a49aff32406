// Maximum or minimum over the neighbours of each row, with the neighbour that attains it, and the gradient that is
// routed back to that neighbour.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "graphweft/reduce.h"
#include "graphweft/row_stream.h"

namespace gw {

template <class E>
using lane_id = std::conditional_t<sizeof(typename E::real) == 8, int64_t, int32_t>;

// Node ids beside the lanes of a vector of E.
template <class E>
struct id_vector {
  typedef lane_id<E> vec __attribute__((vector_size(vector_bytes)));
};

template <class E, class Index>
struct extremum_operands {
  using stored = typename E::stored;
  const stored* x;
  int64_t ldx;
  int prefetch;
  bool minimum;
  stored* y;
  int64_t ldy;
  Index* arg;  // [num_rows, width], or null
  int64_t ldarg;
};

// y[i, f] = max (`minimum`: min) over j in row i of x[j, f], 0 for an empty row; arg[i, f] = the column of the first
// edge that attains it, -1 for an empty row. A NaN wins, the first one, as in torch.amax.
template <class E, class Index, bool Arg>
class extremum_op {
 public:
  using element = E;
  using stored = typename E::stored;
  using real = typename E::real;
  using vec = typename E::vec;
  using ids = typename id_vector<E>::vec;
  static constexpr bool few = few_for<E, Index>;
  static constexpr int max_vectors = few ? 1 : 4;
  // Lanes hold the column itself where it fits, else the edge's position in its row.
  static constexpr bool holds_column = sizeof(Index) <= sizeof(lane_id<E>);

  extremum_op(const gw_adjacency& adj, const extremum_operands<E, Index>& operands, int64_t width,
              const balanced_pieces& shares)
      : adj_(adj),
        o_(operands),
        columns_(static_cast<const Index*>(adj.indices)),
        slot_stride_((width + 15) / 16 * 16),
        values_(size_t(checked_mul(shares.num_slots(), slot_stride_))),
        args_(Arg ? values_.size() : 0) {}

  struct scratch {
    int64_t last_edge;
  };
  scratch open(int64_t, const piece& p) const { return {p.edge_end}; }

  template <int V, bool Full>
  class tile {
   public:
    tile(const extremum_op& op, const scratch& s, int64_t col, int tail)
        : op_(op),
          x_(op.o_.x + col, op.o_.ldx * int64_t(sizeof(stored)), op.columns_, op.o_.prefetch, s.last_edge),
          sign_(ids{} + (op.o_.minimum ? std::numeric_limits<lane_id<E>>::min() : 0)),
          col_(col),
          tail_(tail) {}

    void start(int64_t edge) const { x_.start(edge); }

    GW_INLINE void clear() {
      empty_ = true;
      for (int v = 0; v < V; ++v) {
        best_[v] = vec{};
        arg_[v] = ids{} - 1;
      }
    }

    GW_INLINE void gather(int64_t row, int64_t begin, int64_t end) {
      if (begin == end) return;
      const int64_t row_begin = holds_column ? 0 : op_.adj_.indptr[row];
      x_.visit(begin, end, [&](int64_t p, const char* at) GW_INLINE_LAMBDA {
        const auto id = lane_id<E>(holds_column ? int64_t(op_.columns_[p]) : p - row_begin);
        for (int v = 0; v < V; ++v)
          take(v, turn(tile_io<E, V, Full>::load(reinterpret_cast<const stored*>(at), v, tail_)), ids{} + id,
               p == begin);
      });
      empty_ = false;
    }

    void save(int64_t slot) const {
      const int64_t at = slot * op_.slot_stride_ + col_;
      for (int v = 0; v < V; ++v) {
        std::memcpy(op_.values_.data() + at + v * E::lanes, &best_[v], sizeof(vec));
        if constexpr (Arg) std::memcpy(op_.args_.data() + at + v * E::lanes, &arg_[v], sizeof(ids));
      }
    }

    void merge(int64_t slot) {
      const int64_t at = slot * op_.slot_stride_ + col_;
      for (int v = 0; v < V; ++v) {
        vec part;
        ids arg{};
        std::memcpy(&part, op_.values_.data() + at + v * E::lanes, sizeof(vec));
        if constexpr (Arg) std::memcpy(&arg, op_.args_.data() + at + v * E::lanes, sizeof(ids));
        take(v, part, arg, empty_);
      }
      empty_ = false;
    }

    GW_INLINE void finish(int64_t row) {
      if (!empty_)
        for (int v = 0; v < V; ++v) best_[v] = turn(best_[v]);
      tile_io<E, V, Full>::store(op_.o_.y + row * op_.o_.ldy + col_, tail_, best_);
      if constexpr (Arg) {
        Index* out = op_.o_.arg + row * op_.o_.ldarg + col_;
        const Index* columns = op_.columns_ + (holds_column ? 0 : op_.adj_.indptr[row]);
        for (int v = 0; v < V; ++v) store_ids(out + v * E::lanes, columns, v == V - 1 && !Full ? tail_ : E::lanes, v);
      }
    }

   private:
    // A minimum is the maximum of the negatives: the sign bit is flipped on the way in and on the way out.
    GW_INLINE vec turn(vec value) const { return vec(ids(value) ^ sign_); }

    // Keeps the better of what is held and `value`; `first`: nothing is held yet.
    GW_INLINE void take(int v, vec value, ids id, bool first) {
      auto better = value > best_[v];
      better |= (value != value) & (best_[v] == best_[v]);
      if (first) better = better == better;
      best_[v] = better ? value : best_[v];
      if constexpr (Arg) arg_[v] = better ? id : arg_[v];
    }

    GW_INLINE void store_ids(Index* out, const Index* columns, int count, int v) const {
      if constexpr (sizeof(Index) == sizeof(lane_id<E>)) {
        using words = simd<real>;
        if (count == E::lanes)
          std::memcpy(out, &arg_[v], sizeof(ids));
        else
          words::store_part(reinterpret_cast<real*>(out), typename words::vec(arg_[v]), count);
      } else {
        lane_id<E> held[E::lanes];
        std::memcpy(held, &arg_[v], sizeof(ids));
        for (int lane = 0; lane < count; ++lane)
          out[lane] = holds_column || held[lane] < 0 ? Index(held[lane]) : columns[held[lane]];
      }
    }

    const extremum_op& op_;
    row_stream<Index, V * E::lanes* int(sizeof(stored))> x_;
    ids sign_;
    int64_t col_;
    int tail_;
    bool empty_ = true;
    vec best_[V];
    ids arg_[V];
  };

 private:
  const gw_adjacency& adj_;
  const extremum_operands<E, Index> o_;
  const Index* columns_;
  int64_t slot_stride_;
  mutable std::vector<real> values_;  // slots of cut rows; each is written by one piece
  mutable std::vector<lane_id<E>> args_;
};

template <class E, class Index>
void spmm_extremum(const gw_adjacency& adj, const extremum_operands<E, Index>& operands, int64_t width) {
  const balanced_pieces shares(adj, width);
  const auto run = [&](auto with_arg) {
    extremum_op<E, Index, decltype(with_arg)::value> op(adj, operands, width, shares);
    reduce_rows(op, adj, 0, width, shares);
  };
  operands.arg ? run(std::true_type{}) : run(std::false_type{});
}

template <class E, class Index>
struct routed_operands {
  using stored = typename E::stored;
  const Index* arg;  // [num_cols, width]
  int64_t ldarg;
  const stored* dy;
  int64_t lddy;
  int prefetch;
  stored* dx;
  int64_t lddx;
};

// dx[j, f] = sum of dy[i, f] over the distinct columns i of row j with arg[i, f] == j. Rows are sources: the transposed
// adjacency, in which the parallel edges j -> i stand side by side.
template <class E, class Index>
class routed_op {
 public:
  using element = E;
  using stored = typename E::stored;
  using real = typename E::real;
  using vec = typename E::vec;
  using ids = typename id_vector<E>::vec;
  static constexpr bool few = few_for<E, Index>;
  static constexpr int max_vectors = few ? 1 : 4;

  routed_op(const gw_adjacency& adj, const routed_operands<E, Index>& operands, int64_t width,
            const balanced_pieces& shares)
      : adj_(adj),
        o_(operands),
        columns_(static_cast<const Index*>(adj.indices)),
        slot_stride_((width + 15) / 16 * 16),
        slots_(size_t(checked_mul(shares.num_slots(), slot_stride_))) {}

  struct scratch {
    int64_t last_edge;
  };
  scratch open(int64_t, const piece& p) const { return {p.edge_end}; }

  template <int V, bool Full>
  class tile {
   public:
    tile(const routed_op& op, const scratch& s, int64_t col, int tail)
        : op_(op),
          dy_(op.o_.dy + col, op.o_.lddy * int64_t(sizeof(stored)), op.columns_, op.o_.prefetch, s.last_edge),
          arg_(op.o_.arg + col, op.o_.ldarg * int64_t(sizeof(Index)), op.columns_, op.o_.prefetch, s.last_edge),
          col_(col),
          tail_(tail) {}

    void start(int64_t edge) const {
      dy_.start(edge);
      arg_.start(edge);
    }

    GW_INLINE void clear() {
      for (int v = 0; v < V; ++v) t_[v] = vec{};
    }

    GW_INLINE void gather(int64_t row, int64_t begin, int64_t end) {
      const int64_t row_begin = op_.adj_.indptr[row];
      arg_.visit(begin, end, [&](int64_t p, const char* at) GW_INLINE_LAMBDA {
        const Index column = op_.columns_[p];
        if (p > row_begin && op_.columns_[p - 1] == column) return;
        const auto* dy = reinterpret_cast<const stored*>(dy_.at(column));
        for (int v = 0; v < V; ++v) {
          const ids hit = match(reinterpret_cast<const Index*>(at) + v * E::lanes, Index(row), v);
          t_[v] += hit ? tile_io<E, V, Full>::load(dy, v, tail_) : vec{};
        }
      });
    }

    void save(int64_t slot) const { std::memcpy(op_.slots_.data() + slot * op_.slot_stride_ + col_, t_, sizeof(t_)); }

    void merge(int64_t slot) {
      vec part[V];
      std::memcpy(part, op_.slots_.data() + slot * op_.slot_stride_ + col_, sizeof(part));
      for (int v = 0; v < V; ++v) t_[v] += part[v];
    }

    GW_INLINE void finish(int64_t row) { tile_io<E, V, Full>::store(op_.o_.dx + row * op_.o_.lddx + col_, tail_, t_); }

   private:
    // All ones where arg is `row`.
    GW_INLINE ids match(const Index* arg, Index row, int v) const {
      const int count = v == V - 1 && !Full ? tail_ : E::lanes;
      if constexpr (sizeof(Index) == sizeof(lane_id<E>)) {
        using words = simd<real>;
        const auto* at = reinterpret_cast<const real*>(arg);
        const ids held = ids(count == E::lanes ? words::load(at) : words::load_part(at, count));
        return held == ids{} + lane_id<E>(row);
      } else {
        lane_id<E> hit[E::lanes] = {};
        for (int lane = 0; lane < count; ++lane) hit[lane] = arg[lane] == row ? -1 : 0;
        ids out;
        std::memcpy(&out, hit, sizeof(out));
        return out;
      }
    }

    const routed_op& op_;
    row_stream<Index, V * E::lanes* int(sizeof(stored))> dy_;
    row_stream<Index, V * E::lanes* int(sizeof(Index))> arg_;
    int64_t col_;
    int tail_;
    vec t_[V];
  };

 private:
  const gw_adjacency& adj_;
  const routed_operands<E, Index> o_;
  const Index* columns_;
  int64_t slot_stride_;
  mutable std::vector<real> slots_;
};

template <class E, class Index>
void route_to_extremum(const gw_adjacency& adj, const routed_operands<E, Index>& operands, int64_t width) {
  const balanced_pieces shares(adj, width);
  routed_op<E, Index> op(adj, operands, width, shares);
  reduce_rows(op, adj, 0, width, shares);
}

}  // namespace gw
