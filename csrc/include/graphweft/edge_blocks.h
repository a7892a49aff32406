// Work on edges that needs several passes over a row: blocks of whole rows, or of a part of a long one, that stay in a
// core's own cache from pass to pass.
//
// A kernel gives
//   struct scratch;                            per thread and piece: scratch(kernel, k) for piece number k
//   void block(scratch&, edge_block) const;    all passes over the rows of a block
//   void merge(const cut_row&) const;          joins the parts of a row that pieces share, in order
// Blocks and pieces follow from the graph and the width alone: the same bits for any number of threads.
#pragma once

#include <vector>

#include "graphweft/balance.h"
#include "graphweft/id_list.h"
#include "graphweft/row_stream.h"

namespace gw {

// Edges [begin, end) of `row`: all of them when slot < 0, else a part whose results belong in that slot.
struct row_part {
  int64_t row, begin, end, slot;
};

// Consecutive parts of rows; their edges are [first, first + count). `last` is the end of the piece.
struct edge_block {
  const row_part* begin_;
  const row_part* end_;
  int64_t first, count, last;
  [[nodiscard]] const row_part* begin() const noexcept { return begin_; }
  [[nodiscard]] const row_part* end() const noexcept { return end_; }
  [[nodiscard]] int64_t rows() const noexcept { return end_ - begin_; }
};

inline constexpr int64_t block_edges = 256, block_rows = 64;

template <class Kernel>
void for_each_block(const Kernel& kernel, const gw_adjacency& adj, const balanced_pieces& shares) {
  const auto& pieces = shares.pieces();
  parallel_chunks(int64_t(pieces.size()), [&](int64_t k) {
    const piece& p = pieces[size_t(k)];
    typename Kernel::scratch scratch(kernel, k);
    row_part parts[block_rows];
    const int64_t head = p.head_slot >= 0 ? p.row_begin - 1 : -1, tail = p.tail_slot >= 0 ? p.row_end : -1;
    const int64_t first = head >= 0 ? head : p.row_begin, last = tail >= 0 ? p.row_end + 1 : p.row_end;
    for (int64_t row = first; row < last;) {
      int64_t used = 0;
      const int64_t from = std::max(adj.indptr[row], p.edge_begin);
      int64_t to = from;
      for (; row < last && used < block_rows; ++row, ++used) {
        const int64_t end = std::min(adj.indptr[row + 1], p.edge_end);
        if (used > 0 && end - from > block_edges) break;
        const int64_t slot = row == tail ? p.tail_slot : row == head ? p.head_slot : -1;
        parts[used] = {row, to, end, slot};
        to = end;
      }
      kernel.block(scratch, edge_block{parts, parts + used, from, to - from, p.edge_end});
    }
  });
  const auto& cut = shares.cut_rows();
  parallel_chunks(int64_t(cut.size()), [&](int64_t k) { kernel.merge(cut[size_t(k)]); });
}

}  // namespace gw
