// Runs kernels that were compiled at run time, in this library's threads.
#include "graphweft/run_nest.h"

extern "C" {

// A walk over the edges of `adj`; `in` and `out` are the tensors that the kernel reads and writes.
GW_API int gw_run_nest(const gw_adjacency* adj, const gw_nest* nest, const void* const* in, void* const* out) {
  return gw::guarded([&] {
    gw::require(adj && (adj->indptr || adj->num_rows == 0), "run_nest: expected an adjacency, got null");
    gw::require(nest && in && out, "run_nest: expected a kernel and its operands, got null");
    gw::require(nest->element == 4 || nest->element == 8, "run_nest: expected numbers of 4 or 8 bytes");
    nest->element == 4 ? gw::run_nest<float>(*nest, *adj, in, out) : gw::run_nest<double>(*nest, *adj, in, out);
  });
}

// An elementwise kernel over `count` elements of every matrix in `in`.
GW_API int gw_run_rows(gw_row_kernel rows, int64_t count, const float* const* in, float* out) {
  return gw::guarded([&] {
    gw::require(rows && count >= 0 && (count == 0 || (in && out)), "run_rows: expected a kernel and its operands");
    gw::parallel_ranges(count, 16384, [&](int64_t begin, int64_t end) { rows(begin, end, in, out); });
  });
}
}
