// What attention of one kind of scores is made of. Each kind is compiled in a file of its own.
#pragma once

#include "attention.h"
#include "attention_operands.h"

namespace program {

template <Score S>
void Attention<S>::forward(const Edges& edges, const Heads& heads, const Matrix& x, const Matrix& a, const Matrix& b,
                           const Matrix& y, float* stats) {
  constexpr gw_score kind = score_of<S>();
  const int64_t inner = edges.inner->num_rows();
  edges.halo->start(x);
  if (S != Score::add2) edges.halo->start(a);
  gw::attend<kind>(edges.inner->native(), operands<S>(heads, x, a, b), y.at, stats);
  edges.halo->wait();
  gw_attention_f32 rest = operands<S>(heads, x, a, b);
  rest.dst += inner * (S == Score::add2 ? a : b).cols;
  const int64_t kept = gw::attention_problem<kind>(rest).stats_width();
  gw::attend<kind>(edges.outer->native(), rest, y.at + inner * y.cols, stats ? stats + inner * kept : nullptr);
}

template <Score S>
void Attention<S>::backward(const Edges& edges, const Back& back, const Heads& heads, const Attended& given,
                            const Matrix& dx, const Matrix& da, const Matrix& db, float* room) {
  constexpr gw_score kind = score_of<S>();
  constexpr bool has_keys = S != Score::add2;
  const int64_t own = edges.all->num_rows();
  const gw_attention_f32 all = operands<S>(heads, given.x, given.a, given.b);
  const gw_attention_grad_f32 made = gradients<S>(dx, da, db, nullptr);
  const gw::attention_problem<kind> problem(all);
  const gw::attention_records<kind> records(problem, own, given.stats, given.y.at, given.dy.at, made.dst, room);
  // Rows of ghosts first, as they travel.
  gw_attention_f32 ghosts = all;
  gw_attention_grad_f32 theirs = made;
  ghosts.value += own * given.x.cols;
  theirs.value += own * given.x.cols;
  if (has_keys) {
    ghosts.src += own * given.a.cols;
    theirs.src += own * given.a.cols;
  }
  const gw::attention_problem<kind> problem_of_ghosts(ghosts);
  gw::attend_backward_pass<kind, true>(problem_of_ghosts, back.ghosts->native(), records, given.dy.at, theirs);
  if (dx.rows > 0) back.halo->give_back(dx);
  if (has_keys) back.halo->give_back(da);
  gw::attend_backward_pass<kind, true>(problem, back.own->native(), records, given.dy.at, made);
  if (S != Score::add) gw::attend_backward_pass<kind, false>(problem, edges.all->native(), records, given.dy.at, made);
  back.halo->take_back();
}

}  // namespace program
