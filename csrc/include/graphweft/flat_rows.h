// Products of sparse rows that are kept as dense ones: the features of a typed graph, in which every type has columns
// of its own and a node without features one column for itself alone. Zeros are skipped, so that
//
//   y = X w    and    dw = X^T g
//
// have the bits of spmm.h over the compressed rows of X and of its transpose: entries are added up in their order, and
// a row that balance.h cuts there is added up in the same parts here. Cuts come from the numbers of entries alone. Rows
// may come a piece at a time.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "graphweft/balance.h"
#include "graphweft/element.h"
#include "graphweft/reduce.h"

extern "C" {

// Nodes, which lie in runs of one type.
struct gw_flat_rows {
  int64_t nodes;
  const int64_t* place;  // [nodes] row of the table; of a node without features its column
  const float* table;    // [table_rows, ld]
  int64_t table_rows;
  int64_t ld;
  int64_t runs;
  const int64_t* end;    // [runs] where each run ends, ascending
  const int64_t* first;  // [runs] the first column of its type
  const int64_t* width;  // [runs] columns of its type; 0: a column a node, which holds a one
};

// Rows that are added up in parts: row[i] has a part that ends after at[i] of its entries; ascending.
struct gw_flat_cuts {
  int64_t count;
  const int64_t* row;
  const int64_t* at;
};
}

namespace gw {

inline void check_flat(const gw_flat_rows* x, int64_t columns) {
  require(x && x->nodes >= 0 && x->runs >= 0 && columns >= 0, "flat_rows: expected rows");
  require(x->runs == 0 ? x->nodes == 0 : x->end[x->runs - 1] == x->nodes, "flat_rows: expected runs of all nodes");
  for (int64_t run = 0, begin = 0; run < x->runs; begin = x->end[run++]) {
    const int64_t width = x->width[run], bound = width ? x->table_rows : columns;
    require(x->end[run] >= begin && width >= 0 && width <= x->ld, "flat_rows: expected runs in order");
    require(x->first[run] >= 0 && x->first[run] <= columns - width, "flat_rows: expected columns in range");
    for (int64_t i = begin; i < x->end[run]; ++i)
      require(x->place[i] >= 0 && x->place[i] < bound, "flat_rows: expected places in range");
  }
}

// body(run, begin, end) for every run, in order.
template <class Body>
void for_each_run(const gw_flat_rows& x, Body&& body) {
  for (int64_t run = 0, begin = 0; run < x.runs; begin = x.end[run++]) body(run, begin, x.end[run]);
}

inline const float* flat_row(const gw_flat_rows& x, int64_t node) { return x.table + x.place[node] * x.ld; }

// by_row[i]: entries of node i; by_column[c] grows by those in column c.
inline void count_flat(const gw_flat_rows& x, int64_t* by_row, int64_t* by_column) {
  constexpr int64_t rows = 64, columns = 64;
  for_each_run(x, [&](int64_t run, int64_t begin, int64_t end) {
    const int64_t width = x.width[run], first = x.first[run];
    if (width == 0) {
      for (int64_t i = begin; i < end; ++i) by_row[i] = 1, ++by_column[x.place[i]];
      return;
    }
    parallel_ranges(end - begin, rows, [&](int64_t from, int64_t to) {
      for (int64_t i = begin + from; i < begin + to; ++i) {
        const float* at = flat_row(x, i);
        int32_t found = 0;
        for (int64_t c = 0; c < width; ++c) found += at[c] != 0;
        by_row[i] = found;
      }
    });
    parallel_ranges(width, columns, [&](int64_t from, int64_t to) {
      int32_t found[columns] = {};
      for (int64_t i = begin; i < end; ++i) {
        const float* at = flat_row(x, i) + from;
        for (int64_t c = 0; c < to - from; ++c) found[c] += at[c] != 0;
      }
      for (int64_t c = from; c < to; ++c) by_column[first + c] += found[c - from];
    });
  });
}

// The cuts of a compressed matrix whose product is `width` wide; how many there are.
inline int64_t flat_cuts(const int64_t* indptr, int64_t rows, int64_t width, int64_t capacity, int64_t* row,
                         int64_t* at) {
  const gw_adjacency adj{rows, 0, indptr[rows], indptr, nullptr, nullptr, 0};
  const balanced_pieces shares(adj, width);
  int64_t count = 0;
  for (const piece& p : shares.pieces()) {
    const int64_t r = std::upper_bound(indptr, indptr + rows + 1, p.edge_begin) - indptr - 1;
    if (r >= rows || indptr[r] == p.edge_begin) continue;
    require(count < capacity, "flat_rows: expected room for all cuts");
    row[count] = r;
    at[count++] = p.edge_begin - indptr[r];
  }
  return count;
}

// Where the entries of one row are cut.
class cuts_of_row {
 public:
  cuts_of_row(const gw_flat_cuts& cuts, int64_t row, int64_t seen) {
    const auto range = std::equal_range(cuts.row, cuts.row + cuts.count, row);
    next_ = cuts.at + (range.first - cuts.row), end_ = cuts.at + (range.second - cuts.row);
    any_ = next_ != end_;
    while (next_ != end_ && *next_ <= seen) ++next_;
    left_ = next_ == end_ ? std::numeric_limits<int64_t>::max() : *next_ - seen;
  }
  // One more entry; whether a part ends with it.
  GW_INLINE bool ends() {
    if (--left_) return false;
    const int64_t before = *next_++;
    left_ = next_ == end_ ? std::numeric_limits<int64_t>::max() : *next_ - before;
    return true;
  }
  [[nodiscard]] bool any() const noexcept { return any_; }

