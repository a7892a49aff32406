// Norms of rows and of columns, and what a layer norm and its gradient consist of.
#pragma once

#include <cstdint>

#include "kernels.h"

extern "C" {
GW_API int gw_batch_norm_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* weight, const float* bias,
                             double eps, int32_t relu, float* stats, float* y, int64_t ldy);
GW_API int gw_normalise_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* mean, const float* variance,
                            const float* weight, const float* bias, double eps, int32_t relu, float* y, int64_t ldy);
GW_API int gw_batch_norm_grad_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* dy, int64_t lddy,
                                  const float* weight, const float* stats, double eps, float* dx, int64_t lddx,
                                  float* dweight, float* dbias);
GW_API int gw_track_moments_f32(int64_t f, int64_t rows, const float* stats, double momentum, float* mean,
                                float* variance);
GW_API int gw_row_sum_f32(int64_t n, int64_t f, const float* x, int64_t ldx, float* out);
}

namespace program {

// What a batch norm learned, and the number under its root; `relu`: then max(y, 0).
struct Norm {
  const float *weight, *bias;
  double eps;
  bool relu = false;
};

// y = x normalised by the statistics of its columns, which come out as stats: means, then variances.
inline void batch_norm(const Matrix& x, const Norm& norm, const Matrix& stats, const Matrix& y) {
  check(gw_batch_norm_f32(x.rows, x.cols, x.at, x.cols, norm.weight, norm.bias, norm.eps, norm.relu, stats.at, y.at,
                          y.cols));
}

// y = x normalised by the statistics given.
inline void normalise(const Matrix& x, const float* mean, const float* variance, const Norm& norm, const Matrix& y) {
  check(gw_normalise_f32(x.rows, x.cols, x.at, x.cols, mean, variance, norm.weight, norm.bias, norm.eps, norm.relu,
                         y.at, y.cols));
}

// Gradients of batch_norm without relu by x, weight and bias.
inline void batch_norm_grad(const Matrix& x, const Matrix& stats, const Matrix& dy, const Norm& norm, const Matrix& dx,
                            float* dweight, float* dbias) {
  check(gw_batch_norm_grad_f32(x.rows, x.cols, x.at, x.cols, dy.at, dy.cols, norm.weight, stats.at, norm.eps, dx.at,
                               dx.cols, dweight, dbias));
}

// Moves running means and variances towards those of a batch of so many rows, and counts the batch.
void track(const Matrix& stats, int64_t rows, double momentum, const Matrix& mean, const Matrix& variance,
           int64_t* count);

// y[i] = the sum of row i of x.
inline void row_sum(const Matrix& x, const Matrix& y) { check(gw_row_sum_f32(x.rows, x.cols, x.at, x.cols, y.at)); }
// z = x y by element.
void multiply(const Matrix& x, const Matrix& y, const Matrix& z);
// y[i][j] = x[i][j] + by[i].
void row_add(const Matrix& x, const float* by, const Matrix& y);
// y[i][j] = x[i][j] by[j].
void col_scale(const Matrix& x, const float* by, const Matrix& y);
// y[i][j] = x[i].
void fill_cols(const float* x, const Matrix& y);

}  // namespace program
