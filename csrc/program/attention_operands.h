// The operands of attention as its kernels take them.
#pragma once

#include "graphweft/attention_grad.h"
#include "heads.h"

namespace program {

template <Score S>
constexpr gw_score score_of() {
  return S == Score::add ? gw_score_add : S == Score::add2 ? gw_score_add2 : gw_score_dot;
}

template <Score S>
gw_attention_f32 operands(const Heads& heads, const Matrix& x, const Matrix& a, const Matrix& b) {
  gw_attention_f32 given = {};
  given.score = score_of<S>();
  given.shared = heads.shared;
  given.heads = heads.count;
  given.channels = heads.channels;
  given.slope = S == Score::dot ? 1.0 : heads.by;
  given.scale = S == Score::dot ? heads.by : 1.0;
  given.drop = heads.drop;
  given.seed = heads.seed;
  given.stream = heads.stream;
  given.value = x.at;
  if (S != Score::add2) given.src = a.at;
  given.dst = S == Score::add2 ? a.at : b.at;
  if (S == Score::add2) given.vector = b.at;
  return given;
}

template <Score S>
gw_attention_grad_f32 gradients(const Matrix& dx, const Matrix& da, const Matrix& db, float* slopes) {
  if (S == Score::add2) return {dx.at, nullptr, da.at, db.at, slopes};
  return {dx.at, da.at, db.at, nullptr, slopes};
}

}  // namespace program
