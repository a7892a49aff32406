// Entry points of the products with a matrix per type: checks, then typed.h.
#include "graphweft/typed.h"

#include "graphweft/edge_softmax.h"
#include "graphweft/gemm_tiles.h"

GW_GEMM_TILES(extern)

namespace {

void check_weight(const gw_typed_weight* w) {
  gw::require(w && w->values && w->heads > 0 && w->in > 0 && w->out > 0, "typed: expected matrices of positive sizes");
  gw::checked_mul(gw::checked_mul(w->heads, w->in), w->out);
}

void check_pairs(const gw_typed_pairs* pairs, int64_t heads, int64_t weight_heads) {
  gw::require(pairs && pairs->entries && pairs->rows.chunk_begin, "typed: expected pairs, got null");
  gw::require(heads > 0 && (weight_heads == 1 || weight_heads == heads),
              "typed: expected one number per edge, or one per head");
}

int64_t packed_floats(const gw_typed_weight& w, int64_t types) {
  return gw::checked_mul(gw::packed_weights(w, nullptr).per_type(), types);
}

}  // namespace

extern "C" {

// Floats of room that gw_typed_matmul_f32, gw_typed_spmm_f32 and gw_typed_dots_f32 need for `types` matrices.
GW_API int gw_typed_weight_room(const gw_typed_weight* w, int64_t types, int64_t* floats) {
  return gw::guarded([&] {
    gw::require(w && types >= 0, "typed: expected matrices");
    gw_typed_weight back = *w;
    std::swap(back.in, back.out);
    *floats = std::max(packed_floats(*w, types), packed_floats(back, types));
  });
}

// Floats of room that gw_typed_outer_f32 and gw_typed_outer_rows_f32 need.
GW_API int gw_typed_outer_room(const gw_typed_rows* rows, int64_t heads, int64_t in, int64_t out, int64_t* floats) {
  return gw::guarded([&] {
    *floats = gw::checked_mul(gw::typed_contraction(*rows, heads, in, out, nullptr).per_unit(), rows->num_units);
  });
}

// y[i] = x[i] W[type of i] (+ bias[type of i])
GW_API int gw_typed_matmul_f32(const gw_typed_rows* rows, const gw_typed_weight* w, const float* bias, const float* x,
                               float* room, float* y) {
  return gw::guarded([&] {
    check_weight(w);
    gw::require(!bias || w->heads == 1, "typed_matmul: a bias needs matrices of one head");
    gw::typed_matmul(*rows, *w, bias, x, room, y);
  });
}

// out[type] = sum over its rows of x[i]; `room`: one row per unit
GW_API int gw_typed_row_sums_f32(const gw_typed_rows* rows, int64_t width, const float* x, float* room, float* out) {
  return gw::guarded([&] {
    gw::require(rows && width > 0, "typed_row_sums: expected rows of a positive width");
    gw::typed_row_sums(*rows, width, x, room, out);
  });
}

// The softmax over the in-edges of each destination, and dx from it and the gradient of its result.
GW_API int gw_edge_softmax_f32(const gw_adjacency* adj, int64_t heads, const float* x, float* out) {
  return gw::guarded([&] {
    gw::require(adj && heads > 0, "edge_softmax: expected an adjacency and heads");
    adj->wide ? gw::edge_softmax<int64_t>(*adj, heads, x, out) : gw::edge_softmax<int32_t>(*adj, heads, x, out);
  });
}
GW_API int gw_edge_softmax_grad_f32(const gw_adjacency* adj, int64_t heads, const float* s, const float* g, float* dx) {
  return gw::guarded([&] {
    gw::require(adj && heads > 0, "edge_softmax_grad: expected an adjacency and heads");
    adj->wide ? gw::edge_softmax_grad<int64_t>(*adj, heads, s, g, dx)
              : gw::edge_softmax_grad<int32_t>(*adj, heads, s, g, dx);
  });
}

// dW[type] = sum over its rows of x[i]^T y[i], head by head
GW_API int gw_typed_outer_rows_f32(const gw_typed_rows* rows, int64_t heads, int64_t in, int64_t out, const float* x,
                                   const float* y, float* room, float* result) {
  return gw::guarded([&] {
    gw::require(heads > 0 && in > 0 && out > 0, "typed_outer: expected positive sizes");
    gw::typed_outer_rows(*rows, heads, in, out, x, y, room, result);
  });
}

// y[dst] = sum over in-edges of weight[e] x[src] W[relation of e]; `turned`: from destinations to sources. `weight` has
// `weight_heads` numbers an edge, 1 or those of W, or is null. `t`: room for one row of y per pair.
GW_API int gw_typed_spmm_f32(const gw_typed_pairs* pairs, int32_t turned, const float* x, const gw_typed_weight* w,
                             const float* weight, int64_t weight_heads, float* room, float* t, float* y) {
  return gw::guarded([&] {
    check_weight(w);
    check_pairs(pairs, w->heads, weight_heads);
    const gw::typed_rows rows{x, w->heads * w->in, weight, weight_heads};
    if (pairs->wide)
      gw::typed_spmm<int64_t>(*pairs, turned != 0, rows, *w, room, t, y);
    else
      gw::typed_spmm<int32_t>(*pairs, turned != 0, rows, *w, room, t, y);
  });
}

// dW[relation] = sum over its edges of weight[e] src[src]^T dst[dst], head by head
GW_API int gw_typed_outer_f32(const gw_typed_pairs* pairs, int64_t heads, int64_t in, int64_t out, const float* src,
                              const float* dst, const float* weight, int64_t weight_heads, float* room, float* result) {
  return gw::guarded([&] {
    gw::require(in > 0 && out > 0, "typed_outer: expected positive sizes");
    check_pairs(pairs, heads, weight_heads);
    const gw::typed_rows a{src, heads * in, weight, weight_heads}, b{dst, heads * out, weight, weight_heads};
    if (pairs->wide)
      gw::typed_outer_edges<int64_t>(*pairs, heads, a, b, room, result);
    else
      gw::typed_outer_edges<int32_t>(*pairs, heads, a, b, room, result);
  });
}

// out[e] = <src[src] W[relation of e], dst[dst]>, for each of `out_heads` heads: 1 (the sum over all) or those of W
GW_API int gw_typed_dots_f32(const gw_typed_pairs* pairs, const float* src, const float* dst, const gw_typed_weight* w,
                             int64_t out_heads, float* room, float* out) {
  return gw::guarded([&] {
    check_weight(w);
    check_pairs(pairs, w->heads, out_heads);
    const gw::typed_rows a{src, w->heads * w->in, nullptr, out_heads}, b{dst, w->heads * w->out, nullptr, out_heads};
    if (pairs->wide)
      gw::typed_dots<int64_t>(*pairs, a, b, *w, room, out);
    else
      gw::typed_dots<int32_t>(*pairs, a, b, *w, room, out);
  });
}
}
