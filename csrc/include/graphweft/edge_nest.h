// The frame of generated kernels over edges: for every row of an adjacency, for every edge of the row, run a body on
// the rows of the two ends, and reduce what it gives by row, by edge or over all edges. No value of an edge outlives it
// but what is stored.
//
// A kernel gives
//   struct state;                                 sums of one row, in registers where they are few
//   static constexpr int64_t partial, total;      floats of a cut row's part, and of the sums over all edges
//   static constexpr int64_t width, gathered;     floats of work an edge, and of rows of far ends read for it
//   void clear(state&);
//   void edges(state&, row, begin, end, nest_edges, float* total);
//   void save(const state&, float*), merge(state&, const float*);
//   void finish(const state&, row, degree);
//   void store_total(const float*);
// Pieces, and the order of every sum, follow from the graph and the kernel alone: the same bits for any number of
// threads.
#pragma once

#include <limits>
#include <utility>

#include "graphweft/edge_blocks.h"
#include "graphweft/lanes.h"
#include "graphweft/scratch.h"

namespace gw {

// Most vectors of a row that are kept in registers, and unrolled.
inline constexpr int nest_vectors = 8;

// Columns and edge ids, and how many edges ahead the rows of the far ends are fetched.
struct nest_edges {
  id_list columns, ids;
  int64_t far, last;
};

// A row of `Count` floats as vectors; what is behind the last element is of no account.
template <int Count>
struct lane_row {
  static constexpr int vectors = (Count + vf::lanes - 1) / vf::lanes;
  lanes_t v[vectors];
  GW_INLINE lanes_t& operator[](int64_t at) { return v[at / vf::lanes]; }
  GW_INLINE const lanes_t& operator[](int64_t at) const { return v[at / vf::lanes]; }
};

// The first lanes of a vector, zero behind them.
GW_INLINE lanes_t keep_lanes(whole_lanes, lanes_t v) { return v; }
GW_INLINE lanes_t keep_lanes(last_lanes part, lanes_t v) {
  int_lanes number;
  for (int lane = 0; lane < vf::lanes; ++lane) number[lane] = lane;
  return number < part.count ? v : lanes_t{};
}

GW_INLINE int count_lanes(whole_lanes) { return vf::lanes; }
GW_INLINE int count_lanes(last_lanes part) { return part.count; }

// Every `Step`-th element from p on.
template <int Step, class Part>
GW_INLINE lanes_t load_strided(const float* p, Part part) {
  lanes_t v{};
  for (int lane = 0; lane < count_lanes(part); ++lane) v[lane] = p[int64_t(lane) * Step];
  return v;
}

template <int Step, class Part>
GW_INLINE void store_strided(float* p, Part part, lanes_t v) {
  for (int lane = 0; lane < count_lanes(part); ++lane) p[int64_t(lane) * Step] = v[lane];
}

// The sum of all lanes, halves folded onto each other: a fixed order.
GW_INLINE float sum_lanes(lanes_t v) {
  float part[vf::lanes];
  vf::store(part, v);
#pragma GCC unroll 8
  for (int half = vf::lanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 16
    for (int lane = 0; lane < half; ++lane) part[lane] += part[lane + half];
  }
  return part[0];
}

template <int Count, class Body, int... K>
GW_INLINE void each_lanes_unrolled(Body&& body, std::integer_sequence<int, K...>) {
  (body(std::integral_constant<int, K * vf::lanes>{}, whole_lanes{}), ...);
}

// body(at, lanes) for the elements [0, Count), a vector at a time; unrolled where they are few.
template <int Count, class Body>
GW_INLINE void each_lanes(Body&& body) {
  constexpr int whole = Count / vf::lanes, rest = Count % vf::lanes;
  if constexpr (whole <= nest_vectors) {
    each_lanes_unrolled<Count>(body, std::make_integer_sequence<int, whole>{});
  } else {
    for (int at = 0; at < whole * vf::lanes; at += vf::lanes) body(at, whole_lanes{});
  }
  if constexpr (rest > 0) body(std::integral_constant<int, whole * vf::lanes>{}, last_lanes{rest});
}

template <class Kernel>
void run_nest(const Kernel& kernel, const gw_adjacency& adj) {
  const balanced_pieces shares(adj, Kernel::width);
  const auto& pieces = shares.pieces();
  scratch<float> slots(checked_mul(shares.num_slots(), Kernel::partial));
  scratch<float> totals(checked_mul(int64_t(pieces.size()), Kernel::total));
  const bool wide = adj.wide != 0;
  const id_list columns(adj.indices, wide), ids(adj.edge_ids, wide);
  const int64_t far = prefetch_distance(adj.num_cols, Kernel::gathered * int64_t(sizeof(float)));
  parallel_chunks(int64_t(pieces.size()), [&](int64_t k) {
    const piece& p = pieces[size_t(k)];
    const nest_edges edges{columns, ids, far, p.edge_end};
    float* total = totals.data() + k * Kernel::total;
    std::fill(total, total + Kernel::total, 0.0f);
    const int64_t head = p.head_slot >= 0 ? p.row_begin - 1 : -1, tail = p.tail_slot >= 0 ? p.row_end : -1;
    const int64_t first = head >= 0 ? head : p.row_begin, last = tail >= 0 ? p.row_end + 1 : p.row_end;
    for (int64_t row = first; row < last; ++row) {
      typename Kernel::state state;
      kernel.clear(state);
      const int64_t begin = std::max(adj.indptr[row], p.edge_begin), end = std::min(adj.indptr[row + 1], p.edge_end);
      kernel.edges(state, row, begin, end, edges, total);
      if (row != head && row != tail)
        kernel.finish(state, row, end - begin);
      else
        kernel.save(state, slots.data() + (row == tail ? p.tail_slot : p.head_slot) * Kernel::partial);
    }
  });
  for (const cut_row& cut : shares.cut_rows()) {
    typename Kernel::state state;
    kernel.clear(state);
    for (int64_t slot = cut.first_slot; slot < cut.last_slot; ++slot)
      kernel.merge(state, slots.data() + slot * Kernel::partial);
    kernel.finish(state, cut.row, adj.indptr[cut.row + 1] - adj.indptr[cut.row]);
  }
  if (Kernel::total == 0) return;
  std::vector<float> sum(size_t(Kernel::total), 0.0f);
  parallel_ranges(Kernel::total, 1024, [&](int64_t begin, int64_t end) {
    for (size_t k = 0; k < pieces.size(); ++k)
      for (int64_t at = begin; at < end; ++at) sum[size_t(at)] += totals[int64_t(k) * Kernel::total + at];
  });
  kernel.store_total(sum.data());
}

}  // namespace gw
