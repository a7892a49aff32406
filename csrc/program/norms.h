// Norms of rows and of columns, and what a layer norm and its gradient consist of.
#pragma once

#include <cstdint>

#include "batch_norm.h"

extern "C" {
GW_API int gw_normalise_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* mean, const float* variance,
                            const float* weight, const float* bias, double eps, int32_t relu, float* y, int64_t ldy);
GW_API int gw_track_moments_f32(int64_t f, int64_t rows, const float* stats, double momentum, float* mean,
                                float* variance);
GW_API int gw_row_sum_f32(int64_t n, int64_t f, const float* x, int64_t ldx, float* out);
}

namespace program {

// y = x normalised by the statistics given.
inline void normalise(const Matrix& x, const float* mean, const float* variance, const Norm& norm, const Matrix& y) {
  check(gw_normalise_f32(x.rows, x.cols, x.at, x.cols, mean, variance, norm.weight, norm.bias, norm.eps, norm.relu,
                         y.at, y.cols));
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
