// Sparse times dense: checks, then spmm.h.
#include "graphweft/spmm.h"

namespace {

void check_adjacency(const gw_adjacency* adj, int64_t width) {
  gw::require(adj && adj->num_rows >= 0 && adj->num_cols >= 0 && adj->num_edges >= 0 && width >= 0,
              "spmm: expected an adjacency and a width >= 0");
  gw::require(adj->indptr || adj->num_rows == 0, "spmm: expected indptr, got null");
  gw::require(adj->indices || adj->num_edges == 0, "spmm: expected indices, got null");
}

template <class E>
int run(const gw_adjacency* adj, const typename E::stored* x, int64_t ldx, int64_t width,
        const typename E::real* weight, const typename E::real* src_scale, double self_coef, int32_t mean,
        const gw_epilogue_f32* stages, int32_t prefetch, typename E::stored* panel, typename E::stored* y,
        int64_t ldy) {
  return gw::guarded([&] {
    check_adjacency(adj, width);
    gw::require(self_coef == 0 || adj->num_rows <= adj->num_cols, "spmm: a self term needs a square adjacency");
    if (width == 0) return;
    if (adj->num_rows == 0) {
      if (stages && stages->col_sum) std::fill_n(stages->col_sum, width, 0.0f);
      return;
    }
    gw::checked_mul(adj->num_rows, ldy);
    gw::checked_mul(gw::checked_mul(adj->num_cols, ldx), int64_t(sizeof(*x)));
    const int64_t tile_bytes = std::min<int64_t>(panel ? 128 : 512, width * int64_t(sizeof(*x)));
    const int ahead = prefetch >= 0 ? prefetch : gw::prefetch_distance(adj->num_cols, tile_bytes);
    gw::spmm<E>(*adj, {x, ldx, weight, src_scale, typename E::real(self_coef), mean != 0, stages, ahead, panel, y, ldy},
                width);
  });
}

}  // namespace

extern "C" {

// y[i] = epilogue(reduce_{j in row i} weight[e] * src_scale[j] * x[j] + self_coef * src_scale[i] * x[i]); `mean`: the
// neighbours' sum is divided by the row's number of edges. `prefetch`: distance in edges, 0 none, negative chosen here.
// `panel`: room for num_cols rows of 192 bytes (worth it when x is wide, large and each row is read many times), or
// null.
GW_API int gw_spmm_f32(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, const float* weight,
                       const float* src_scale, double self_coef, int32_t mean, const gw_epilogue_f32* stages,
                       int32_t prefetch, float* panel, float* y, int64_t ldy) {
  return run<gw::f32>(adj, x, ldx, width, weight, src_scale, self_coef, mean, stages, prefetch, panel, y, ldy);
}

#ifndef GW_ONLY_F32
GW_API int gw_spmm_f64(const gw_adjacency* adj, const double* x, int64_t ldx, int64_t width, const double* weight,
                       const double* src_scale, double self_coef, int32_t mean, int32_t prefetch, double* panel,
                       double* y, int64_t ldy) {
  return run<gw::f64>(adj, x, ldx, width, weight, src_scale, self_coef, mean, nullptr, prefetch, panel, y, ldy);
}

// bfloat16 rows; weights, scales and sums are float32.
GW_API int gw_spmm_bf16(const gw_adjacency* adj, const uint16_t* x, int64_t ldx, int64_t width, const float* weight,
                        const float* src_scale, double self_coef, int32_t mean, int32_t prefetch, uint16_t* panel,
                        uint16_t* y, int64_t ldy) {
  return run<gw::bf16>(adj, x, ldx, width, weight, src_scale, self_coef, mean, nullptr, prefetch, panel, y, ldy);
}
#endif
}
