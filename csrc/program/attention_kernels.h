// What attention of one kind of scores is made of. Each kind is compiled in a file of its own.
#pragma once

#include "attention.h"
#include "attention_operands.h"

namespace program {

template <Score S>
void Attention<S>::forward(const gw_adjacency& edges, const Heads& heads, const Matrix& x, const Matrix& a,
                           const Matrix& b, const Matrix& y, float* stats) {
  gw::attend<score_of<S>()>(edges, operands<S>(heads, x, a, b), y.at, stats);
}

template <Score S>
void Attention<S>::backward(const gw_adjacency& edges, const gw_adjacency& back, const Heads& heads,
                            const Attended& given, const Matrix& dx, const Matrix& da, const Matrix& db, float* room,
                            float* slopes) {
  gw::attend_backward<score_of<S>()>(edges, back, operands<S>(heads, given.x, given.a, given.b), given.stats,
                                     given.y.at, given.dy.at, gradients<S>(dx, da, db, slopes), room);
}

}  // namespace program
