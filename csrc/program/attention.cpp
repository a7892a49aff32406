#include "attention.h"

#include "graphweft/attention_grad.h"
#include "graphweft/head_rows.h"

namespace program {

namespace {

gw_attention_f32 operands(const Heads& heads, const Matrix& x, const Matrix& src, const Matrix& dst) {
  gw_attention_f32 given = {};
  given.score = gw_score_add;
  given.heads = heads.count;
  given.channels = heads.channels;
  given.slope = heads.slope;
  given.scale = 1.0;
  given.drop = heads.drop;
  given.seed = heads.seed;
  given.stream = heads.stream;
  given.value = x.at;
  given.src = src.at;
  given.dst = dst.at;
  return given;
}

}  // namespace

void attend(const gw_adjacency& edges, const Heads& heads, const Matrix& x, const Matrix& src, const Matrix& dst,
            const Matrix& y, float* stats) {
  gw::attend<gw_score_add>(edges, operands(heads, x, src, dst), y.at, stats);
}

void attend_grad(const gw_adjacency& edges, const gw_adjacency& back, const Heads& heads, const Attended& given,
                 const Matrix& dx, const Matrix& dsrc, const Matrix& ddst, float* room) {
  const gw_attention_grad_f32 made = {dx.at, dsrc.at, ddst.at, nullptr, nullptr};
  gw::attend_backward<gw_score_add>(edges, back, operands(heads, given.x, given.src, given.dst), given.stats,
                                    given.y.at, given.dy.at, made, room);
}

void head_dots(const Matrix& x, const float* a, int64_t channels, const Matrix& y) {
  gw::head_dots(x.rows, x.cols / channels, channels, x.at, a, y.at);
}

void head_products(const Matrix& s, const float* a, int64_t channels, const float* addend, const Matrix& y) {
  gw::head_products(s.rows, s.cols, channels, s.at, a, addend, y.at);
}

void head_sums(const Matrix& s, const Matrix& x, int64_t channels, float* y) {
  gw::head_sums(s.rows, s.cols, channels, s.at, x.at, y);
}

}  // namespace program
