// Norms of columns with statistics of the rows of all processes.
#pragma once

#include "kernels.h"
#include "norm.h"

namespace program {

// y = x normalised by the statistics of its columns over all processes, which come out as stats: means, then variances.
void batch_norm(const Matrix& x, const Norm& norm, const Matrix& stats, const Matrix& y);

// Gradients of batch_norm without relu by x, weight and bias; those by weight and bias are the share of the own rows.
void batch_norm_grad(const Matrix& x, const Matrix& stats, const Matrix& dy, const Norm& norm, const Matrix& dx,
                     float* dweight, float* dbias);

}  // namespace program
