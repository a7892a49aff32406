// Entry points of the dense products whose operands are rounded to bfloat16. Sums, epilogues and results are float32.
#include "graphweft/gemm_half.h"

#include "graphweft/gemm_tiles.h"
#include "graphweft/gemm_tn_half.h"
#include "graphweft/product_checks.h"

GW_GEMM_TILES(extern)

extern "C" {

// Products of rounded operands are made by the best unit of at most `most` (2 matrix tiles, 1 dot products of pairs, 0
// vectors) from now on; *used: which that is on this processor.
GW_API int gw_half_unit(int32_t most, int32_t* used) {
  return gw::guarded([&] {
    gw::require(most >= 0 && most <= 2, "gw_half_unit: expected 0, 1 or 2");
    gw::limit_half_unit(most);
    *used = gw::find_half_unit().which;
  });
}

// gw_gemm_nn_f32 of operands rounded to bfloat16.
GW_API int gw_gemm_nn_f32_bf16(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w,
                               int64_t ldw, int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y,
                               int64_t ldy, const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require_product(n, k, m, ldx, ldw, ldy, rows, table_rows);
    gw::require_float_stages(epilogue);
    const gw_term_f32 term{k, x, ldx, table_rows, rows, nullptr, nullptr, nullptr, 0, w, ldw, w_transposed, 0, nullptr};
    gw::gemm_half_terms(n, m, &term, 1, epilogue, y, nullptr, ldy);
  });
}

// gw_gemm_terms_f32 of operands rounded to bfloat16: sums over edges are rounded after they are scaled, and kept as
// they were or rounded. y is float, or bfloat16 where `half` is not 0.
GW_API int gw_gemm_terms_f32_bf16(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                                  const gw_epilogue_f32* epilogue, void* y, int64_t ldy, int32_t half) {
  return gw::guarded([&] {
    gw::require_terms(n, m, terms, num_terms, ldy);
    gw::require_float_stages(epilogue);
    for (int64_t t = 0; t < num_terms; ++t)
      gw::require(!terms[t].kept || !terms[t].half_kept, "gw_gemm_terms_f32_bf16: expected sums to be kept once");
    gw::gemm_half_terms(n, m, terms, num_terms, epilogue, half ? nullptr : static_cast<float*>(y),
                        half ? static_cast<uint16_t*>(y) : nullptr, ldy);
  });
}

// gw_gemm_tn_f32 of operands rounded to bfloat16, g after it is scaled; column sums are those of g as it is.
GW_API int gw_gemm_tn_f32_bf16(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g,
                               int64_t ldg, const float* row_scale, float* dw, int64_t lddw, float* col_sum,
                               const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require_contraction(n, k, m, ldx, ldg, lddw, rows, table_rows);
    const gw_left_f32 left{k, x, ldx, table_rows, rows, dw, lddw, 0};
    gw::contract_half({n, m, &left, 1, nullptr, {g, ldg, false}, row_scale, nullptr, col_sum});
  });
}

// The same where x, g or both lie in bfloat16, as half_x and half_g say.
GW_API int gw_gemm_tn_half_f32_bf16(int64_t n, int64_t k, int64_t m, const void* x, int64_t ldx, int32_t half_x,
                                    const void* g, int64_t ldg, int32_t half_g, float* dw, int64_t lddw, float* col_sum,
                                    const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require_contraction(n, k, m, ldx, ldg, lddw, rows, table_rows);
    const gw_left_f32 left{k, x, ldx, table_rows, rows, dw, lddw, half_x};
    gw::contract_half({n, m, &left, 1, nullptr, {g, ldg, half_g != 0}, nullptr, nullptr, col_sum});
  });
}

// gw_gemm_tn_terms_f32 of operands rounded to bfloat16, sums over edges after their epilogue; column sums are those of
// the sums as they are. Rows of x are float, or bfloat16 where `half` is not 0.
GW_API int gw_gemm_tn_terms_f32_bf16(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                                     const void* x, int64_t ldx, int32_t half, const gw_epilogue_f32* epilogue) {
  return gw::guarded([&] {
    gw::require_lefts(m, lefts, num_lefts, edges, ldx);
    gw::contract_half({edges->num_rows,
                       m,
                       lefts,
                       num_lefts,
                       edges,
                       {x, ldx, half != 0},
                       nullptr,
                       epilogue,
                       epilogue ? epilogue->col_sum : nullptr});
  });
}
}
