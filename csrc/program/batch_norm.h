// Norms of columns with statistics of their own rows.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "norm.h"

extern "C" {
GW_API int gw_batch_norm_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* weight, const float* bias,
                             double eps, int32_t relu, float* stats, float* y, int64_t ldy);
GW_API int gw_batch_norm_grad_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* dy, int64_t lddy,
                                  const float* weight, const float* stats, double eps, float* dx, int64_t lddx,
                                  float* dweight, float* dbias);
}

namespace program {

// y = x normalised by the statistics of its columns, which come out as stats: means, then variances.
inline void batch_norm(const Matrix& x, const Norm& norm, const Matrix& stats, const Matrix& y) {
  check(gw_batch_norm_f32(x.rows, x.cols, x.at, x.cols, norm.weight, norm.bias, norm.eps, norm.relu, stats.at, y.at,
                          y.cols));
}

// Gradients of batch_norm without relu by x, weight and bias.
inline void batch_norm_grad(const Matrix& x, const Matrix& stats, const Matrix& dy, const Norm& norm, const Matrix& dx,
                            float* dweight, float* dbias) {
  check(gw_batch_norm_grad_f32(x.rows, x.cols, x.at, x.cols, dy.at, dy.cols, norm.weight, stats.at, norm.eps, dx.at,
                               dx.cols, dweight, dbias));
}

}  // namespace program
