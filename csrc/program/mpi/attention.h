// Attention of a rank's own nodes: softmax-weighted sums over in-edges, head by head. Rows of ghosts travel while rows
// that need none are computed; what flows back to ghosts is sent to their owners.
#pragma once

#include "graph.h"
#include "heads.h"

namespace program {

template <Score S>
struct Attention {
  // y[i] = sum over edges j -> i of softmax(score) x[j]; `stats` keeps what gradients read, unless null.
  static void forward(const Edges& edges, const Heads& heads, const Matrix& x, const Matrix& a, const Matrix& b,
                      const Matrix& y, float* stats);
  // Gradients of x, a and b; the rows of ghosts behind x and a are those that `forward` received. `room` holds four
  // numbers a head of every destination.
  static void backward(const Edges& edges, const Back& back, const Heads& heads, const Attended& given,
                       const Matrix& dx, const Matrix& da, const Matrix& db, float* room);
};

}  // namespace program
