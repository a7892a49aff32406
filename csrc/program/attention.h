// Attention of a program: softmax-weighted sums over in-edges, head by head, and products of rows by head.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace program {

// Heads of additive attention. `slope`: of the leaky unit; `drop`: probability to drop an edge's softmax; `shared`: all
// heads read the same channels.
struct Heads {
  int64_t count, channels;
  double slope, drop;
  uint64_t seed, stream;
  bool shared = false;
};

// y[i] = sum over edges j -> i of softmax(leaky(src[j] + dst[i])) x[j]; `stats` keeps what gradients read, unless null.
void attend(const gw_adjacency& edges, const Heads& heads, const Matrix& x, const Matrix& src, const Matrix& dst,
            const Matrix& y, float* stats);

// What a forward pass had and made, and the gradient of what it made.
struct Attended {
  Matrix x, src, dst, y;
  const float* stats;
  Matrix dy;
};

// Gradients of x, src and dst; `back` has the sources as rows, `room` holds four numbers a head of every destination.
void attend_grad(const gw_adjacency& edges, const gw_adjacency& back, const Heads& heads, const Attended& given,
                 float* dx, const Matrix& dsrc, const Matrix& ddst, float* room);

// y[i][h] = <x[i], a>_h; a has a row of `channels` numbers for each head.
void head_dots(const Matrix& x, const float* a, int64_t channels, const Matrix& y);
// y[i] = s[i][h] a[h] + addend[i], without addend where it is null.
void head_products(const Matrix& s, const float* a, int64_t channels, const float* addend, const Matrix& y);
// y[h] = sum over rows of s[i][h] x[i].
void head_sums(const Matrix& s, const Matrix& x, int64_t channels, float* y);
// y[i][h] = x[i][h] w_h; w has the columns of all heads' matrices side by side.
void head_matmul(const Matrix& x, const Matrix& w, int64_t heads, Weight form, const Matrix& y);
// dw_h = sum over rows of x[i][h]^T g[i][h], for w as above. With `room`, as large as dw, it is the transposed of that,
// and the products are made there first.
void head_outer(const Matrix& x, const Matrix& g, int64_t heads, const Matrix& dw, float* room);

}  // namespace program
