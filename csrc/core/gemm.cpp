// Entry points of the dense products: Y = epilogue(X W) and dW = X^T G, float32.
#include "graphweft/gemm.h"

#include "graphweft/csr.h"
#include "graphweft/gemm_tn.h"

namespace {

// Rows of a table of `count` rows, or the rows as they are where `rows` is null.
void require_rows(const char* who, const int64_t* rows, int64_t n, int64_t count) {
  if (!rows) return;
  gw::require(count >= 0, "gemm: a size is negative");
  gw::require_ids(who, rows, n, count);
}

}  // namespace

extern "C" {

// y[n, m] = epilogue(x[n, k] * w), w is [k, m] or, when w_transposed, [m, k]. y overlaps neither x nor w; it may be the
// epilogue's addend. Leading dimensions count elements between rows. With `rows` [n], row i of x is row rows[i] of a
// table of table_rows rows, read where it lies.
GW_API int gw_gemm_nn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w, int64_t ldw,
                          int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y, int64_t ldy,
                          const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require(n >= 0 && k >= 0 && m >= 0, "gw_gemm_nn_f32: a size is negative");
    gw::require(ldx >= (n > 1 ? k : 0) && ldy >= (n > 1 ? m : 0) && ldw >= 0,
                "gw_gemm_nn_f32: rows overlap (leading dimension below the width)");
    require_rows("gather_matmul: expected ids", rows, n, table_rows);
    gw::gemm_nn({n, k, m, x, ldx, y, ldy, epilogue, rows}, w, ldw, w_transposed != 0);
  });
}

// dw[k, m] = x[n, k]^T * (row_scale * g[n, m]); col_sum[m], if wanted, = column sums of g itself. `rows` as above.
GW_API int gw_gemm_tn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g, int64_t ldg,
                          const float* row_scale, float* dw, int64_t lddw, float* col_sum, const int64_t* rows,
                          int64_t table_rows) {
  return gw::guarded([&] {
    gw::require(n >= 0 && k >= 0 && m >= 0, "gw_gemm_tn_f32: a size is negative");
    gw::require(ldx >= (n > 1 ? k : 0) && ldg >= (n > 1 ? m : 0) && lddw >= (k > 1 ? m : 0),
                "gw_gemm_tn_f32: rows overlap (leading dimension below the width)");
    require_rows("gather_matmul_tn: expected ids", rows, n, table_rows);
    gw::gemm_tn({n, k, m, x, ldx, g, ldg, row_scale, dw, lddw, col_sum, rows});
  });
}
}
