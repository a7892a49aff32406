// Entry points of margins between in-edges: checks, then margin.h.
#include "graphweft/margin.h"

namespace {

void check(const gw_adjacency* adj, const void* scores, int64_t heads, const void* out) {
  gw::require(adj && (adj->indptr || adj->num_rows == 0), "edge_margins: expected an adjacency, got null");
  gw::require(heads > 0, "edge_margins: expected at least one score per edge");
  gw::require(adj->num_edges == 0 || (scores && out), "edge_margins: expected scores and room, got null");
  gw::checked_mul(gw::checked_mul(adj->num_edges, heads), int64_t(sizeof(double)));
}

template <class Real>
int forward(const gw_adjacency* adj, const Real* scores, int64_t heads, Real* out) {
  return gw::guarded([&] {
    check(adj, scores, heads, out);
    adj->wide ? gw::edge_margins<Real, int64_t>(*adj, scores, heads, out)
              : gw::edge_margins<Real, int32_t>(*adj, scores, heads, out);
  });
}

template <class Real>
int backward(const gw_adjacency* adj, const Real* scores, const Real* dout, int64_t heads, int32_t closed, Real* grad) {
  return gw::guarded([&] {
    check(adj, scores, heads, grad);
    gw::require(adj->num_edges == 0 || dout, "edge_margins: expected gradients, got null");
    adj->wide ? gw::edge_margins_grad<Real, int64_t>(*adj, scores, dout, heads, closed != 0, grad)
              : gw::edge_margins_grad<Real, int32_t>(*adj, scores, dout, heads, closed != 0, grad);
  });
}

}  // namespace

extern "C" {

// out[e][h] = sum over in-edges k of e's destination of max(0, scores[e][h] - scores[k][h]); [num_edges, heads] by id.
GW_API int gw_edge_margins_f32(const gw_adjacency* adj, const float* scores, int64_t heads, float* out) {
  return forward(adj, scores, heads, out);
}
GW_API int gw_edge_margins_f64(const gw_adjacency* adj, const double* scores, int64_t heads, double* out) {
  return forward(adj, scores, heads, out);
}

// The gradient of the scores; `closed`: pairs with equal scores count.
GW_API int gw_edge_margins_grad_f32(const gw_adjacency* adj, const float* scores, const float* dout, int64_t heads,
                                    int32_t closed, float* grad) {
  return backward(adj, scores, dout, heads, closed, grad);
}
GW_API int gw_edge_margins_grad_f64(const gw_adjacency* adj, const double* scores, const double* dout, int64_t heads,
                                    int32_t closed, double* grad) {
  return backward(adj, scores, dout, heads, closed, grad);
}
}
