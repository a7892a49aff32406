// The entries of a large adjacency in the order of stretches.h.
#include "graphweft/stretches.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "graphweft/adjacency.h"
#include "graphweft/parallel.h"

namespace {

// The rows of a piece with the entries that are the piece's, in order: visit(begin, end).
template <class Visit>
void for_each_row(const gw_adjacency& adj, const gw::piece& p, Visit&& visit) {
  const int64_t first = p.head_slot >= 0 ? p.row_begin - 1 : p.row_begin;
  const int64_t last = p.tail_slot >= 0 ? p.row_end + 1 : p.row_end;
  for (int64_t row = first; row < last; ++row)
    visit(std::max(adj.indptr[row], p.edge_begin), std::min(adj.indptr[row + 1], p.edge_end));
}

int64_t rows_of(const gw::piece& p) { return p.row_end - p.row_begin + (p.head_slot >= 0) + (p.tail_slot >= 0); }

}  // namespace

extern "C" {

// Sizes of the arrays of gw_stretches, for products that are cut as those of `width` columns are: the columns of a
// stretch, the pieces, and the rows with the parts of rows.
GW_API int gw_stretches_sizes(const gw_adjacency* adj, int64_t width, int64_t count, int64_t* columns, int64_t* pieces,
                              int64_t* rows) {
  return gw::guarded([&] {
    gw::require(adj && count > 0 && width > 0, "stretches: expected an adjacency and a number of stretches");
    const gw::balanced_pieces shares(*adj, width);
    *columns = (adj->num_cols + count - 1) / count;
    *pieces = int64_t(shares.pieces().size()), *rows = 0;
    for (const gw::piece& p : shares.pieces()) *rows += rows_of(p);
  });
}

// Fills the arrays, of those sizes. `made`: 0 where columns do not ascend within every row but for its last, or where a
// row has too many entries in a stretch; the arrays are of no use then.
GW_API int gw_stretches_fill(const gw_adjacency* adj, int64_t width, int64_t count, int64_t columns, int64_t* rows,
                             int64_t* entries, uint16_t* lengths, int32_t* behind, uint16_t* inside, int32_t* made) {
  return gw::guarded([&] {
    gw::require(adj && !adj->wide && count > 0 && columns > 0 && columns <= 65536,
                "stretches: expected int32 ids and at most 65536 columns in a stretch");
    const auto* ids = static_cast<const int32_t*>(adj->indices);
    const gw::balanced_pieces shares(*adj, width);
    const auto& pieces = shares.pieces();
    const int64_t n = int64_t(pieces.size());
    rows[0] = 0;
    for (int64_t k = 0; k < n; ++k) rows[k + 1] = rows[k] + rows_of(pieces[size_t(k)]);
    const int64_t all_rows = rows[n];
    std::atomic<bool> fits{true};
    gw::parallel_chunks(n, [&](int64_t k) {
      std::vector<int64_t> sums(size_t(count), 0);
      int64_t row = rows[k];
      for_each_row(*adj, pieces[size_t(k)], [&](int64_t begin, int64_t end) {
        behind[row] = -1;
        if (!std::is_sorted(ids + begin, ids + end)) behind[row] = ids[--end];
        if (!std::is_sorted(ids + begin, ids + end)) fits = false;
        for (int64_t s = 0; s < count; ++s) {
          const int64_t bound = (s + 1) * columns;
          const int64_t next = std::lower_bound(ids + begin, ids + end, bound) - ids;
          if (next - begin > 65535) fits = false;
          lengths[s * all_rows + row] = uint16_t(next - begin);
          sums[size_t(s)] += next - begin;
          begin = next;
        }
        ++row;
      });
      for (int64_t s = 0; s < count; ++s) entries[s * n + k] = sums[size_t(s)];
    });
    *made = fits;
    if (!fits) return;
    int64_t before = 0;
    for (int64_t at = 0; at < count * n; ++at) before += std::exchange(entries[at], before);
    gw::parallel_chunks(n, [&](int64_t k) {
      std::vector<uint16_t*> to;
      for (int64_t s = 0; s < count; ++s) to.push_back(inside + entries[s * n + k]);
      int64_t row = rows[k];
      for_each_row(*adj, pieces[size_t(k)], [&](int64_t begin, int64_t) {
        for (int64_t s = 0; s < count; ++s) {
          const int32_t first = int32_t(s * columns);
          const int64_t length = lengths[s * all_rows + row];
          uint16_t* const out = to[size_t(s)];
          for (int64_t at = 0; at < length; ++at) out[at] = uint16_t(ids[begin + at] - first);
          to[size_t(s)] += length, begin += length;
        }
        ++row;
      });
    });
  });
}
}
