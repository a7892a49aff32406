// Row reductions: for every row of an adjacency and every tile of the feature columns, gather the row's edges into
// registers, then finish the row with one store. What is gathered and how a row is finished is an operation `Op`:
//
//   using element = f32 | f64 | bf16;
//   static constexpr int max_vectors;            widest tile it wants, in vectors
//   static constexpr bool few;                   whole and cut tiles of fewer vectors are compiled as one
//   struct scratch;                              per-piece state, made by open(piece)
//   template <int V, bool Full> struct tile;     registers of one row and tile: tile(op, scratch, col, tail), with
//     void start(edge);                          before the first edge of a piece
//     void clear();                              before the first edge of a row
//     void gather(row, begin, end);              edges [begin, end) of the row, in order
//     void save(slot), merge(slot);              partial result of a cut row
//     void finish(row);                          scale, epilogue, store
//
// Rows are shared out in balanced pieces; a cut row's parts meet in slots that are merged in piece order, so the result
// does not depend on the number of threads.
#pragma once

#include "graphweft/balance.h"
#include "graphweft/element.h"

namespace gw {

template <class Op, int V, bool Full>
void reduce_piece(const Op& op, typename Op::scratch& scratch, const int64_t* indptr, const piece& p, int64_t col,
                  int tail) {
  typename Op::template tile<V, Full> t(op, scratch, col, tail);
  t.start(p.edge_begin);
  const int64_t head = p.head_slot >= 0 ? p.row_begin - 1 : -1, tail_row = p.tail_slot >= 0 ? p.row_end : -1;
  const int64_t first = head >= 0 ? head : p.row_begin, last = tail_row >= 0 ? p.row_end + 1 : p.row_end;
  for (int64_t row = first; row < last; ++row) {
    t.clear();
    t.gather(row, std::max(indptr[row], p.edge_begin), std::min(indptr[row + 1], p.edge_end));
    if (row != head && row != tail_row)
      t.finish(row);
    else
      t.save(row == tail_row ? p.tail_slot : p.head_slot);
  }
}

template <class Op, int V, bool Full>
void merge_cut_row(const Op& op, typename Op::scratch& scratch, const cut_row& cut, int64_t col, int tail) {
  typename Op::template tile<V, Full> t(op, scratch, col, tail);
  t.clear();
  for (int64_t slot = cut.first_slot; slot < cut.last_slot; ++slot) t.merge(slot);
  t.finish(cut.row);
}

// The widest tile worth compiling, in vectors of `lanes` columns: `most`, or fewer where no caller has rows as wide.
constexpr int widest_tile(int most, [[maybe_unused]] int lanes) {
#ifdef GW_WIDEST_SUM
  for (int vectors = 1; vectors < most; vectors *= 2)
    if (vectors * lanes >= GW_WIDEST_SUM) return vectors;
#endif
  return most;
}

// Calls visit(V, Full, col, tail), the first two as integral constants, for each tile of the columns [col, end).
template <int MaxVectors, int Lanes, bool Few = few_shapes, class Visit>
void for_each_tile(int64_t col, int64_t end, Visit&& visit) {
  static_assert(MaxVectors == 1 || MaxVectors == 2 || MaxVectors == 4 || MaxVectors == 8,
                "tiles are 1, 2, 4 or 8 vectors wide");
  for (; col + MaxVectors * Lanes <= end; col += MaxVectors * Lanes)
    visit(std::integral_constant<int, MaxVectors>{}, std::true_type{}, col, Lanes);
  const int rest = int(end - col);
  if (rest == 0) return;
  const int vectors = (rest + Lanes - 1) / Lanes;
  const int tail = rest - (vectors - 1) * Lanes;
  const auto narrow = [&](auto v) {
    if (vectors != decltype(v)::value) return;
    if constexpr (!Few)
      if (tail == Lanes) return visit(v, std::true_type{}, col, tail);
    visit(v, std::false_type{}, col, tail);
  };
  narrow(std::integral_constant<int, 1>{});
  if constexpr (MaxVectors >= 2) narrow(std::integral_constant<int, 2>{});
  if constexpr (MaxVectors >= 4) {
    narrow(std::integral_constant<int, 3>{});
    narrow(std::integral_constant<int, 4>{});
  }
  if constexpr (MaxVectors == 8) {
    narrow(std::integral_constant<int, 5>{});
    narrow(std::integral_constant<int, 6>{});
    narrow(std::integral_constant<int, 7>{});
    narrow(std::integral_constant<int, 8>{});
  }
}

// Finishes the rows that several pieces share.
template <class Op>
void merge_cut_rows(Op& op, int64_t begin, int64_t end, const balanced_pieces& shares) {
  if (shares.cut_rows().empty()) return;
  typename Op::scratch scratch = op.open(int64_t(shares.pieces().size()), piece{0, 0, 0, 0, -1, -1});
  // a vector at a time: cut rows are few, and wider tiles would be compiled for them alone
  for (const cut_row& cut : shares.cut_rows())
    for_each_tile<1, Op::element::lanes, Op::few>(begin, end, [&](auto v, auto full, int64_t col, int tail) {
      merge_cut_row<Op, decltype(v)::value, decltype(full)::value>(op, scratch, cut, col, tail);
    });
}

// Reduces the columns [begin, end).
template <class Op>
void reduce_rows(Op& op, const gw_adjacency& adj, int64_t begin, int64_t end, const balanced_pieces& shares) {
  const auto& pieces = shares.pieces();
  parallel_chunks(int64_t(pieces.size()), [&](int64_t k) {
    const piece& p = pieces[size_t(k)];
    typename Op::scratch scratch = op.open(k, p);
    for_each_tile<Op::max_vectors, Op::element::lanes, Op::few>(
        begin, end, [&](auto v, auto full, int64_t col, int tail) {
          reduce_piece<Op, decltype(v)::value, decltype(full)::value>(op, scratch, adj.indptr, p, col, tail);
        });
  });
  merge_cut_rows(op, begin, end, shares);
}

}  // namespace gw