 private:
  const int64_t *next_, *end_;
  int64_t left_;
  bool any_;
};

inline constexpr int flat_group = f32::lanes >= 16 ? 4 : 2;  // rows whose sums are in registers together

// y[i] = sum over the entries (c, v) of node i of v * w[c], of one run; node i is row `at` + i of the cuts.
template <int V, bool Full>
void flat_product(const gw_flat_rows& x, int64_t run, int64_t begin, int64_t end, const gw_flat_cuts& cuts, int64_t at,
                  const float* w, int64_t ldw, int tail, float* y, int64_t ldy) {
  using io = tile_io<f32, V, Full>;
  using vec = f32::vec;
  const int64_t width = x.width[run];
  w += x.first[run] * ldw;
  int64_t i = begin;
  for (; cuts.count == 0 && i + flat_group <= end; i += flat_group) {
    const float* rows[flat_group];
    vec t[flat_group][V] = {};
    for (int r = 0; r < flat_group; ++r) rows[r] = flat_row(x, i + r);
    for (int64_t c = 0; c < width; ++c) {
      vec b[V];
      io::load(w + c * ldw, tail, b);
      for (int r = 0; r < flat_group; ++r) {
        const float value = rows[r][c];
        if (value != 0)
          for (int v = 0; v < V; ++v) t[r][v] += value * b[v];
      }
    }
    for (int r = 0; r < flat_group; ++r) io::store(y + (i + r) * ldy, tail, t[r]);
  }
  for (; i < end; ++i) {
    cuts_of_row cut(cuts, at + i, 0);
    const float* row = flat_row(x, i);
    vec t[V] = {}, whole[V] = {};
    for (int64_t c = 0; c < width; ++c) {
      const float value = row[c];
      if (value == 0) continue;
      vec b[V];
      io::load(w + c * ldw, tail, b);
      for (int v = 0; v < V; ++v) t[v] += value * b[v];
      if (!cut.ends()) continue;
      for (int v = 0; v < V; ++v) whole[v] += t[v], t[v] = vec{};
    }
    if (cut.any())
      for (int v = 0; v < V; ++v) t[v] += whole[v];
    io::store(y + i * ldy, tail, t);
  }
}

// The same of nodes that have a column each.
template <int V, bool Full>
void flat_columns(const gw_flat_rows& x, int64_t begin, int64_t end, const float* w, int64_t ldw, int tail, float* y,
                  int64_t ldy) {
  for (int64_t i = begin; i < end; ++i) {
    f32::vec t[V] = {}, b[V];
    tile_io<f32, V, Full>::load(w + x.place[i] * ldw, tail, b);
    for (int v = 0; v < V; ++v) t[v] += b[v];
    tile_io<f32, V, Full>::store(y + i * ldy, tail, t);
  }
}

inline void flat_matmul(const gw_flat_rows& x, const gw_flat_cuts& cuts, int64_t at, const float* w, int64_t ldw,
                        int64_t width, float* y, int64_t ldy) {
  for_each_run(x, [&](int64_t run, int64_t begin, int64_t end) {
    parallel_ranges(end - begin, 64, [&](int64_t from, int64_t to) {
      for_each_tile<4, f32::lanes>(0, width, [&](auto v, auto full, int64_t col, int tail) {
        constexpr int vectors = decltype(v)::value;
        constexpr bool whole = decltype(full)::value;
        if (x.width[run])
          flat_product<vectors, whole>(x, run, begin + from, begin + to, cuts, at, w + col, ldw, tail, y + col, ldy);
        else
          flat_columns<vectors, whole>(x, begin + from, begin + to, w + col, ldw, tail, y + col, ldy);
      });
    });
  });
}

// What a product by the transposed rows has so far: sums [columns, width], which hold zeros at first; `seen` entries of
// each column; what ended parts of the rows that are cut add up to, [distinct rows of the cuts, width].
struct flat_sums {
  float* sums;
  int64_t width;
  int64_t* seen;
  float* ended;
};

// The place of a row among those that are cut.
inline int64_t cut_place(const gw_flat_cuts& cuts, int64_t row) {
  int64_t found = -1;
  for (int64_t k = 0; k < cuts.count && cuts.row[k] <= row; ++k)
    if (k == 0 || cuts.row[k] != cuts.row[k - 1]) ++found;
  return found;
}

// Adds the nodes of one run to `Group` columns from `c` on.
template <int V, bool Full, int Group>
void flat_gather(const gw_flat_rows& x, int64_t c, int64_t column, int64_t begin, int64_t end, const gw_flat_cuts& cuts,
                 const float* g, int64_t ldg, int tail, int64_t col, const flat_sums& o) {
  using io = tile_io<f32, V, Full>;
  using vec = f32::vec;
  vec t[Group][V];
  int64_t found[Group] = {};
  bool any = false;
  for (int k = 0; k < Group; ++k) {
    any |= cuts_of_row(cuts, column + k, 0).any();
    io::load(o.sums + (column + k) * o.width + col, tail, t[k]);
  }
  if (any && Group > 1) {
    for (int k = 0; k < Group; ++k)
      flat_gather<V, Full, 1>(x, c + k, column + k, begin, end, cuts, g, ldg, tail, col, o);
    return;
  }
  cuts_of_row cut(cuts, column, o.seen[column]);
  for (int64_t i = begin; i < end; ++i) {
    const float* at = flat_row(x, i) + c;
    vec b[V];
    io::load(g + i * ldg, tail, b);
    for (int k = 0; k < Group; ++k) {
      const float value = at[k];
      if (value == 0) continue;
      ++found[k];
      for (int v = 0; v < V; ++v) t[k][v] += value * b[v];
      if constexpr (Group == 1) {
        if (!any || !cut.ends()) continue;
        vec whole[V];
        float* ended = o.ended + cut_place(cuts, column) * o.width + col;
        io::load(ended, tail, whole);
        for (int v = 0; v < V; ++v) whole[v] += t[k][v], t[k][v] = vec{};
        io::store(ended, tail, whole);
      }
    }
  }
  for (int k = 0; k < Group; ++k) {
    io::store(o.sums + (column + k) * o.width + col, tail, t[k]);
    if (col + V * f32::lanes >= o.width) o.seen[column + k] += found[k];
  }
}

// Adds X^T g of some nodes, after those before them.
inline void flat_contract(const gw_flat_rows& x, const gw_flat_cuts& cuts, const float* g, int64_t ldg,
                          const flat_sums& o) {
  constexpr int64_t nodes = 128, columns = 32;  // rows that stay in a core's own cache; columns of a chunk
  for_each_run(x, [&](int64_t run, int64_t begin, int64_t end) {
    const int64_t width = x.width[run], first = x.first[run];
    if (width == 0) {  // a one: the sum of rows of g
      for (int64_t i = begin; i < end; ++i) {
        float* sum = o.sums + x.place[i] * o.width;
        cuts_of_row cut(cuts, x.place[i], o.seen[x.place[i]]++);
        for (int64_t k = 0; k < o.width; ++k) sum[k] += g[i * ldg + k];
        if (!cut.any() || !cut.ends()) continue;
        float* ended = o.ended + cut_place(cuts, x.place[i]) * o.width;
        for (int64_t k = 0; k < o.width; ++k) ended[k] += sum[k], sum[k] = 0;
      }
      return;
    }
    parallel_ranges(width, columns, [&](int64_t from, int64_t to) {
      for (int64_t i = begin; i < end; i += nodes)
        for_each_tile<4, f32::lanes>(0, o.width, [&](auto v, auto full, int64_t col, int tail) {
          constexpr int vectors = decltype(v)::value;
          constexpr bool whole = decltype(full)::value;
          const int64_t last = std::min(i + nodes, end);
          int64_t c = from;
          for (; c + flat_group <= to; c += flat_group)
            flat_gather<vectors, whole, flat_group>(x, c, first + c, i, last, cuts, g + col, ldg, tail, col, o);
          for (; c < to; ++c)
            flat_gather<vectors, whole, 1>(x, c, first + c, i, last, cuts, g + col, ldg, tail, col, o);
        });
    });
  });
}

// The sums of rows that are cut, once all nodes are in.
inline void flat_finish(const gw_flat_cuts& cuts, const flat_sums& o) {
  for (int64_t k = 0; k < cuts.count; ++k) {
    if (k && cuts.row[k] == cuts.row[k - 1]) continue;
    const float* ended = o.ended + cut_place(cuts, cuts.row[k]) * o.width;
    float* sum = o.sums + cuts.row[k] * o.width;
    for (int64_t j = 0; j < o.width; ++j) sum[j] = ended[j] + sum[j];
  }
}

}  // namespace gw
