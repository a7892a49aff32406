// An entry point over spmm.h: checks, the distance of prefetches, the product.
#pragma once

#include "graphweft/spmm.h"

namespace gw {

inline void check_spmm(const gw_adjacency* adj, int64_t width) {
  require(adj && adj->num_rows >= 0 && adj->num_cols >= 0 && adj->num_edges >= 0 && width >= 0,
          "spmm: expected an adjacency and a width >= 0");
  require(adj->indptr || adj->num_rows == 0, "spmm: expected indptr, got null");
  require(adj->indices || adj->stretches || adj->num_edges == 0, "spmm: expected indices, got null");
}

// A coefficient times a number that is read now, where there is one.
inline double times(double coef, const float* factor) { return factor ? coef * double(*factor) : coef; }

template <class E, class P = E>
int checked_spmm(const gw_adjacency* adj, const typename E::stored* x, int64_t ldx, int64_t width,
                 const typename E::real* weight, const typename E::real* src_scale, double self_coef, int32_t mean,
                 const gw_epilogue_f32* stages, int32_t prefetch, typename P::stored* panel, bool plain,
                 typename E::stored* y, int64_t ldy, float* wide = nullptr) {
  return guarded([&] {
    check_spmm(adj, width);
    if (width == 0) return;
    if (adj->num_rows == 0) {
      if (stages && stages->col_sum) std::fill_n(stages->col_sum, width, 0.0f);
      return;
    }
    checked_mul(adj->num_rows, ldy);
    checked_mul(checked_mul(adj->num_cols, ldx), int64_t(sizeof(*x)));
    const int64_t tile_bytes = std::min<int64_t>(panel ? 128 : 512, width * int64_t(sizeof(*panel)));
    const int ahead = prefetch >= 0 ? prefetch : prefetch_distance(adj->num_cols, tile_bytes);
    const spmm_operands<E, P> operands{
        x, ldx, weight, src_scale, typename E::real(self_coef), mean != 0, stages, ahead, panel, plain, y, ldy, wide};
    spmm(*adj, operands, width);
  });
}

}  // namespace gw
