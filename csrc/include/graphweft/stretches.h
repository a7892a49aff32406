// Row reductions whose operand is read stretch by stretch: all rows take their edges from the first stretch of columns,
// then all rows theirs from the second, and so on. The operand's rows of a stretch stay in a core's own cache
// meanwhile, where otherwise each edge reads a row from the shared one. A row's edges are still taken in their order,
// and what a row has so far waits in its place of the result, so the bits are those of reduce.h. A row whose columns do
// not ascend goes on in the last stretch, with all that is left.
//
// A large adjacency that is read many times has its entries in this order (gw_stretches): what a row has in a stretch
// is then found without a search, and read as it lies.
//
// Beside what reduce.h asks for, a tile of `Op` has
//
//   void gather_inside(ids, count, first);
//                        edges from the columns first + ids[0], first + ids[1], ...
//   int64_t gather_below(begin, end, bound);
//                        edges from `begin` on, up to the first whose column is not below `bound`
//   void keep(row), resume(row);
//                        what the row has so far, in its place of the result
//   void resume_slot(slot);
//                        the same of a part of a cut row, which save(slot) kept
//   void expect(row);    requests what resume(row) will read
//   void expect_edges(edge);
//                        requests what gather_below(edge, ...) will read
#pragma once

#include <algorithm>
#include <vector>

#include "graphweft/panel.h"
#include "graphweft/reduce.h"

