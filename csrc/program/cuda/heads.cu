#include "blas.h"
#include "device.h"
#include "heads.h"

namespace program {

namespace {

// A thread for each row and head.
__global__ void dot_rows(const float* x, const float* a, int64_t count, int64_t heads, int64_t channels, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  float total = 0.0f;
  for (int64_t c = 0; c < channels; ++c) total += x[at * channels + c] * a[at % heads * channels + c];
  y[at] = total;
}

// A thread for each element.
__global__ void spread_rows(const float* s, const float* a, const float* addend, int64_t count, int64_t heads,
                            int64_t channels, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) y[at] = s[at / channels] * a[at % (heads * channels)] + (addend ? addend[at] : 0.0f);
}

__global__ void times_rows(const float* s, const float* x, int64_t count, int64_t channels, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) y[at] = s[at / channels] * x[at];
}

// y[f][h][c] = x[c][h][f]
__global__ void turn_heads(const float* x, int64_t first, int64_t heads, int64_t second, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= first * heads * second) return;
  const int64_t f = at / (heads * first), h = at / first % heads, c = at % first;
  y[at] = x[(c * heads + h) * second + f];
}

// y[i][c] = the sum over heads of x[i][h][c].
__global__ void add_heads(const float* x, int64_t count, int64_t heads, int64_t channels, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const float* mine = x + at / channels * heads * channels + at % channels;
  float total = 0.0f;
  for (int64_t h = 0; h < heads; ++h) total += mine[h * channels];
  y[at] = total;
}

// y[i][h][c] = x[i][c].
__global__ void copy_heads(const float* x, int64_t count, int64_t heads, int64_t channels, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) y[at] = x[at / (heads * channels) * channels + at % channels];
}

}  // namespace

void head_dots(const Matrix& x, const float* a, int64_t channels, const Matrix& y) {
  const int64_t heads = x.cols / channels, count = x.rows * heads;
  LAUNCH(dot_rows, blocks_for(count), wide, x.at, a, count, heads, channels, y.at);
}

void head_products(const Matrix& s, const float* a, int64_t channels, const float* addend, const Matrix& y) {
  const int64_t count = s.rows * s.cols * channels;
  LAUNCH(spread_rows, blocks_for(count), wide, s.at, a, addend, count, s.cols, channels, y.at);
}

void head_sums(const Matrix& s, const Matrix& x, int64_t channels, float* y) {
  const int64_t count = x.rows * x.cols;
  const Matrix products{scratch(count), x.rows, x.cols};
  LAUNCH(times_rows, blocks_for(count), wide, s.at, x.at, count, channels, products.at);
  col_sum(products, y);
}

void head_matmul(const Matrix& x, const Matrix& w, int64_t heads, Weight form, const Matrix& y) {
  const int64_t in = x.cols / heads, out = y.cols / heads;
  const bool turned = form == Weight::transposed;
  for (int64_t h = 0; h < heads; ++h)
    gemm({x.at + h * in, x.rows, in, x.cols},
         {w.at + h * (turned ? in : out), turned ? out : in, turned ? in : out, w.cols}, form,
         {y.at + h * out, y.rows, out, y.cols}, false);
}

void head_outer(const Matrix& x, const Matrix& g, int64_t heads, const Matrix& dw, float* room) {
  const int64_t first = x.cols / heads, second = g.cols / heads, width = heads * second;
  float* to = room ? room : dw.at;
  for (int64_t h = 0; h < heads; ++h)
    gemm_transposed({x.at + h * first, x.rows, first, x.cols}, {g.at + h * second, g.rows, second, g.cols},
                    {to + h * second, first, second, width});
  const int64_t count = first * heads * second;
  if (room) LAUNCH(turn_heads, blocks_for(count), wide, room, first, heads, second, dw.at);
}

void sum_heads(const Matrix& x, int64_t heads, const Matrix& y) {
  const int64_t count = y.rows * y.cols;
  LAUNCH(add_heads, blocks_for(count), wide, x.at, count, heads, y.cols, y.at);
}

void repeat_heads(const Matrix& x, int64_t heads, const Matrix& y) {
  const int64_t count = y.rows * y.cols;
  LAUNCH(copy_heads, blocks_for(count), wide, x.at, count, heads, x.cols, y.at);
}

}  // namespace program
