// Entry points of the kernels on single edges: checks, then sddmm.h.
#include "graphweft/sddmm.h"

#include <cmath>

#include "graphweft/id_type.h"

namespace {

template <class E>
int run(const gw_adjacency* adj, const typename E::real* a, int64_t lda, const typename E::real* b, int64_t ldb,
        int64_t width, typename E::real* out) {
  return gw::guarded([&] {
    gw::require(adj && width >= 0 && (adj->indices || adj->num_edges == 0),
                "sddmm_dot: expected an adjacency, got null");
    if (width == 0) std::fill_n(out, adj->num_edges, typename E::real(0));
    const int64_t tile_bytes = std::min<int64_t>(256, width * int64_t(sizeof(*b)));
    const gw::dot_operands<E> operands{a, lda, b, ldb, gw::prefetch_distance(adj->num_cols, tile_bytes), out};
    gw::with_id_type(adj->wide != 0, [&](auto id) { gw::sddmm_dot<E, decltype(id)>(*adj, operands, width); });
  });
}

}  // namespace

extern "C" {

// out[e] = <a[row of e], b[column of e]>, e the edge's id.
GW_API int gw_sddmm_dot_f32(const gw_adjacency* adj, const float* a, int64_t lda, const float* b, int64_t ldb,
                            int64_t width, float* out) {
  return run<gw::f32>(adj, a, lda, b, ldb, width, out);
}
#ifndef GW_ONLY_F32
GW_API int gw_sddmm_dot_f64(const gw_adjacency* adj, const double* a, int64_t lda, const double* b, int64_t ldb,
                            int64_t width, double* out) {
  return run<gw::f64>(adj, a, lda, b, ldb, width, out);
}
#endif

// Dropout of the stored entries of a nodes x `features` matrix, by entry position; rows of `adj` are nodes, or features
// when `turned`. Keeps exactly the elements that gw_dropout_f32 keeps of the dense matrix. `out` may be `values`.
GW_API int gw_sparse_dropout_f32(const gw_adjacency* adj, const float* values, int64_t features, int32_t turned,
                                 double p, uint64_t seed, uint64_t stream, float* out) {
  return gw::guarded([&] {
    gw::require(adj && (adj->indices || adj->num_edges == 0), "sparse_dropout: expected an adjacency, got null");
    gw::require(p >= 0.0 && p <= 1.0, "sparse_dropout: expected a probability in [0, 1]");
    gw::checked_mul(turned ? adj->num_cols : adj->num_rows, features);
    const auto threshold = uint32_t(std::lround(p * 65536.0));
    const float scale = p < 1.0 ? float(1.0 / (1.0 - p)) : 0.0f;
    gw::with_id_type(adj->wide != 0, [&](auto id) {
      gw::drop_entries<decltype(id)>(*adj, values, features, turned != 0, threshold, scale, seed, stream, out);
    });
  });
}
}
