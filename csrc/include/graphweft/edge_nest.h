// The frame of generated kernels over edges: for every row of an adjacency, for every edge of the row, run a body on
// the rows of the two ends, and reduce what it gives by row, by edge or over all edges. No value of an edge outlives it
// but what is stored.
//
// A kernel is a nest_memory and gives
//   using real                                    float or double
//   struct state;                                 sums of one row, in registers where they are few
//   static constexpr int64_t width, gathered, partial, total;   as in gw_nest
//   void clear(state&);
//   struct pending;                               outer products of edges that wait to be added to the totals
//   void edges(state&, row, begin, end, nest_edges, real* total, pending&);
//   void add(pending&, real* total);
//   void save(const state&, real*), merge(state&, const real*);
//   void finish(const state&, row, degree);
//   void keep_total(const real*);
// Compiled at run time: nothing of the standard library is read here but small headers.
#pragma once

#include "graphweft/id_list.h"
#include "graphweft/lanes.h"
#include "graphweft/nest.h"

namespace gw {

// Most vectors of a row that are kept in registers, and unrolled.
inline constexpr int nest_vectors = 8;

// Columns and edge ids, and how many edges ahead the rows of the far ends are fetched.
struct nest_edges {
  id_list columns, ids;
  int64_t far, last;
};

// Where a kernel reads and writes.
template <class T>
struct nest_memory {
  using real = T;
  using io = simd<T>;
  using lanes = typename io::vec;
  const void* const* in;
  void* const* out;
  GW_INLINE const real* read(int k) const { return static_cast<const real*>(in[k]); }
  GW_INLINE real* write(int k) const { return static_cast<real*>(out[k]); }
};

// A row of `Count` numbers as vectors; what is behind the last element is of no account.
template <class T, int Count>
struct lane_row {
  using lanes = typename simd<T>::vec;
  static constexpr int vectors = (Count + simd<T>::lanes - 1) / simd<T>::lanes;
  lanes v[vectors];
  GW_INLINE lanes& operator[](int64_t at) { return v[at / simd<T>::lanes]; }
  GW_INLINE const lanes& operator[](int64_t at) const { return v[at / simd<T>::lanes]; }
};

// Every `Step`-th element from p on.
template <int Step, class T, class Part>
GW_INLINE typename simd<T>::vec load_strided(const T* p, Part part) {
  typename simd<T>::vec v{};
  for (int lane = 0; lane < part.size(); ++lane) v[lane] = p[int64_t(lane) * Step];
  return v;
}

template <int Step, class T, class Part>
GW_INLINE void store_strided(T* p, Part part, typename simd<T>::vec v) {
  for (int lane = 0; lane < part.size(); ++lane) p[int64_t(lane) * Step] = v[lane];
}

// The sum of all lanes, halves folded onto each other: a fixed order.
template <class Real, int Lanes, class V>
GW_INLINE Real fold_lanes(V v) {
  if constexpr (Lanes == 4 && sizeof(Real) == 4) {
    return (v[0] + v[2]) + (v[1] + v[3]);
  } else if constexpr (Lanes == 2) {
    return v[0] + v[1];
  } else {
    typedef Real half __attribute__((vector_size(Lanes / 2 * sizeof(Real))));
    half part[2];
    __builtin_memcpy(part, &v, sizeof(v));
    return fold_lanes<Real, Lanes / 2>(part[0] + part[1]);
  }
}
template <class V>
GW_INLINE real_of<V> sum_lanes(V v) {
  return fold_lanes<real_of<V>, int(sizeof(V) / sizeof(real_of<V>))>(v);
}

// An offset known to the compiler.
template <int64_t At>
struct fixed_place {
  GW_INLINE constexpr operator int64_t() const { return At; }
};

template <class T, int From, int End, class Body>
GW_INLINE void each_vector_unrolled(Body&& body) {
  if constexpr (From < End) {
    body(fixed_place<From * simd<T>::lanes>{}, whole_lanes<T>{});
    each_vector_unrolled<T, From + 1, End>(body);
  }
}

// body(at, lanes) for the elements [0, Count), a vector at a time; unrolled where they are few.
template <class T, int Count, class Body>
GW_INLINE void each_lanes(Body&& body) {
  constexpr int lanes = simd<T>::lanes, whole = Count / lanes, rest = Count % lanes;
  if constexpr (whole <= nest_vectors) {
    each_vector_unrolled<T, 0, whole>(body);
  } else {
    for (int64_t at = 0; at < whole * lanes; at += lanes) body(at, whole_lanes<T>{});
  }
  if constexpr (rest > 0) body(fixed_place<whole * lanes>{}, last_lanes<T>{rest});
}

// Sums over all edges of the outer product of two of an edge's rows: both are kept for some edges, which then add to
// every number of the total in a register, in their order. Adding edge by edge would load and store the total each
// time.
template <class T, int Rows, int Columns>
class outer_sums {
 public:
  using io = simd<T>;
  GW_INLINE T* left() { return left_ + count_ * Rows; }
  GW_INLINE T* right() { return right_ + count_ * stride; }
  // An edge's rows are in place.
  GW_INLINE void next(T* total) {
    if (++count_ == most) add(total);
  }
  void add(T* total) {
    if (count_ > 0) add_rows<0>(total);
    count_ = 0;
  }

