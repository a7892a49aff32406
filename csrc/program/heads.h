// Heads of attention, and products of rows by head.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace program {

// How an edge j -> i is scored by the two operands a and b, head by head: leaky(a[j] + b[i]), <b, leaky(x[j] + a[i])>
// with one vector a head, or a multiple of <a[j], b[i]>.
enum class Score { add, add2, dot };

// Settings of all heads. `by`: the slope of the leaky unit, or the factor of the product; `drop`: probability to drop
// an edge's softmax; `shared`: all heads read the same channels.
struct Heads {
  int64_t count, channels;
  double by, drop;
  uint64_t seed, stream;
  bool shared = false;
};

// What a forward pass had and made, and the gradient of what it made.
struct Attended {
  Matrix x, a, b, y;
  const float* stats;
  Matrix dy;
};

// Room for a gradient that nobody reads.
inline Matrix unread(const Matrix& room) { return {room.at, 0, room.cols}; }

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
// y[i] = sum over heads of x[i][h].
void sum_heads(const Matrix& x, int64_t heads, const Matrix& y);
// y[i][h] = x[i].
void repeat_heads(const Matrix& x, int64_t heads, const Matrix& y);

}  // namespace program
