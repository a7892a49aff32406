// Attention over in-edges, forward and backward: checks, then attention.h. Each kind of score is compiled in a file of
// its own: together they would be what every build waits for.
#include "attention_scores.h"
#include "graphweft/head_rows.h"

GW_ATTENTION(extern, gw_score_add)
GW_ATTENTION(extern, gw_score_add2)
GW_ATTENTION(extern, gw_score_dot)

namespace {

void check(const gw_adjacency* adj, const gw_attention_f32* o) {
  gw::require(adj && (adj->indices || adj->num_edges == 0) && (adj->indptr || adj->num_rows == 0),
              "attention: expected an adjacency, got null");
  gw::require(o && o->heads > 0 && o->channels > 0, "attention: expected at least one head and one channel");
  gw::require(o->score >= gw_score_add && o->score <= gw_score_dot, "attention: expected a known score");
  gw::require(!o->shared || o->score == gw_score_add, "attention: expected values per head but for sums of scores");
  gw::require(o->drop >= 0.0 && o->drop < 1.0, "attention: expected a probability in [0, 1)");
  gw::require(o->slope >= 0.0 && o->slope <= 1.0, "attention: expected a slope in [0, 1]");
  const int64_t width = gw::checked_mul(o->heads, o->channels);
  gw::checked_mul(gw::checked_mul(std::max(adj->num_rows, adj->num_cols), width), 2 * int64_t(sizeof(float)));
}

void check_heads(int64_t n, int64_t heads, int64_t channels) {
  gw::require(n >= 0 && heads > 0 && channels > 0, "heads: expected at least one head and one channel");
  gw::checked_mul(gw::checked_mul(gw::checked_mul(heads, channels), n), int64_t(sizeof(float)));
}

}  // namespace

extern "C" {

// out[i][h] = <x[i], a>_h; x [n, H C], a [H C], out [n, H].
GW_API int gw_head_dots_f32(int64_t n, int64_t heads, int64_t channels, const float* x, const float* a, float* out) {
  return gw::guarded([&] {
    check_heads(n, heads, channels);
    gw::head_dots(n, heads, channels, x, a, out);
  });
}

// y[i] = s[i][h] a[h] + x[i]; x may be y, or null: 0.
GW_API int gw_head_products_f32(int64_t n, int64_t heads, int64_t channels, const float* s, const float* a,
                                const float* x, float* y) {
  return gw::guarded([&] {
    check_heads(n, heads, channels);
    gw::head_products(n, heads, channels, s, a, x, y);
  });
}

// out[h] = sum of s[i][h] x[i], in a fixed order.
GW_API int gw_head_sums_f32(int64_t n, int64_t heads, int64_t channels, const float* s, const float* x, float* out) {
  return gw::guarded([&] {
    check_heads(n, heads, channels);
    gw::head_sums(n, heads, channels, s, x, out);
  });
}

// out [num_rows, H C]; stats [num_rows, 2 H]: maximum and inverse sum of each row, for `add` [num_rows, 3 H + H C], or
// null when no backward pass follows.
GW_API int gw_attend_f32(const gw_adjacency* adj, const gw_attention_f32* operands, float* out, float* stats) {
  return gw::guarded([&] {
    check(adj, operands);
    if (operands->score == gw_score_add) return gw::attend<gw_score_add>(*adj, *operands, out, stats);
    if (operands->score == gw_score_add2) return gw::attend<gw_score_add2>(*adj, *operands, out, stats);
    gw::attend<gw_score_dot>(*adj, *operands, out, stats);
  });
}

// Gradients from out, stats and dout; `transposed` is the adjacency with the sources as rows and the same edge ids;
// `room` [num_rows, 4 H] is overwritten.
GW_API int gw_attend_grad_f32(const gw_adjacency* adj, const gw_adjacency* transposed, const gw_attention_f32* operands,
                              const float* stats, const float* out, const float* dout,
                              const gw_attention_grad_f32* grad, float* room) {
  return gw::guarded([&] {
    check(adj, operands);
    check(transposed, operands);
    gw::require(adj->num_rows == transposed->num_cols && adj->num_cols == transposed->num_rows,
                "attention: expected an adjacency and its transpose");
    if (operands->score == gw_score_add)
      return gw::attend_backward<gw_score_add>(*adj, *transposed, *operands, stats, out, dout, *grad, room);
    if (operands->score == gw_score_add2)
      return gw::attend_backward<gw_score_add2>(*adj, *transposed, *operands, stats, out, dout, *grad, room);
    gw::attend_backward<gw_score_dot>(*adj, *transposed, *operands, stats, out, dout, *grad, room);
  });
}
}
