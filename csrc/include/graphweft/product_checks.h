// What entry points of dense products refuse, for float32 and rounded operands alike.
#pragma once

#include <cstdint>

#include "graphweft/abi.h"
#include "graphweft/csr.h"

namespace gw {

// Rows of a table of `count` rows, or the rows as they are where `rows` is null.
inline void require_rows(const char* who, const int64_t* rows, int64_t n, int64_t count) {
  if (!rows) return;
  require(count >= 0, "gemm: a size is negative");
  require_ids(who, rows, n, count);
}

inline void require_product(int64_t n, int64_t k, int64_t m, int64_t ldx, int64_t ldw, int64_t ldy, const int64_t* rows,
                            int64_t table_rows) {
  require(n >= 0 && k >= 0 && m >= 0, "gemm_nn: a size is negative");
  require(ldx >= (n > 1 ? k : 0) && ldy >= (n > 1 ? m : 0) && ldw >= 0,
          "gemm_nn: rows overlap (leading dimension below the width)");
  require_rows("gather_matmul: expected ids", rows, n, table_rows);
}

// Products read their stages in float.
inline void require_float_stages(const gw_epilogue_f32* epilogue) {
  require(!epilogue || (!epilogue->half_mask && !epilogue->half_addend), "gemm: expected stages in float32");
}

inline void require_terms(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms, int64_t ldy) {
  require(n >= 0 && m >= 0 && num_terms >= 0, "gemm_terms: a size is negative");
  require(ldy >= (n > 1 ? m : 0), "gemm_terms: rows overlap (leading dimension below the width)");
  for (int64_t t = 0; t < num_terms; ++t) {
    const gw_term_f32& term = terms[t];
    require(term.k >= 0 && term.ldw >= 0, "gemm_terms: a size is negative");
    require(term.ldx >= (n > 1 ? term.k : 0) && ((!term.kept && !term.half_kept) || term.ld_kept >= term.k),
            "gemm_terms: rows overlap (leading dimension below the width)");
    require(!term.edges || (term.edges->num_rows == n && !term.rows),
            "gemm_terms: expected sums over one row of edges per row");
    require_rows("gather_matmul: expected ids", term.rows, n, term.table_rows);
  }
}

inline void require_contraction(int64_t n, int64_t k, int64_t m, int64_t ldx, int64_t ldg, int64_t lddw,
                                const int64_t* rows, int64_t table_rows) {
  require(n >= 0 && k >= 0 && m >= 0, "gemm_tn: a size is negative");
  require(ldx >= (n > 1 ? k : 0) && ldg >= (n > 1 ? m : 0) && lddw >= (k > 1 ? m : 0),
          "gemm_tn: rows overlap (leading dimension below the width)");
  require_rows("gather_matmul_tn: expected ids", rows, n, table_rows);
}

inline void require_lefts(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                          int64_t ldx) {
  require(m >= 0 && num_lefts >= 0 && edges && edges->num_rows >= 0, "gemm_tn_terms: a size is negative");
  require(ldx >= (edges->num_cols > 1 ? m : 0), "gemm_tn_terms: rows overlap (leading dimension below the width)");
  for (int64_t t = 0; t < num_lefts; ++t) {
    const gw_left_f32& left = lefts[t];
    require(left.k >= 0, "gemm_tn_terms: a size is negative");
    require(left.ldx >= (edges->num_rows > 1 ? left.k : 0) && left.lddw >= (left.k > 1 ? m : 0),
            "gemm_tn_terms: rows overlap (leading dimension below the width)");
    require_rows("gather_matmul_tn: expected ids", left.rows, edges->num_rows, left.table_rows);
  }
}

}  // namespace gw
