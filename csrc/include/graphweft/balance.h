// Equal shares of a compressed adjacency: pieces of about the same number of edges and rows, found by binary search
// over indptr. Rows too long for one piece are cut, and the partial results of a cut row are combined in piece order.
// Pieces depend on the graph and on the width only, never on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/parallel.h"
#include "graphweft/piece.h"

namespace gw {

class balanced_pieces {
 public:
  balanced_pieces(const gw_adjacency& adj, int64_t width) : indptr_(adj.indptr), rows_(adj.num_rows) {
    const int64_t work = adj.num_edges + adj.num_rows;
    const int64_t cells = checked_mul(work, std::max<int64_t>(width, 16));
    // Small graphs: some 10 microseconds a piece. Large ones: few enough that starting a piece costs nothing.
    const int64_t wanted = std::min(cells >> 15, std::max<int64_t>(64, std::min<int64_t>(cells >> 18, 256)));
    const int64_t count = std::max<int64_t>(1, std::max(wanted, work >> 17));
    cut_above_ = std::max<int64_t>(32, work / count / 4);
    std::vector<place> bounds(size_t(count) + 1);
    parallel_ranges(count + 1, 64, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        bounds[size_t(b)] = b == count ? place{rows_, adj.num_edges} : find(split(work, b, count));
    });
    assemble(bounds);
  }

  [[nodiscard]] const std::vector<piece>& pieces() const noexcept { return pieces_; }
  [[nodiscard]] const std::vector<cut_row>& cut_rows() const noexcept { return cut_rows_; }
  [[nodiscard]] int64_t num_slots() const noexcept { return slots_; }

 private:
  struct place {
    int64_t row, edge;  // the first row not finished before here, and the first edge after here
  };

  static int64_t split(int64_t work, int64_t b, int64_t count) {
    return int64_t(static_cast<unsigned __int128>(work) * uint64_t(b) / uint64_t(count));
  }

  // Where `done` units of work are over; row r is worth its edges and one unit more.
  [[nodiscard]] place find(int64_t done) const {
    int64_t low = 0, high = rows_;
    while (low < high) {  // the last row with indptr[row] + row <= done
      const int64_t middle = low + (high - low + 1) / 2;
      if (indptr_[middle] + middle <= done)
        low = middle;
      else
        high = middle - 1;
    }
    if (low == rows_) return {rows_, indptr_[rows_]};
    const int64_t degree = indptr_[low + 1] - indptr_[low];
    const int64_t inside = done - low - indptr_[low];
    if (degree <= cut_above_) return {low, indptr_[low]};
    if (inside == degree) return {low + 1, indptr_[low + 1]};
    return {low, indptr_[low] + inside};
  }

  void assemble(const std::vector<place>& bounds) {
    for (size_t b = 0; b + 1 < bounds.size(); ++b) {
      const place from = bounds[b], to = bounds[b + 1];
      if (from.row == to.row && from.edge == to.edge) continue;
      piece p{from.row, to.row, from.edge, to.edge, -1, -1};
      const bool continues = from.edge > indptr_[from.row];
      if (continues && to.row > from.row) {
        p.head_slot = next_slot(from.row, true);
        p.row_begin = from.row + 1;
      }
      if (to.row < rows_ && to.edge > indptr_[to.row]) {
        p.tail_slot = next_slot(to.row, continues && to.row == from.row);
      }
      pieces_.push_back(p);
    }
  }

  int64_t next_slot(int64_t row, bool continues) {
    if (!continues) cut_rows_.push_back({row, slots_, slots_});
    cut_rows_.back().last_slot = ++slots_;
    return slots_ - 1;
  }

  const int64_t* indptr_;
  int64_t rows_;
  int64_t cut_above_ = 0;
  int64_t slots_ = 0;
  std::vector<piece> pieces_;
  std::vector<cut_row> cut_rows_;
};

}  // namespace gw
