#include "device.h"
#include "norms.h"

namespace program {

namespace {

constexpr int64_t chunk = 256;  // rows whose sums are kept in single precision

// Of a chunk of rows, the means of the columns and the sums of squares around them.
__global__ void chunk_moments(const float* x, int64_t rows, int64_t cols, float* partial) {
  const int64_t first = blockIdx.x * chunk, last = first + chunk < rows ? first + chunk : rows;
  float* mine = partial + 2 * blockIdx.x * cols;
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    float total = 0.0f, squares = 0.0f;
    for (int64_t row = first; row < last; ++row) total += x[row * cols + col];
    const float mean = total / float(last - first);
    for (int64_t row = first; row < last; ++row) {
      const float apart = x[row * cols + col] - mean;
      squares += apart * apart;
    }
    mine[col] = mean;
    mine[cols + col] = squares;
  }
}

// Merges them in their order (Chan, Golub, LeVeque, 1983): stats = means, then variances.
__global__ void merge_moments(const float* partial, int64_t rows, int64_t cols, float* stats) {
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    double mean = 0.0, squares = 0.0;
    for (int64_t first = 0; first < rows; first += chunk) {
      const float* mine = partial + 2 * (first / chunk) * cols;
      const double count = double(first + chunk < rows ? chunk : rows - first), share = count / (double(first) + count);
      const double apart = double(mine[col]) - mean;
      mean += apart * share;
      squares += double(mine[cols + col]) + apart * apart * double(first) * share;
    }
    stats[col] = float(mean);
    stats[cols + col] = float(squares / double(rows > 1 ? rows : 1));
  }
}

__device__ inline double inverse_root(float variance, double eps) { return 1.0 / sqrt(double(variance) + eps); }

__global__ void scales(const float* variance, const float* weight, double eps, int64_t cols, float* scale) {
  const int64_t col = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col < cols) scale[col] = float(inverse_root(variance[col], eps) * (weight ? double(weight[col]) : 1.0));
}

__global__ void normalise_elements(const float* x, int64_t count, int64_t cols, const float* mean, const float* scale,
                                   const float* bias, int relu, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const int64_t col = at % cols;
  const float t = (x[at] - mean[col]) * scale[col] + (bias ? bias[col] : 0.0f);
  y[at] = relu && t < 0.0f ? 0.0f : t;
}

// Of a chunk of rows, the sums of dy, and of dy times how far x is from its mean.
__global__ void chunk_gradients(const float* x, const float* dy, const float* mean, int64_t rows, int64_t cols,
                                float* partial) {
  const int64_t first = blockIdx.x * chunk, last = first + chunk < rows ? first + chunk : rows;
  float* mine = partial + 2 * blockIdx.x * cols;
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    float sum = 0.0f, product = 0.0f;
    for (int64_t row = first; row < last; ++row) {
      sum += dy[row * cols + col];
      product += dy[row * cols + col] * (x[row * cols + col] - mean[col]);
    }
    mine[col] = sum;
    mine[cols + col] = product;
  }
}

// What gradients by x need of a column, in the places of `by`: a scale, a constant and a slope.
__global__ void merge_gradients(const float* partial, int64_t rows, int64_t cols, const float* variance,
                                const float* weight, double eps, float* dweight, float* dbias, float* by) {
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    double sum = 0.0, product = 0.0;
    for (int64_t k = 0; k * chunk < rows; ++k) {
      sum += double(partial[2 * k * cols + col]);
      product += double(partial[(2 * k + 1) * cols + col]);
    }
    const double inverse = inverse_root(variance[col], eps), count = double(rows > 1 ? rows : 1);
    dweight[col] = float(product * inverse);
    dbias[col] = float(sum);
    by[col] = float(inverse * (weight ? double(weight[col]) : 1.0));
    by[cols + col] = float(sum / count);
    by[2 * cols + col] = float(product * inverse * inverse / count);
  }
}

__global__ void gradient_elements(const float* x, const float* dy, int64_t count, int64_t cols, const float* mean,
                                  const float* by, float* dx) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const int64_t col = at % cols;
  dx[at] = by[col] * (dy[at] - by[cols + col] - (x[at] - mean[col]) * by[2 * cols + col]);
}

