// Entry points of the dense products: Y = epilogue(X W) and dW = X^T G, float32.
#include "graphweft/gemm.h"

#include "graphweft/gemm_tn.h"

extern "C" {

// y[n, m] = epilogue(x[n, k] * w), w is [k, m] or, when w_transposed, [m, k]. y overlaps neither x nor w; it may be the
// epilogue's addend. Leading dimensions count elements between rows.
GW_API int gw_gemm_nn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w, int64_t ldw,
                          int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y, int64_t ldy) {
  return gw::guarded([&] {
    gw::require(n >= 0 && k >= 0 && m >= 0, "gw_gemm_nn_f32: a size is negative");
    gw::require(ldx >= (n > 1 ? k : 0) && ldy >= (n > 1 ? m : 0) && ldw >= 0,
                "gw_gemm_nn_f32: rows overlap (leading dimension below the width)");
    gw::gemm_nn({n, k, m, x, ldx, y, ldy, epilogue}, w, ldw, w_transposed != 0);
  });
}

// dw[k, m] = x[n, k]^T * (row_scale * g[n, m]); col_sum[m], if wanted, = column sums of g itself.
GW_API int gw_gemm_tn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g, int64_t ldg,
                          const float* row_scale, float* dw, int64_t lddw, float* col_sum) {
  return gw::guarded([&] {
    gw::require(n >= 0 && k >= 0 && m >= 0, "gw_gemm_tn_f32: a size is negative");
    gw::require(ldx >= (n > 1 ? k : 0) && ldg >= (n > 1 ? m : 0) && lddw >= (k > 1 ? m : 0),
                "gw_gemm_tn_f32: rows overlap (leading dimension below the width)");
    gw::gemm_tn({n, k, m, x, ldx, g, ldg, row_scale, dw, lddw, col_sum});
  });
}
}
