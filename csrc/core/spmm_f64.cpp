// Sparse times dense in float64.
#include "graphweft/spmm_checked.h"

extern "C" {

// gw_spmm_f32 of float64, without stages.
GW_API int gw_spmm_f64(const gw_adjacency* adj, const double* x, int64_t ldx, int64_t width, const double* weight,
                       const double* src_scale, double self_coef, int32_t mean, int32_t prefetch, double* panel,
                       double* y, int64_t ldy) {
  return gw::checked_spmm<gw::f64>(adj, x, ldx, width, weight, src_scale, self_coef, mean, nullptr, prefetch, panel,
                                   false, y, ldy);
}
}