 private:
  static constexpr int lanes = io::lanes, stride = (Columns + lanes - 1) / lanes * lanes;
  static constexpr int bytes = int(sizeof(T)) * (Rows + stride), room = 12 << 10;  // beside what the walk reads
  static constexpr int most = room / bytes < 4 ? 4 : room / bytes > 32 ? 32 : room / bytes;
  static constexpr int tile = vector_bytes == 64 ? 16 : 8;  // sums in registers, with one vector of the right row

  template <int From>
  GW_INLINE void add_rows(T* total) {
    constexpr int rows = Rows - From < tile ? Rows - From : tile;
    for (int at = 0; at < Columns; at += lanes)
      if (Columns - at >= lanes)
        add_tile<From, rows>(total, at, whole_lanes<T>{});
      else
        add_tile<From, rows>(total, at, last_lanes<T>{Columns - at});
    if constexpr (From + rows < Rows) add_rows<From + rows>(total);
  }

  template <int From, int Count, class Part>
  GW_INLINE void add_tile(T* total, int at, Part part) {
    typename io::vec sum[Count];
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) sum[i] = part.load(total + (From + i) * Columns + at);
    for (int e = 0; e < count_; ++e) {
      const auto right = part.load(right_ + e * stride + at);
      const T* left = left_ + e * Rows + From;
#pragma GCC unroll 16
      for (int i = 0; i < Count; ++i) sum[i] += left[i] * right;
    }
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) part.store(total + (From + i) * Columns + at, sum[i]);
  }

  int count_ = 0;
  alignas(64) T left_[most * Rows], right_[most * stride];
};

// The functions that a kernel gives the core.
template <class Kernel>
struct nest_functions {
  using real = typename Kernel::real;

  static void rows(const gw_nest_run* run, const piece* p, void* slots, void* total) {
    const gw_adjacency& adj = *run->adj;
    const Kernel kernel{{run->in, run->out}};
    const bool wide = adj.wide != 0;
    const nest_edges edges{id_list(adj.indices, wide), id_list(adj.edge_ids, wide), run->far, p->edge_end};
    typename Kernel::pending pending;
    const int64_t head = p->head_slot >= 0 ? p->row_begin - 1 : -1, tail = p->tail_slot >= 0 ? p->row_end : -1;
    const int64_t first = head >= 0 ? head : p->row_begin, last = tail >= 0 ? p->row_end + 1 : p->row_end;
    for (int64_t row = first; row < last; ++row) {
      typename Kernel::state state;
      kernel.clear(state);
      const int64_t from = adj.indptr[row], to = adj.indptr[row + 1];
      const int64_t begin = from > p->edge_begin ? from : p->edge_begin, end = to < p->edge_end ? to : p->edge_end;
      kernel.edges(state, row, begin, end, edges, static_cast<real*>(total), pending);
      if (row != head && row != tail)
        kernel.finish(state, row, end - begin);
      else
        kernel.save(state, static_cast<real*>(slots) + (row == tail ? p->tail_slot : p->head_slot) * Kernel::partial);
    }
    kernel.add(pending, static_cast<real*>(total));
  }

  static void join(const gw_nest_run* run, const cut_row* cut, const void* slots) {
    const Kernel kernel{{run->in, run->out}};
    typename Kernel::state state;
    kernel.clear(state);
    for (int64_t slot = cut->first_slot; slot < cut->last_slot; ++slot)
      kernel.merge(state, static_cast<const real*>(slots) + slot * Kernel::partial);
    kernel.finish(state, cut->row, run->adj->indptr[cut->row + 1] - run->adj->indptr[cut->row]);
  }

  static void keep_total(const gw_nest_run* run, const void* total) {
    Kernel{{run->in, run->out}}.keep_total(static_cast<const real*>(total));
  }
};

template <class Kernel>
inline constexpr gw_nest nest_of{sizeof(typename Kernel::real),
                                 Kernel::width,
                                 Kernel::gathered,
                                 Kernel::partial,
                                 Kernel::total,
                                 nest_functions<Kernel>::rows,
                                 nest_functions<Kernel>::join,
                                 nest_functions<Kernel>::keep_total};

}  // namespace gw
