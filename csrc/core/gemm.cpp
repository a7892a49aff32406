// Entry points of the dense products: Y = epilogue(X W) and dW = X^T G, float32.
#include "graphweft/gemm.h"

#include "graphweft/gemm_terms.h"
#include "graphweft/gemm_tiles.h"
#include "graphweft/gemm_tn.h"
#ifndef GW_PLAIN_ROWS
#include "graphweft/gemm_tn_terms.h"
#endif
#include "graphweft/product_checks.h"

GW_GEMM_TILES()

extern "C" {

// y[n, m] = epilogue(x[n, k] * w), w is [k, m] or, when w_transposed, [m, k]. y overlaps neither x nor w; it may be the
// epilogue's addend. Leading dimensions count elements between rows. With `rows` [n], row i of x is row rows[i] of a
// table of table_rows rows, read where it lies.
GW_API int gw_gemm_nn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w, int64_t ldw,
                          int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y, int64_t ldy,
                          const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require_product(n, k, m, ldx, ldw, ldy, rows, table_rows);
    gw::require_float_stages(epilogue);
    if (!rows) return gw::gemm_nn({n, k, m, x, ldx, y, ldy, epilogue}, w, ldw, w_transposed != 0);
    const gw_term_f32 term{k, x, ldx, table_rows, rows, nullptr, nullptr, nullptr, 0, w, ldw, w_transposed, 0, nullptr};
    gw::gemm_terms(n, m, &term, 1, epilogue, y, ldy);
  });
}

// y[n, m] = epilogue(sum of the terms' x * w). y overlaps nothing that is read but the epilogue's addend. Columns of
// edges are ids that their adjacency has checked.
GW_API int gw_gemm_terms_f32(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                             const gw_epilogue_f32* epilogue, float* y, int64_t ldy) {
  return gw::guarded([&] {
    gw::require_terms(n, m, terms, num_terms, ldy);
    gw::require_float_stages(epilogue);
    for (int64_t t = 0; t < num_terms; ++t)
      gw::require(!terms[t].half_kept, "gw_gemm_terms_f32: expected sums to be kept in float32");
#ifdef GW_PLAIN_ROWS
    for (int64_t t = 0; t < num_terms; ++t)
      gw::require(!terms[t].edges && !terms[t].rows, "gw_gemm_terms_f32: expected rows as they lie");
#endif
    gw::gemm_terms(n, m, terms, num_terms, epilogue, y, ldy);
  });
}

// dw[k, m] = x[n, k]^T * (row_scale * g[n, m]); col_sum[m], if wanted, = column sums of g itself. `rows` as above.
GW_API int gw_gemm_tn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g, int64_t ldg,
                          const float* row_scale, float* dw, int64_t lddw, float* col_sum, const int64_t* rows,
                          int64_t table_rows) {
  return gw::guarded([&] {
    gw::require_contraction(n, k, m, ldx, ldg, lddw, rows, table_rows);
    gw::gemm_tn({n, k, m, x, ldx, g, ldg, row_scale, dw, lddw, col_sum, rows});
  });
}

#ifndef GW_ONLY_F32
// The same of x stored in bfloat16, without row_scale.
GW_API int gw_gemm_tn_half_f32(int64_t n, int64_t k, int64_t m, const uint16_t* x, int64_t ldx, const float* g,
                               int64_t ldg, float* dw, int64_t lddw, float* col_sum, const int64_t* rows,
                               int64_t table_rows) {
  return gw::guarded([&] {
    gw::require_contraction(n, k, m, ldx, ldg, lddw, rows, table_rows);
    gw::gemm_tn({n, k, m, x, ldx, g, ldg, nullptr, dw, lddw, col_sum, rows, true});
  });
}
#endif

#ifndef GW_PLAIN_ROWS
// dw[k, m] = x^T G for every left operand, where row i of G[n, m] is epilogue(sum over the edges j of row i of x[j]).
// Columns of edges are ids that their adjacency has checked.
GW_API int gw_gemm_tn_terms_f32(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                                const float* x, int64_t ldx, const gw_epilogue_f32* epilogue) {
  return gw::guarded([&] {
    gw::require_lefts(m, lefts, num_lefts, edges, ldx);
    gw::gemm_tn_terms({m, lefts, num_lefts, edges, x, ldx, epilogue});
  });
}
#endif
}