__global__ void track_columns(const float* stats, int64_t cols, float unbiased, float momentum, float* mean,
                              float* variance, int64_t* count) {
  const int64_t col = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col == 0) ++*count;
  if (col >= cols) return;
  mean[col] += momentum * (stats[col] - mean[col]);
  variance[col] += momentum * (stats[cols + col] * unbiased - variance[col]);
}

// A thread for each row.
__global__ void sum_row(const float* x, int64_t rows, int64_t cols, float* y) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float total = 0.0f;
  for (int64_t col = 0; col < cols; ++col) total += x[row * cols + col];
  y[row] = total;
}

enum class Pair { product, row_added, col_scaled, filled };
__global__ void pair_elements(Pair kind, const float* x, const float* by, int64_t count, int64_t cols, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  if (kind == Pair::product) y[at] = x[at] * by[at];
  if (kind == Pair::row_added) y[at] = x[at] + by[at / cols];
  if (kind == Pair::col_scaled) y[at] = x[at] * by[at % cols];
  if (kind == Pair::filled) y[at] = by[at / cols];
}

void pair(Pair kind, const float* x, const float* by, const Matrix& y) {
  const int64_t count = y.rows * y.cols;
  LAUNCH(pair_elements, blocks_for(count), wide, kind, x, by, count, y.cols, y.at);
}

int64_t chunks_of(const Matrix& x) { return (x.rows + chunk - 1) / chunk; }

}  // namespace

void batch_norm(const Matrix& x, const Norm& norm, const Matrix& stats, const Matrix& y) {
  float* partial = scratch(2 * chunks_of(x) * x.cols);
  if (x.rows > 0) LAUNCH(chunk_moments, chunks_of(x), threads_for(x.cols), x.at, x.rows, x.cols, partial);
  LAUNCH(merge_moments, 1, threads_for(x.cols), partial, x.rows, x.cols, stats.at);
  normalise(x, stats.at, stats.at + x.cols, norm, y);
}

void normalise(const Matrix& x, const float* mean, const float* variance, const Norm& norm, const Matrix& y) {
  float* scale = scratch(x.cols);
  const int64_t count = x.rows * x.cols;
  const int relu = norm.relu;
  LAUNCH(scales, blocks_for(x.cols), wide, variance, norm.weight, norm.eps, x.cols, scale);
  LAUNCH(normalise_elements, blocks_for(count), wide, x.at, count, x.cols, mean, scale, norm.bias, relu, y.at);
}

void batch_norm_grad(const Matrix& x, const Matrix& stats, const Matrix& dy, const Norm& norm, const Matrix& dx,
                     float* dweight, float* dbias) {
  const int64_t chunks = chunks_of(x), count = x.rows * x.cols;
  float* by = scratch((2 * chunks + 3) * x.cols);
  float* partial = by + 3 * x.cols;
  const float* variance = stats.at + x.cols;
  if (chunks > 0) LAUNCH(chunk_gradients, chunks, threads_for(x.cols), x.at, dy.at, stats.at, x.rows, x.cols, partial);
  LAUNCH(merge_gradients, 1, threads_for(x.cols), partial, x.rows, x.cols, variance, norm.weight, norm.eps, dweight,
         dbias, by);
  LAUNCH(gradient_elements, blocks_for(count), wide, x.at, dy.at, count, x.cols, stats.at, by, dx.at);
}

void track(const Matrix& stats, int64_t rows, double momentum, const Matrix& mean, const Matrix& variance,
           int64_t* count) {
  const float unbiased = float(double(rows) / double(std::max<int64_t>(rows - 1, 1)));
  LAUNCH(track_columns, blocks_for(mean.cols), wide, stats.at, mean.cols, unbiased, float(momentum), mean.at,
         variance.at, count);
}

void row_sum(const Matrix& x, const Matrix& y) {
  LAUNCH(sum_row, blocks_for(x.rows), wide, x.at, x.rows, x.cols, y.at);
}

void multiply(const Matrix& x, const Matrix& y, const Matrix& z) { pair(Pair::product, x.at, y.at, z); }
void row_add(const Matrix& x, const float* by, const Matrix& y) { pair(Pair::row_added, x.at, by, y); }
void col_scale(const Matrix& x, const float* by, const Matrix& y) { pair(Pair::col_scaled, x.at, by, y); }
void fill_cols(const float* x, const Matrix& y) { pair(Pair::filled, nullptr, x, y); }

}  // namespace program
