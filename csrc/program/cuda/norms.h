// Norms of rows and of columns, and what a layer norm and its gradient consist of, as kernels of a device. Sums over
// rows are those of chunks, then of the chunks in their order: nothing is added atomically.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "norm.h"

namespace program {

// y = x normalised by the statistics of its columns, which come out as stats: means, then variances.
void batch_norm(const Matrix& x, const Norm& norm, const Matrix& stats, const Matrix& y);
// y = x normalised by the statistics given.
void normalise(const Matrix& x, const float* mean, const float* variance, const Norm& norm, const Matrix& y);
// Gradients of batch_norm without relu by x, weight and bias.
void batch_norm_grad(const Matrix& x, const Matrix& stats, const Matrix& dy, const Norm& norm, const Matrix& dx,
                     float* dweight, float* dbias);
// Moves running means and variances towards those of a batch of so many rows, and counts the batch.
void track(const Matrix& stats, int64_t rows, double momentum, const Matrix& mean, const Matrix& variance,
           int64_t* count);

// y[i] = the sum of row i of x.
void row_sum(const Matrix& x, const Matrix& y);
// z = x y by element.
void multiply(const Matrix& x, const Matrix& y, const Matrix& z);
// y[i][j] = x[i][j] + by[i].
void row_add(const Matrix& x, const float* by, const Matrix& y);
// y[i][j] = x[i][j] by[j].
void col_scale(const Matrix& x, const float* by, const Matrix& y);
// y[i][j] = x[i].
void fill_cols(const float* x, const Matrix& y);

}  // namespace program
