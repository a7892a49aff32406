// Maximum or minimum over the neighbours of each row, with the neighbour that attains it, and the gradient that is
// routed back to that neighbour.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "graphweft/panel.h"
#include "graphweft/reduce.h"
#include "graphweft/row_stream.h"
#include "graphweft/stretches.h"

namespace gw {

template <class E>
using lane_id = std::conditional_t<sizeof(typename E::real) == 8, int64_t, int32_t>;

// Node ids beside the lanes of a vector of E.
template <class E>
struct id_vector {
  typedef lane_id<E> vec __attribute__((vector_size(vector_bytes)));
};

// Whether a lane is all ones, where each is that or zero.
template <class Ids>
GW_INLINE bool any_lane(Ids lanes) {
#if defined(__AVX512VL__)
  return _mm512_test_epi32_mask(__m512i(lanes), __m512i(lanes)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8(__m256i(lanes)) != 0;
#else
  int64_t words[sizeof(Ids) / sizeof(int64_t)], any = 0;
  std::memcpy(words, &lanes, sizeof(lanes));
  for (const int64_t word : words) any |= word;
  return any != 0;
#endif
}

// The larger of two numbers, lane by lane; b where one of them is a NaN. All lanes are asked for by a mask: GCC warns
// of what its plain form leaves undefined.
template <class Vec>
GW_INLINE Vec larger(Vec a, Vec b) {
#if defined(__AVX512VL__)
  if constexpr (sizeof(a[0]) == 4) return Vec(_mm512_maskz_max_ps(__mmask16(-1), __m512(a), __m512(b)));
  if constexpr (sizeof(a[0]) == 8) return Vec(_mm512_maskz_max_pd(__mmask8(-1), __m512d(a), __m512d(b)));
#elif defined(__AVX2__)
  if constexpr (sizeof(a[0]) == 4) return Vec(_mm256_max_ps(__m256(a), __m256(b)));
  if constexpr (sizeof(a[0]) == 8) return Vec(_mm256_max_pd(__m256d(a), __m256d(b)));
#else
  return a > b ? a : b;
#endif
}

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
  stored* panel;  // room for num_cols rows of widest_panel elements, or null: x is read in place
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
        x_(o_.x),
        ldx_(o_.ldx),
        slot_stride_((width + 15) / 16 * 16),
        values_(size_t(checked_mul(shares.num_slots(), slot_stride_))),
        args_(Arg ? values_.size() : 0) {}

  // Copies the columns [begin, end) of x to the panel and reads them there from now on.
  void use_panel(int64_t begin, int64_t end) {
    ldx_ = fill_panel<E, E>(o_.x, o_.ldx, adj_.num_cols, nullptr, begin, end, o_.panel);
    x_ = o_.panel - begin;
  }

  struct scratch {
    int64_t last_edge;
  };
  scratch open(int64_t, const piece& p) const { return {p.edge_end}; }

  template <int V, bool Full>
  class tile {
   public:
    tile(const extremum_op& op, const scratch& s, int64_t col, int tail)
        : op_(op),
          x_(op.x_ + col, op.ldx_ * int64_t(sizeof(stored)), op.columns_, op.o_.prefetch, s.last_edge),
          sign_(ids{} + (op.o_.minimum ? std::numeric_limits<lane_id<E>>::min() : 0)),
          col_(col),
          tail_(tail) {}

    void start(int64_t edge) const { x_.start(edge); }

    GW_INLINE void clear() {
      for (int v = 0; v < V; ++v) {
        best_[v] = vec{} - std::numeric_limits<real>::infinity();
        arg_[v] = ids{} - 1;
      }
    }

    GW_INLINE void gather(int64_t row, int64_t begin, int64_t end) {
      if (begin == end) return;
      const int64_t row_begin = holds_column ? 0 : op_.adj_.indptr[row];
      vec noted{};
      begin_at(id_of(begin, row_begin));
      x_.visit(begin, end, [&](int64_t p, const char* at) GW_INLINE_LAMBDA { take(at, id_of(p, row_begin), noted); });
      if (is_nan(noted)) take_nan(end - begin, begin - row_begin, [&](int64_t k) { return op_.columns_[begin + k]; });
    }

    // Edges from `begin` on whose columns are below `bound`. Where they end.
    GW_INLINE int64_t gather_below(int64_t begin, int64_t end, int64_t bound) {
      static_assert(holds_column, "a row that goes on does not know where it began");
      vec noted{};
      int64_t p = begin;
      if (p < end) begin_at(id_of(p, 0));
      for (; p < end && int64_t(op_.columns_[p]) < bound; ++p) take(x_.at(op_.columns_[p]), id_of(p, 0), noted);
      if (is_nan(noted)) take_nan(p - begin, 0, [&](int64_t k) { return op_.columns_[begin + k]; });
      return p;
    }

    GW_INLINE void gather_inside(const uint16_t* columns, int64_t count, int64_t first) {
      static_assert(holds_column, "a row that goes on does not know where it began");
      if (count == 0) return;
      const char* const from = x_.at(first);
      vec noted{};
      begin_at(ids{} + lane_id<E>(first + columns[0]));
      for (int64_t k = 0; k < count; ++k)
        take(x_.after(from, columns[k]), ids{} + lane_id<E>(first + columns[k]), noted);
      if (is_nan(noted)) take_nan(count, 0, [&](int64_t k) { return first + columns[k]; });
    }

    void save(int64_t slot) const {
      const int64_t at = slot * op_.slot_stride_ + col_;
      for (int v = 0; v < V; ++v) {
        std::memcpy(op_.values_.data() + at + v * E::lanes, &best_[v], sizeof(vec));
        if constexpr (Arg) std::memcpy(op_.args_.data() + at + v * E::lanes, &arg_[v], sizeof(ids));
      }
    }

    GW_INLINE void resume_slot(int64_t slot) {
      const int64_t at = slot * op_.slot_stride_ + col_;
      for (int v = 0; v < V; ++v) {
        std::memcpy(&best_[v], op_.values_.data() + at + v * E::lanes, sizeof(vec));
        if constexpr (Arg) std::memcpy(&arg_[v], op_.args_.data() + at + v * E::lanes, sizeof(ids));
      }
    }

    void merge(int64_t slot) {
      const int64_t at = slot * op_.slot_stride_ + col_;
      for (int v = 0; v < V; ++v) {
        vec part;
        ids arg{};
        std::memcpy(&part, op_.values_.data() + at + v * E::lanes, sizeof(vec));
        if constexpr (Arg) {
          std::memcpy(&arg, op_.args_.data() + at + v * E::lanes, sizeof(ids));
          arg_[v] = arg_[v] < 0 ? arg : arg_[v];
        }
        keep_where((part > best_[v]) | ((part != part) & (best_[v] == best_[v])), v, part, arg);
      }
    }

    // What a row has so far, in its place of the result.
    GW_INLINE void keep(int64_t row) const { store(row); }
    GW_INLINE void resume(int64_t row) {
      tile_io<E, V, Full>::load(op_.o_.y + row * op_.o_.ldy + col_, tail_, best_);
      if constexpr (Arg)
        for (int v = 0; v < V; ++v) arg_[v] = load_ids(op_.o_.arg + row * op_.o_.ldarg + col_ + v * E::lanes, v);
    }
    GW_INLINE void expect_edges(int64_t edge) const { prefetch_tile<256, false>(op_.columns_ + edge); }
    GW_INLINE void expect(int64_t row) const {
      constexpr int elements = V * E::lanes;
      prefetch_tile<elements* int(sizeof(stored)), false>(op_.o_.y + row * op_.o_.ldy + col_);
      if constexpr (Arg) prefetch_tile<elements* int(sizeof(Index)), false>(op_.o_.arg + row * op_.o_.ldarg + col_);
    }

    GW_INLINE void finish(int64_t row) {
      const bool empty = op_.adj_.indptr[row] == op_.adj_.indptr[row + 1];
      for (int v = 0; v < V; ++v) best_[v] = empty ? vec{} : turn(best_[v]);
      store(row);
    }

   private:
    // A minimum is the maximum of the negatives: the sign bit is flipped on the way in and on the way out.
    GW_INLINE vec turn(vec value) const { return vec(ids(value) ^ sign_); }

    GW_INLINE ids id_of(int64_t p, int64_t row_begin) const {
      return ids{} + lane_id<E>(holds_column ? int64_t(op_.columns_[p]) : p - row_begin);
    }

    // A first edge wins even if its value is not above the least one, with which a row begins.
    GW_INLINE void begin_at(ids id) {
      if constexpr (Arg)
        for (int v = 0; v < V; ++v) arg_[v] = arg_[v] < 0 ? id : arg_[v];
    }

    GW_INLINE void keep_where(ids better, int v, vec value, ids id) {
      best_[v] = better ? value : best_[v];
      if constexpr (Arg) arg_[v] = better ? id : arg_[v];
    }

    // Keeps the larger of what is held and the edge's values. A NaN is not larger: it is noted in a sum over all
    // vectors and edges, where infinities of both signs look alike.
    GW_INLINE void take(const char* at, ids id, vec& noted) {
      vec sum{};
      for (int v = 0; v < V; ++v) {
        const vec value = turn(tile_io<E, V, Full>::load(reinterpret_cast<const stored*>(at), v, tail_));
        sum = v == 0 ? value : sum + value;
        if constexpr (Arg) arg_[v] = value > best_[v] ? id : arg_[v];
        best_[v] = larger(value, best_[v]);
      }
      noted += sum;
    }

    static GW_INLINE bool is_nan(vec noted) { return any_lane(ids(noted != noted)); }

    // The first NaN of each lane among `count` edges from the columns column(k), which are edges `at` + k of their row,
    // where the lane has none yet. It works on a copy, as a tile whose address is known to a function does not stay in
    // registers.
    template <class Column>
    GW_INLINE void take_nan(int64_t count, int64_t at, Column&& column) {
      tile copy = *this;
      copy.scan_nan(count, at, column);
      for (int v = 0; v < V; ++v) {
        best_[v] = copy.best_[v];
        arg_[v] = copy.arg_[v];
      }
    }

    template <class Column>
    __attribute__((noinline)) void scan_nan(int64_t count, int64_t at, Column&& column) {
      for (int64_t k = 0; k < count; ++k) {
        const auto* from = reinterpret_cast<const stored*>(x_.at(column(k)));
        const ids id = ids{} + lane_id<E>(holds_column ? int64_t(column(k)) : at + k);
        for (int v = 0; v < V; ++v) {
          const vec value = turn(tile_io<E, V, Full>::load(from, v, tail_));
          keep_where((value != value) & (best_[v] == best_[v]), v, value, id);
        }
      }
    }

    GW_INLINE void store(int64_t row) const {
      tile_io<E, V, Full>::store(op_.o_.y + row * op_.o_.ldy + col_, tail_, best_);
      if constexpr (Arg) {
        Index* out = op_.o_.arg + row * op_.o_.ldarg + col_;
        const Index* columns = op_.columns_ + (holds_column ? 0 : op_.adj_.indptr[row]);
        for (int v = 0; v < V; ++v) store_ids(out + v * E::lanes, columns, v == V - 1 && !Full ? tail_ : E::lanes, v);
      }
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

    GW_INLINE ids load_ids(const Index* from, int v) const {
      static_assert(sizeof(Index) == sizeof(lane_id<E>), "stretches are for ids as wide as their values");
      using words = simd<real>;
      const auto* at = reinterpret_cast<const real*>(from);
      return ids(Full || v < V - 1 ? words::load(at) : words::load_part(at, tail_));
    }

    const extremum_op& op_;
    row_stream<Index, V * E::lanes* int(sizeof(stored))> x_;
    ids sign_;
    int64_t col_;
    int tail_;
    vec best_[V];
    ids arg_[V];
  };

 private:
  const gw_adjacency& adj_;
  const extremum_operands<E, Index> o_;
  const Index* columns_;
  const stored* x_;  // x or the panel, such that column c of row j is at x_[j * ldx_ + c]
  int64_t ldx_;
  int64_t slot_stride_;
  mutable std::vector<real> values_;  // slots of cut rows; each is written by one piece
  mutable std::vector<lane_id<E>> args_;
};

template <class E, class Index, bool Arg>
void spmm_extremum(const gw_adjacency& adj, const extremum_operands<E, Index>& operands, int64_t width) {
  constexpr bool may_stretch = std::is_same_v<E, f32> && sizeof(Index) == sizeof(lane_id<E>);
  constexpr int vectors = std::min(64 / E::lanes, 8);
  constexpr int64_t size = sizeof(typename E::stored), part = panel_width<E>;
  const balanced_pieces shares(adj, width);
  extremum_op<E, Index, Arg> op(adj, operands, width, shares);
  const bool in_parts =
      operands.panel ||
      (may_stretch && (has_stretches(adj, shares) || stretch_columns<Index>(adj, std::min(width, part) * size) > 0));
  for (int64_t begin = 0, end; begin < width; begin = end) {
    const int64_t rest = width - begin;
    end = begin + (!in_parts ? rest : may_stretch ? next_stretched<E>(rest) : next_panel<E>(rest));
    if (operands.panel) op.use_panel(begin, end);
    if constexpr (may_stretch)
      if (in_parts && reduce_in_stretches<vectors, Index>(op, adj, begin, end, shares, (end - begin) * size)) continue;
    require(adj.indices || adj.num_edges == 0, "spmm_max: expected edges by row, got them by stretches alone");
    reduce_rows(op, adj, begin, end, shares);
  }
}

template <class E, class Index>
void spmm_extremum(const gw_adjacency& adj, const extremum_operands<E, Index>& operands, int64_t width) {
  operands.arg ? spmm_extremum<E, Index, true>(adj, operands, width)
               : spmm_extremum<E, Index, false>(adj, operands, width);
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

template <class E, class Index>
struct winner_operands {
  using stored = typename E::stored;
  const Index* arg;  // [num_rows, width]
  int64_t ldarg;
  const stored* dy;
  int64_t lddy;
  int64_t num_rows;
  stored* dx;  // [num_cols, width]
  int64_t lddx;
  int64_t num_cols;
};

// Adds dy[i, f] to sums[(j - first) * ld + f - begin] where arg[i, f] = j lies in [first, first + count), for the
// columns f in [begin, begin + Width) in ascending i. Columns meet in no sum, and a winner that is no such j adds
// nothing.
template <int Width, class E, class Index, class Sum>
void add_winners_of(const winner_operands<E, Index>& o, int64_t begin, int64_t width, int64_t first, int64_t count,
                    Sum* sums, int64_t ld) {
  const int64_t many = Width > 0 ? Width : width;
  for (int64_t i = 0; i < o.num_rows; ++i) {
    const Index* const arg = o.arg + i * o.ldarg + begin;
    const auto* const dy = o.dy + i * o.lddy + begin;
    for (int64_t f = 0; f < many; ++f) {
      const uint64_t at = uint64_t(int64_t(arg[f]) - first);
      if (at < uint64_t(count)) sums[int64_t(at) * ld + f] += E::value(dy[f]);
    }
  }
}

// dx[j, f] = sum of dy[i, f] over the rows i with arg[i, f] == j, in ascending i. Only winners are read, no edge: a
// part of the columns a cache line wide belongs to one thread, and the order of sums to the rows alone.
template <class E, class Index>
void add_winners(const winner_operands<E, Index>& o, int64_t width) {
  using stored = typename E::stored;
  using real = typename E::real;
  constexpr int line = 64 / int(sizeof(real));
  parallel_ranges(width, line, [&](int64_t begin, int64_t end) {
    const int64_t part = end - begin;
    const auto route = [&](int64_t first, int64_t count, auto* sums, int64_t ld) {
      part == line ? add_winners_of<line>(o, begin, part, first, count, sums, ld)
                   : add_winners_of<0>(o, begin, part, first, count, sums, ld);
    };
    if constexpr (std::is_same_v<stored, real>) {
      for (int64_t j = 0; j < o.num_cols; ++j) std::fill_n(o.dx + j * o.lddx + begin, part, real(0));
      route(0, o.num_cols, o.dx + begin, o.lddx);
    } else {  // sums are in full precision, for as many rows at a time as stay in a cache
      constexpr int64_t rows = 1 << 14;
      std::vector<real> sums(size_t(std::min(rows, o.num_cols) * line));
      for (int64_t first = 0; first < o.num_cols; first += rows) {
        const int64_t count = std::min(rows, o.num_cols - first);
        std::fill(sums.begin(), sums.end(), real(0));
        route(first, count, sums.data(), line);
        for (int64_t j = 0; j < count; ++j)
          for (int64_t f = 0; f < part; f += E::lanes) {
            typename E::vec sum;
            std::memcpy(&sum, sums.data() + j * line + f, sizeof(sum));
            E::store_part(o.dx + (first + j) * o.lddx + begin + f, sum, int(std::min<int64_t>(E::lanes, part - f)));
          }
      }
    }
  });
}

}  // namespace gw