namespace gw {

// Bytes of an operand that stay in a core's own cache beside what else a reduction reads.
inline constexpr int64_t own_cache_bytes = 5 << 17;

// One stretch: the columns below `bound` that no stretch before it has.
struct stretch {
  int64_t bound;
  bool is_first, is_last;
};

// Equal stretches of so many columns at most.
inline int64_t stretches_of(const gw_adjacency& adj, int64_t columns) {
  return (adj.num_cols + columns - 1) / std::max<int64_t>(columns, 1);
}

// How many columns a stretch has whose rows of `row_bytes` bytes stay in a core's own cache; 0 where stretches do not
// pay: the whole operand stays there, or rows have few edges for each stretch, or their columns do not ascend. To go on
// with a row costs as much as some ten edges do, so rows with fewer of them get longer stretches.
template <class Index>
int64_t stretch_columns(const gw_adjacency& adj, int64_t row_bytes) {
  constexpr int64_t short_bytes = own_cache_bytes, long_bytes = 2 * short_bytes;
  constexpr int64_t many_edges = 32, least_edges = 12, samples = 64;
  const auto edges_each = [&](int64_t count) { return adj.num_edges / std::max<int64_t>(adj.num_rows * count, 1); };
  int64_t count = stretches_of(adj, short_bytes / row_bytes);
  if (edges_each(count) < many_edges) count = stretches_of(adj, long_bytes / row_bytes);
  if (count < 2 || edges_each(count) < least_edges) return 0;
  const auto* indices = static_cast<const Index*>(adj.indices);
  for (int64_t sample = 0; sample < samples; ++sample) {
    const int64_t row = adj.num_rows * sample / samples, first = adj.indptr[row];
    // A loop may stand behind the others.
    const int64_t last = std::max(first, adj.indptr[row + 1] - 1);
    if (!std::is_sorted(indices + first, indices + last)) return 0;
  }
  return (adj.num_cols + count - 1) / count;
}

// The rows of one piece; `at` has the edge where each row goes on, behind all rows where each part of a cut row does.
template <class Op, int V, bool Full>
void reduce_piece_of_stretch(const Op& op, typename Op::scratch& scratch, const gw_adjacency& adj, const piece& p,
                             int64_t col, int tail, const stretch& now, int64_t* at) {
  constexpr int64_t ahead = 3;
  typename Op::template tile<V, Full> t(op, scratch, col, tail);
  const int64_t head = p.head_slot >= 0 ? p.row_begin - 1 : -1, tail_row = p.tail_slot >= 0 ? p.row_end : -1;
  const int64_t first = head >= 0 ? head : p.row_begin, last = tail_row >= 0 ? p.row_end + 1 : p.row_end;
  for (int64_t row = first; row < last; ++row) {
    const int64_t slot = row == tail_row ? p.tail_slot : row == head ? p.head_slot : -1;
    int64_t& edge = at[slot < 0 ? row : adj.num_rows + slot];
    if (row + ahead < p.row_end) {
      t.expect(row + ahead);
      t.expect_edges(now.is_first ? adj.indptr[row + ahead] : at[row + ahead]);
    }
    if (now.is_first) {
      t.clear();
      edge = std::max(adj.indptr[row], p.edge_begin);
    } else {
      slot < 0 ? t.resume(row) : t.resume_slot(slot);
    }
    edge = t.gather_below(edge, std::min(adj.indptr[row + 1], p.edge_end), now.bound);
    if (slot >= 0)
      t.save(slot);
    else if (now.is_last)
      t.finish(row);
    else
      t.keep(row);
  }
}

// The same, of entries that lie in the order of stretches.
template <class Op, int V, bool Full>
void reduce_piece_of_entries(const Op& op, typename Op::scratch& scratch, const piece& p, int64_t col, int tail,
                             const gw_stretches& all, int64_t k, int64_t stretch) {
  constexpr int64_t ahead = 8;
  typename Op::template tile<V, Full> t(op, scratch, col, tail);
  const int64_t head = p.head_slot >= 0 ? p.row_begin - 1 : -1, tail_row = p.tail_slot >= 0 ? p.row_end : -1;
  const int64_t first = head >= 0 ? head : p.row_begin, last = tail_row >= 0 ? p.row_end + 1 : p.row_end;
  const uint16_t* length = all.lengths + stretch * all.rows[all.pieces] + all.rows[k];
  const uint16_t* ids = all.inside + all.entries[stretch * all.pieces + k];
  const int32_t* behind = all.behind + all.rows[k];
  constexpr uint16_t itself = 0;
  const bool is_last = stretch == all.count - 1;
  for (int64_t row = first; row < last; ++row, ++length, ++behind) {
    const int64_t slot = row == tail_row ? p.tail_slot : row == head ? p.head_slot : -1;
    if (row + ahead < p.row_end) t.expect(row + ahead);
    if (stretch == 0)
      t.clear();
    else
      slot < 0 ? t.resume(row) : t.resume_slot(slot);
    t.gather_inside(ids, *length, stretch * all.columns);
    ids += *length;
    if (is_last && *behind >= 0) t.gather_inside(&itself, 1, *behind);
    if (slot >= 0)
      t.save(slot);
    else if (is_last)
      t.finish(row);
    else
      t.keep(row);
  }
}

// Whether an adjacency's entries are at hand by stretches, cut as the pieces of `shares`.
inline bool has_stretches(const gw_adjacency& adj, const balanced_pieces& shares) {
  const gw_stretches* const all = adj.stretches;
  return all && all->indptr == adj.indptr && all->pieces == int64_t(shares.pieces().size());
}

template <int Vectors, class Op>
void reduce_by_entries(Op& op, const gw_adjacency& adj, int64_t begin, int64_t end, const balanced_pieces& shares) {
  const auto& pieces = shares.pieces();
  for (int64_t stretch = 0; stretch < adj.stretches->count; ++stretch)
    parallel_chunks(int64_t(pieces.size()), [&](int64_t k) {
      const piece& p = pieces[size_t(k)];
      typename Op::scratch scratch = op.open(k, p);
      for_each_tile<Vectors, Op::element::lanes, Op::few>(begin, end, [&](auto v, auto full, int64_t col, int tail) {
        reduce_piece_of_entries<Op, decltype(v)::value, decltype(full)::value>(op, scratch, p, col, tail,
                                                                               *adj.stretches, k, stretch);
      });
    });
  merge_cut_rows(op, begin, end, shares);
}

// Reduces the columns [begin, end) of the result, which are one tile of at most `Vectors` vectors.
template <int Vectors, class Op>
void reduce_by_stretches(Op& op, const gw_adjacency& adj, int64_t begin, int64_t end, const balanced_pieces& shares,
                         int64_t columns) {
  const auto& pieces = shares.pieces();
  std::vector<int64_t> at(size_t(adj.num_rows + shares.num_slots()));
  for (int64_t from = 0; from < adj.num_cols; from += columns) {
    const stretch now{from + columns, from == 0, from + columns >= adj.num_cols};
    parallel_chunks(int64_t(pieces.size()), [&](int64_t k) {
      const piece& p = pieces[size_t(k)];
      typename Op::scratch scratch = op.open(k, p);
      for_each_tile<Vectors, Op::element::lanes, Op::few>(begin, end, [&](auto v, auto full, int64_t col, int tail) {
        reduce_piece_of_stretch<Op, decltype(v)::value, decltype(full)::value>(op, scratch, adj, p, col, tail, now,
                                                                               at.data());
      });
    });
  }
  merge_cut_rows(op, begin, end, shares);
}

// Columns of the next tile that is reduced by stretches, of `rest` that are left and as vectors of E.
template <class E>
int64_t next_stretched(int64_t rest) {
  constexpr int64_t widest = std::min<int64_t>(widest_panel<E>, 8 * E::lanes);
  return rest <= widest ? rest : panel_width<E>;
}

// Reduces the columns [begin, end), one tile of at most `Vectors` vectors of which a row has `row_bytes` bytes, by
// stretches where they pay, or where edges lie in no other order; false: nothing is done.
template <int Vectors, class Index, class Op>
bool reduce_in_stretches(Op& op, const gw_adjacency& adj, int64_t begin, int64_t end, const balanced_pieces& shares,
                         int64_t row_bytes) {
  if (has_stretches(adj, shares) && (!adj.indices || adj.num_cols * row_bytes > own_cache_bytes)) {
    reduce_by_entries<Vectors>(op, adj, begin, end, shares);
    return true;
  }
  const int64_t columns = stretch_columns<Index>(adj, row_bytes);
  if (columns > 0) reduce_by_stretches<Vectors>(op, adj, begin, end, shares, columns);
  return columns > 0;
}

}  // namespace gw
