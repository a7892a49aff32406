// Entry points of flat_rows.h: products of the features of a typed graph, from dense rows.
#include "graphweft/abi.h"
#include "graphweft/flat_rows.h"

extern "C" {

// by_row[i]: entries of node i; by_column [columns] grows by those of each column.
GW_API int gw_flat_count(const gw_flat_rows* x, int64_t columns, int64_t* by_row, int64_t* by_column) {
  return gw::guarded([&] {
    gw::check_flat(x, columns);
    gw::count_flat(*x, by_row, by_column);
  });
}

// Cuts of a product of `width` columns by a compressed matrix, row [capacity] and at [capacity]; count: how many.
GW_API int gw_flat_cuts_of(const int64_t* indptr, int64_t rows, int64_t width, int64_t capacity, int64_t* row,
                           int64_t* at, int64_t* count) {
  return gw::guarded([&] {
    gw::require(indptr && rows >= 0 && width >= 0, "flat_rows: expected offsets");
    *count = gw::flat_cuts(indptr, rows, width, capacity, row, at);
  });
}

// y [nodes, width] = X w; node i is row `first` + i of the cuts.
GW_API int gw_flat_matmul_f32(const gw_flat_rows* x, const gw_flat_cuts* cuts, int64_t first, int64_t columns,
                              const float* w, int64_t ldw, int64_t width, float* y, int64_t ldy) {
  return gw::guarded([&] {
    gw::check_flat(x, columns);
    gw::flat_matmul(*x, *cuts, first, w, ldw, width, y, ldy);
  });
}

// Adds X^T g to sums [columns, width], g [nodes, width]; `seen` [columns] and `ended` hold zeros before the first nodes
// come, as the sums do. `last`: no more nodes come.
GW_API int gw_flat_contract_f32(const gw_flat_rows* x, const gw_flat_cuts* cuts, int64_t columns, const float* g,
                                int64_t ldg, int64_t width, float* sums, int64_t* seen, float* ended, int32_t last) {
  return gw::guarded([&] {
    gw::check_flat(x, columns);
    const gw::flat_sums into{sums, width, seen, ended};
    gw::flat_contract(*x, *cuts, g, ldg, into);
    if (last) gw::flat_finish(*cuts, into);
  });
}
}
