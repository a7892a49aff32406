// Runs a generated walk over edges: cuts the graph into balanced pieces, runs them in the core's threads, joins the
// parts of rows that pieces share and adds up the sums over all edges. Pieces, and the order of every sum, follow from
// the graph and the kernel alone: the same bits for any number of threads.
#pragma once

#include <vector>

#include "graphweft/balance.h"
#include "graphweft/nest.h"
#include "graphweft/row_stream.h"
#include "graphweft/scratch.h"

namespace gw {

template <class Real>
void run_nest(const gw_nest& nest, const gw_adjacency& adj, const void* const* in, void* const* out) {
  const balanced_pieces shares(adj, nest.width);
  const auto& pieces = shares.pieces();
  scratch<Real> slots(checked_mul(shares.num_slots(), nest.partial));
  std::vector<Real> totals(size_t(checked_mul(int64_t(pieces.size()), nest.total)));
  const gw_nest_run run{&adj, in, out, prefetch_distance(adj.num_cols, nest.gathered * int64_t(sizeof(Real)))};
  parallel_chunks(int64_t(pieces.size()), [&](int64_t k) {
    nest.rows(&run, &pieces[size_t(k)], slots.data(), totals.data() + k * nest.total);
  });
  for (const cut_row& cut : shares.cut_rows()) nest.join(&run, &cut, slots.data());
  if (nest.total == 0) return;
  std::vector<Real> sum(size_t(nest.total));
  parallel_ranges(nest.total, 1024, [&](int64_t begin, int64_t end) {
    for (size_t k = 0; k < pieces.size(); ++k)
      for (int64_t at = begin; at < end; ++at) sum[size_t(at)] += totals[k * size_t(nest.total) + size_t(at)];
  });
  nest.keep_total(&run, sum.data());
}

}  // namespace gw
