// Additive attention on the device. Nothing of edge size is kept and nothing is added atomically: softmax weights are
// computed again wherever they are read.
#include "attention.h"
#include "attention_draws.h"

namespace program {

namespace {

// What every kernel reads.
struct Scores {
  int64_t heads, channels, step;  // step: from head to head in a row of values, 0 where heads share them
  float slope;
  Dropping drop;
  const float *src, *dst;
  float *top, *inverse;  // of each destination and head
};

Scores scores_of(const Heads& heads, const Matrix& src, const Matrix& dst, float* stats) {
  float* inverse = stats ? stats + dst.rows * heads.count : nullptr;
  return {heads.count,
          heads.channels,
          heads.shared ? 0 : heads.channels,
          float(heads.by),
          dropping_of(heads),
          src.at,
          dst.at,
          stats,
          inverse};
}

__device__ inline float sum_of(const Scores& s, int64_t j, int64_t i, int64_t h) {
  return s.src[j * s.heads + h] + s.dst[i * s.heads + h];
}
__device__ inline float leaky(const Scores& s, float z) { return z > 0.0f ? z : z * s.slope; }

__device__ inline float softmax(const Scores& s, float z, int64_t i, int64_t h) {
  return expf(leaky(s, z) - s.top[i * s.heads + h]) * s.inverse[i * s.heads + h];
}

// A thread for each destination and head: the largest score and one over the sum.
__global__ void normalise(Rows a, int64_t rows, Scores s) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= rows * s.heads) return;
  const int64_t i = at / s.heads, h = at % s.heads, begin = a.indptr[i], end = a.indptr[i + 1];
  float top = begin < end ? -INFINITY : 0.0f, total = 0.0f;
  for (int64_t p = begin; p < end; ++p) {
    const float score = leaky(s, sum_of(s, a.indices[p], i, h));
    top = score > top ? score : top;
  }
  for (int64_t p = begin; p < end; ++p) total += expf(leaky(s, sum_of(s, a.indices[p], i, h)) - top);
  s.top[at] = top;
  s.inverse[at] = begin < end ? 1.0f / total : 0.0f;
}

// A block for each destination: its threads stride over the columns.
__global__ void attend(Rows a, Scores s, const float* x, float* y) {
  const int64_t i = blockIdx.x, begin = a.indptr[i], end = a.indptr[i + 1], width = s.heads * s.channels;
  const int64_t value_width = s.step ? width : s.channels;
  for (int64_t col = threadIdx.x; col < width; col += blockDim.x) {
    const int64_t h = col / s.channels, from = h * s.step + col % s.channels;
    float total = 0.0f;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t j = a.indices[p];
      total += softmax(s, sum_of(s, j, i, h), i, h) * keep(s.drop, number_of(a, p), h) * x[j * value_width + from];
    }
    y[i * width + col] = total;
  }
}

// <x[j], dy[i]> of one head.
__device__ inline float product(const Scores& s, const float* x, const float* dy, int64_t j, int64_t i, int64_t h) {
  const float* left = x + j * (s.step ? s.heads * s.channels : s.channels) + h * s.step;
  const float* right = dy + (i * s.heads + h) * s.channels;
  float total = 0.0f;
  for (int64_t c = 0; c < s.channels; ++c) total += left[c] * right[c];
  return total;
}

// The gradient of an edge's sum of scores; `mean` is <dy[i], y[i]> of the head.
__device__ inline float slope_of(const Scores& s, const Rows& a, int64_t p, int64_t j, int64_t i, int64_t h,
                                 const float* x, const float* dy, float mean) {
  const float z = sum_of(s, j, i, h);
  const float slope = softmax(s, z, i, h) * (keep(s.drop, number_of(a, p), h) * product(s, x, dy, j, i, h) - mean);
  return z > 0.0f ? slope : slope * s.slope;
}

// A thread for each destination and head: <dy, y>, and the gradient of its score.
__global__ void destinations(Rows a, int64_t rows, Scores s, const float* x, const float* y, const float* dy,
                             float* means, float* ddst) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= rows * s.heads) return;
  const int64_t i = at / s.heads, h = at % s.heads;
  float mean = 0.0f, total = 0.0f;
  for (int64_t c = 0; c < s.channels; ++c) mean += y[at * s.channels + c] * dy[at * s.channels + c];
  for (int64_t p = a.indptr[i]; p < a.indptr[i + 1]; ++p) total += slope_of(s, a, p, a.indices[p], i, h, x, dy, mean);
  means[at] = mean;
  ddst[at] = total;
}

// A thread for each source and head: the gradient of its score. The rows of `a` are sources.
__global__ void sources(Rows a, int64_t rows, Scores s, const float* x, const float* dy, const float* means,
                        float* dsrc) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= rows * s.heads) return;
  const int64_t j = at / s.heads, h = at % s.heads;
  float total = 0.0f;
  for (int64_t p = a.indptr[j]; p < a.indptr[j + 1]; ++p) {
    const int64_t i = a.indices[p];
    total += slope_of(s, a, p, j, i, h, x, dy, means[i * s.heads + h]);
  }
  dsrc[at] = total;
}

// A block for each source: the gradient of its values, over all heads where they share them.
__global__ void values(Rows a, Scores s, const float* dy, float* dx) {
  const int64_t j = blockIdx.x, width = s.step ? s.heads * s.channels : s.channels;
  for (int64_t col = threadIdx.x; col < width; col += blockDim.x) {
    const int64_t first = s.step ? col / s.channels : 0, last = s.step ? first + 1 : s.heads;
    float total = 0.0f;
    for (int64_t p = a.indptr[j]; p < a.indptr[j + 1]; ++p) {
      const int64_t i = a.indices[p];
      for (int64_t h = first; h < last; ++h)
        total += softmax(s, sum_of(s, j, i, h), i, h) * keep(s.drop, number_of(a, p), h) *
                 dy[(i * s.heads + h) * s.channels + col % s.channels];
    }
    dx[j * width + col] = total;
  }
}

}  // namespace

template <>
void Attention<Score::add>::forward(const gw_adjacency& edges, const Heads& heads, const Matrix& x, const Matrix& src,
                                    const Matrix& dst, const Matrix& y, float* stats) {
  const int64_t rows = edges.num_rows;
  const Scores s = scores_of(heads, src, dst, stats ? stats : scratch(2 * rows * heads.count));
  if (rows == 0) return;
  LAUNCH(normalise, blocks_for(rows * s.heads), wide, rows_of(edges), rows, s);
  LAUNCH(attend, rows, threads_for(y.cols), rows_of(edges), s, x.at, y.at);
}

template <>
void Attention<Score::add>::backward(const gw_adjacency& edges, const gw_adjacency& back, const Heads& heads,
                                     const Attended& given, const Matrix& dx, const Matrix& dsrc, const Matrix& ddst,
                                     float* means, float*) {
  const Scores s = scores_of(heads, given.a, given.b, const_cast<float*>(given.stats));
  const float *x = given.x.at, *y = given.y.at, *dy = given.dy.at;
  const int64_t rows = edges.num_rows, count = back.num_rows;
  if (rows > 0)
    LAUNCH(destinations, blocks_for(rows * s.heads), wide, rows_of(edges), rows, s, x, y, dy, means, ddst.at);
  if (count > 0) LAUNCH(sources, blocks_for(count * s.heads), wide, rows_of(back), count, s, x, dy, means, dsrc.at);
  if (count > 0 && dx.rows > 0) LAUNCH(values, count, threads_for(dx.cols), rows_of(back), s, dy, dx.at);
}

}  // namespace program
