// Attention of a program: softmax-weighted sums over in-edges, head by head.
#pragma once

#include "graphweft/adjacency.h"
#include "heads.h"

namespace program {

template <Score S>
struct Attention {
  // y[i] = sum over edges j -> i of softmax(score) x[j]; `stats` keeps what gradients read, unless null.
  static void forward(const gw_adjacency& edges, const Heads& heads, const Matrix& x, const Matrix& a, const Matrix& b,
                      const Matrix& y, float* stats);
  // Gradients of x, a and b. `back` has the sources as rows; `room` holds four numbers a head of every destination,
  // `slopes` the gradients of all scores, which are computed twice without it.
  static void backward(const gw_adjacency& edges, const gw_adjacency& back, const Heads& heads, const Attended& given,
                       const Matrix& dx, const Matrix& da, const Matrix& db, float* room, float* slopes = nullptr);
};

}  // namespace program
