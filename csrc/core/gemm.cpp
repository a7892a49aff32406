// Entry points of the dense products: Y = epilogue(X W) and dW = X^T G, float32.
#include "graphweft/gemm.h"

#include "graphweft/csr.h"
#include "graphweft/gemm_terms.h"
#include "graphweft/gemm_tiles.h"
#include "graphweft/gemm_tn.h"
#ifndef GW_PLAIN_ROWS
#include "graphweft/gemm_tn_terms.h"
#endif

GW_GEMM_TILES()

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
    if (!rows) return gw::gemm_nn({n, k, m, x, ldx, y, ldy, epilogue}, w, ldw, w_transposed != 0);
    const gw_term_f32 term{k, x, ldx, table_rows, rows, nullptr, nullptr, nullptr, 0, w, ldw, w_transposed};
    gw::gemm_terms(n, m, &term, 1, epilogue, y, ldy);
  });
}

// y[n, m] = epilogue(sum of the terms' x * w). y overlaps nothing that is read but the epilogue's addend. Columns of
// edges are ids that their adjacency has checked.
GW_API int gw_gemm_terms_f32(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                             const gw_epilogue_f32* epilogue, float* y, int64_t ldy) {
  return gw::guarded([&] {
    gw::require(n >= 0 && m >= 0 && num_terms >= 0, "gw_gemm_terms_f32: a size is negative");
    gw::require(ldy >= (n > 1 ? m : 0), "gw_gemm_terms_f32: rows overlap (leading dimension below the width)");
    for (int64_t t = 0; t < num_terms; ++t) {
      const gw_term_f32& term = terms[t];
#ifdef GW_PLAIN_ROWS
      gw::require(!term.edges && !term.rows, "gw_gemm_terms_f32: expected rows as they lie");
#endif
      gw::require(term.k >= 0 && term.ldw >= 0, "gw_gemm_terms_f32: a size is negative");
      gw::require(term.ldx >= (n > 1 ? term.k : 0) && (!term.kept || term.ld_kept >= term.k),
                  "gw_gemm_terms_f32: rows overlap (leading dimension below the width)");
      gw::require(!term.edges || (term.edges->num_rows == n && !term.rows),
                  "gw_gemm_terms_f32: expected sums over one row of edges per row");
      require_rows("gather_matmul: expected ids", term.rows, n, term.table_rows);
    }
    gw::gemm_terms(n, m, terms, num_terms, epilogue, y, ldy);
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

#ifndef GW_PLAIN_ROWS
// dw[k, m] = x^T G for every left operand, where row i of G[n, m] is epilogue(sum over the edges j of row i of x[j]).
// Columns of edges are ids that their adjacency has checked.
GW_API int gw_gemm_tn_terms_f32(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                                const float* x, int64_t ldx, const gw_epilogue_f32* epilogue) {
  return gw::guarded([&] {
    gw::require(m >= 0 && num_lefts >= 0 && edges && edges->num_rows >= 0, "gw_gemm_tn_terms_f32: a size is negative");
    gw::require(ldx >= (edges->num_cols > 1 ? m : 0),
                "gw_gemm_tn_terms_f32: rows overlap (leading dimension below the width)");
    for (int64_t t = 0; t < num_lefts; ++t) {
      const gw_left_f32& left = lefts[t];
      gw::require(left.k >= 0, "gw_gemm_tn_terms_f32: a size is negative");
      gw::require(left.ldx >= (edges->num_rows > 1 ? left.k : 0) && left.lddw >= (left.k > 1 ? m : 0),
                  "gw_gemm_tn_terms_f32: rows overlap (leading dimension below the width)");
      require_rows("gather_matmul_tn: expected ids", left.rows, edges->num_rows, left.table_rows);
    }
    gw::gemm_tn_terms({m, lefts, num_lefts, edges, x, ldx, epilogue});
  });
}
#endif
}
