// Sparse times dense: rows in bfloat16, and neighbours' rows that are rounded to it.
#include "graphweft/spmm_checked.h"

extern "C" {

// gw_spmm_f32 of bfloat16 rows; weights, scales, stages and sums are float32. y is bfloat16, or float32 where `wide`.
GW_API int gw_spmm_bf16(const gw_adjacency* adj, const uint16_t* x, int64_t ldx, int64_t width, const float* weight,
                        const float* src_scale, double self_coef, const float* self_factor, int32_t mean,
                        const gw_epilogue_f32* stages, int32_t prefetch, uint16_t* panel, int32_t plain, int32_t wide,
                        void* y, int64_t ldy) {
  const double coef = gw::times(self_coef, self_factor);
  return gw::checked_spmm<gw::bf16>(adj, x, ldx, width, weight, src_scale, coef, mean, stages, prefetch, panel,
                                    plain != 0, static_cast<uint16_t*>(wide ? nullptr : y), ldy,
                                    static_cast<float*>(wide ? y : nullptr));
}

// gw_spmm_f32 where neighbours' rows, times their source scale, are rounded to bfloat16 before they are summed in
// float: half the bytes to gather. `panel`, room for num_cols rows of x in whole lines, of 192 bytes at most, is
// needed; the self term is not rounded.
GW_API int gw_spmm_f32_bf16(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, const float* weight,
                            const float* src_scale, double self_coef, const float* self_factor, int32_t mean,
                            const gw_epilogue_f32* stages, int32_t prefetch, uint16_t* panel, float* y, int64_t ldy) {
  if (!panel && width > 0 && adj && adj->num_cols > 0)
    return gw::guarded([] { gw::require(false, "gw_spmm_f32_bf16: expected a panel, got null"); });
  const double coef = gw::times(self_coef, self_factor);
  return gw::checked_spmm<gw::f32, gw::bf16_pairs>(adj, x, ldx, width, weight, src_scale, coef, mean, stages, prefetch,
                                                   panel, false, y, ldy);
}
}
