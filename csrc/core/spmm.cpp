// Sparse times dense, rows read as they are.
#include "graphweft/spmm_checked.h"

extern "C" {

// y[i] = epilogue(reduce_{j in row i} weight[e] * src_scale[j] * x[j] + self_coef * src_scale[i] * x[i]); `mean`: the
// neighbours' sum is divided by the row's number of edges. `self_factor`: one number that self_coef is multiplied by,
// read in the call, or null; rows beyond the columns have no self. `prefetch`: distance in edges, 0 none, negative
// chosen here. `panel`: room for num_cols rows of x in whole lines, of 192 bytes at most (worth it when x is wide,
// large and each row is read many times), or null. Its rows are scaled and sums are cut by its width, which saves time;
// `plain`: y has the bits that it has without a panel.
GW_API int gw_spmm_f32(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, const float* weight,
                       const float* src_scale, double self_coef, const float* self_factor, int32_t mean,
                       const gw_epilogue_f32* stages, int32_t prefetch, float* panel, int32_t plain, float* y,
                       int64_t ldy) {
  const double coef = gw::times(self_coef, self_factor);
  return gw::checked_spmm<gw::f32>(adj, x, ldx, width, weight, src_scale, coef, mean, stages, prefetch, panel,
                                   plain != 0, y, ldy);
}
}
