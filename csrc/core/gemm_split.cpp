// Entry points of the dense products of floats that are split for matrix tiles. Without tiles they are those of
// gemm.cpp.
#include "graphweft/gemm_split.h"

#include "graphweft/cpu_level.h"
#include "graphweft/gemm_tiles.h"
#include "graphweft/gemm_tn_split.h"
#include "graphweft/gemm_tn_terms.h"
#include "graphweft/product_checks.h"

GW_GEMM_TILES(extern)

namespace {

bool has_tiles() {
  static const bool found = gw::cpu_has_tiles();
  return found;
}

void multiply(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms, const gw_epilogue_f32* epilogue,
              float* y, int64_t ldy) {
#if defined(GW_MATRIX_TILES)
  if (has_tiles()) return gw::split_product(n, m, terms, num_terms, epilogue, y, ldy).run();
#endif
  gw::gemm_terms(n, m, terms, num_terms, epilogue, y, ldy);
}

// Whether the contraction is made.
bool contract([[maybe_unused]] const gw::half_contraction& args) {
#if defined(GW_MATRIX_TILES)
  if (has_tiles()) return gw::contract_split(args);
#endif
  return false;
}

}  // namespace

extern "C" {

// gw_gemm_nn_f32 by matrix tiles.
GW_API int gw_gemm_nn_f32_split(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w,
                                int64_t ldw, int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y,
                                int64_t ldy, const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require_product(n, k, m, ldx, ldw, ldy, rows, table_rows);
    gw::require_float_stages(epilogue);
    const gw_term_f32 term{k, x, ldx, table_rows, rows, nullptr, nullptr, nullptr, 0, w, ldw, w_transposed, 0, nullptr};
    multiply(n, m, &term, 1, epilogue, y, ldy);
  });
}

// gw_gemm_terms_f32 by matrix tiles.
GW_API int gw_gemm_terms_f32_split(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                                   const gw_epilogue_f32* epilogue, float* y, int64_t ldy) {
  return gw::guarded([&] {
    gw::require_terms(n, m, terms, num_terms, ldy);
    gw::require_float_stages(epilogue);
    for (int64_t t = 0; t < num_terms; ++t)
      gw::require(!terms[t].half_kept, "gw_gemm_terms_f32_split: expected sums to be kept in float32");
    multiply(n, m, terms, num_terms, epilogue, y, ldy);
  });
}

// gw_gemm_tn_f32 by matrix tiles.
GW_API int gw_gemm_tn_f32_split(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g,
                                int64_t ldg, const float* row_scale, float* dw, int64_t lddw, float* col_sum,
                                const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require_contraction(n, k, m, ldx, ldg, lddw, rows, table_rows);
    const gw_left_f32 left{k, x, ldx, table_rows, rows, dw, lddw, 0};
    if (contract({n, m, &left, 1, nullptr, {g, ldg, false}, row_scale, nullptr, col_sum})) return;
    gw::gemm_tn({n, k, m, x, ldx, g, ldg, row_scale, dw, lddw, col_sum, rows});
  });
}

// gw_gemm_tn_terms_f32 by matrix tiles; left operands are floats.
GW_API int gw_gemm_tn_terms_f32_split(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                                      const float* x, int64_t ldx, const gw_epilogue_f32* epilogue) {
  return gw::guarded([&] {
    gw::require_lefts(m, lefts, num_lefts, edges, ldx);
    for (int64_t t = 0; t < num_lefts; ++t)
      gw::require(!lefts[t].half, "gw_gemm_tn_terms_f32_split: expected left operands in float32");
    float* const col_sum = epilogue ? epilogue->col_sum : nullptr;
    if (contract({edges->num_rows, m, lefts, num_lefts, edges, {x, ldx, false}, nullptr, epilogue, col_sum})) return;
    gw::gemm_tn_terms({m, lefts, num_lefts, edges, x, ldx, epilogue});
  });
}
}
