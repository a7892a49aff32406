// Attention on the device whose scores are products of rows: GATv2's and a Transformer's. A score takes as many
// operations as a head has channels, so within a call there is one number for every edge and head, by one thread each;
// all sums are in the order of edges, and nothing is added atomically.
#include "attention.h"
#include "attention_draws.h"

namespace program {

namespace {

// What every kernel reads; the operands are those of heads.h.
struct Pairs {
  int64_t heads, channels, width;
  float by;  // slope of the leaky unit, or factor of the product
  Dropping drop;
  const float *x, *a, *b;
  float *top, *inverse;  // of each destination and head
};

Pairs pairs_of(const Heads& heads, const Matrix& x, const Matrix& a, const Matrix& b, int64_t rows, float* stats) {
  if (heads.shared) throw std::runtime_error("attention: expected values of its own for each head");
  const int64_t width = heads.count * heads.channels;
  return {heads.count, heads.channels, width, float(heads.by), dropping_of(heads),
          x.at,        a.at,           b.at,  stats,           stats + rows * heads.count};
}

__device__ inline float leaky(const Pairs& s, float z) { return z > 0.0f ? z : z * s.by; }

template <Score S>
__device__ inline float score_of(const Pairs& s, int64_t j, int64_t i, int64_t h) {
  float total = 0.0f;
  for (int64_t c = h * s.channels; c < (h + 1) * s.channels; ++c)
    total += S == Score::add2 ? s.b[c] * leaky(s, s.x[j * s.width + c] + s.a[i * s.width + c])
                              : s.a[j * s.width + c] * s.b[i * s.width + c];
  return S == Score::add2 ? total : total * s.by;
}

__device__ inline float softmax(const Pairs& s, float score, int64_t i, int64_t h) {
  return expf(score - s.top[i * s.heads + h]) * s.inverse[i * s.heads + h];
}

// A block for each destination, whose threads share its edges and heads: scores by place.
template <Score S>
__global__ void score_edges(Rows a, Pairs s, float* scores) {
  const int64_t i = blockIdx.x, begin = a.indptr[i], count = (a.indptr[i + 1] - begin) * s.heads;
  for (int64_t at = threadIdx.x; at < count; at += blockDim.x)
    scores[begin * s.heads + at] = score_of<S>(s, a.indices[begin + at / s.heads], i, at % s.heads);
}

// A thread for each destination and head: the largest score and one over the sum.
__global__ void normalise(Rows a, int64_t rows, Pairs s, const float* scores) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= rows * s.heads) return;
  const int64_t i = at / s.heads, h = at % s.heads, begin = a.indptr[i], end = a.indptr[i + 1];
  float top = begin < end ? -INFINITY : 0.0f, total = 0.0f;
  for (int64_t p = begin; p < end; ++p) top = scores[p * s.heads + h] > top ? scores[p * s.heads + h] : top;
  for (int64_t p = begin; p < end; ++p) total += expf(scores[p * s.heads + h] - top);
  s.top[at] = top;
  s.inverse[at] = begin < end ? 1.0f / total : 0.0f;
}

// A block for each destination, a thread for each column.
__global__ void attend(Rows a, Pairs s, const float* scores, float* y) {
  const int64_t i = blockIdx.x;
  for (int64_t col = threadIdx.x; col < s.width; col += blockDim.x) {
    const int64_t h = col / s.channels;
    float total = 0.0f;
    for (int64_t p = a.indptr[i]; p < a.indptr[i + 1]; ++p)
      total += softmax(s, scores[p * s.heads + h], i, h) * keep(s.drop, number_of(a, p), h) *
               s.x[int64_t(a.indices[p]) * s.width + col];
    y[i * s.width + col] = total;
  }
}

// A thread for each destination and head: <dy, y>.
__global__ void mean_slopes(int64_t count, int64_t channels, const float* y, const float* dy, float* means) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  float total = 0.0f;
  for (int64_t c = at * channels; c < (at + 1) * channels; ++c) total += y[c] * dy[c];
  means[at] = total;
}

// As score_edges: by the edge's number its share of the sum, and the gradient of its score.
template <Score S>
__global__ void slope_edges(Rows a, Pairs s, const float* dy, const float* means, float* shares, float* slopes) {
  const int64_t i = blockIdx.x, begin = a.indptr[i], count = (a.indptr[i + 1] - begin) * s.heads;
  for (int64_t at = threadIdx.x; at < count; at += blockDim.x) {
    const int64_t p = begin + at / s.heads, h = at % s.heads, j = a.indices[p], edge = number_of(a, p);
    float product = 0.0f;
    for (int64_t c = h * s.channels; c < (h + 1) * s.channels; ++c)
      product += s.x[j * s.width + c] * dy[i * s.width + c];
    const float weight = softmax(s, score_of<S>(s, j, i, h), i, h), kept = keep(s.drop, edge, h);
    shares[edge * s.heads + h] = weight * kept;
    slopes[edge * s.heads + h] = weight * (kept * product - means[i * s.heads + h]);
  }
}

// A block for each destination, a thread for each column: the gradient of its row, and for add2 its part of the
// vector's.
template <Score S>
__global__ void destinations(Rows a, Pairs s, const float* slopes, float* drow, float* dvector) {
  const int64_t i = blockIdx.x;
  for (int64_t col = threadIdx.x; col < s.width; col += blockDim.x) {
    float total = 0.0f, of_vector = 0.0f;
    for (int64_t p = a.indptr[i]; p < a.indptr[i + 1]; ++p) {
      const int64_t from = int64_t(a.indices[p]) * s.width + col;
      const float slope = slopes[number_of(a, p) * s.heads + col / s.channels];
      if (S == Score::add2) {
        const float z = s.x[from] + s.a[i * s.width + col];
        total += slope * s.b[col] * (z > 0.0f ? 1.0f : s.by);
        of_vector += slope * leaky(s, z);
      } else {
        total += slope * s.by * s.a[from];
      }
    }
    drow[i * s.width + col] = total;
    if (S == Score::add2) dvector[i * s.width + col] = of_vector;
  }
}

// A block for each source, a thread for each column: gradients of its values, unless null, and of its keys. The rows
// of `a` are sources.
template <Score S>
__global__ void sources(Rows a, Pairs s, const float* dy, const float* shares, const float* slopes, float* dvalue,
                        float* dkey) {
  const int64_t j = blockIdx.x;
  for (int64_t col = threadIdx.x; col < s.width; col += blockDim.x) {
    float value = 0.0f, key = 0.0f;
    for (int64_t p = a.indptr[j]; p < a.indptr[j + 1]; ++p) {
      const int64_t to = int64_t(a.indices[p]) * s.width + col, edge = number_of(a, p) * s.heads + col / s.channels;
      value += shares[edge] * dy[to];
      if (S == Score::add2)
        value += slopes[edge] * s.b[col] * (s.x[j * s.width + col] + s.a[to] > 0.0f ? 1.0f : s.by);
      else
        key += slopes[edge] * s.by * s.b[to];
    }
    if (dvalue) dvalue[j * s.width + col] = value;
    if (S == Score::dot) dkey[j * s.width + col] = key;
  }
}

template <Score S>
void forward_rows(const gw_adjacency& edges, const Heads& heads, const Matrix& x, const Matrix& a, const Matrix& b,
                  const Matrix& y, float* stats) {
  const int64_t rows = edges.num_rows, pairs = edges.num_edges * heads.count;
  if (rows == 0) return;
  float* scores = scratch(pairs + (stats ? 0 : 2 * rows * heads.count));
  const Pairs s = pairs_of(heads, x, a, b, rows, stats ? stats : scores + pairs);
  LAUNCH(score_edges<S>, rows, wide, rows_of(edges), s, scores);
  LAUNCH(normalise, blocks_for(rows * s.heads), wide, rows_of(edges), rows, s, scores);
  LAUNCH(attend, rows, threads_for(s.width), rows_of(edges), s, scores, y.at);
}

// `shares` has room for two numbers of every edge and head, and for add2 a row of every destination behind them.
template <Score S>
void backward_rows(const gw_adjacency& edges, const gw_adjacency& back, const Heads& heads, const Attended& given,
                   const Matrix& dx, const Matrix& da, const Matrix& db, float* means, float* shares) {
  const int64_t rows = edges.num_rows, pairs = edges.num_edges * heads.count;
  const Pairs s = pairs_of(heads, given.x, given.a, given.b, rows, const_cast<float*>(given.stats));
  const float* dy = given.dy.at;
  float *slopes = shares + pairs, *of_vector = slopes + pairs;
  if (rows > 0) {
    LAUNCH(mean_slopes, blocks_for(rows * s.heads), wide, rows * s.heads, s.channels, given.y.at, dy, means);
    LAUNCH(slope_edges<S>, rows, wide, rows_of(edges), s, dy, means, shares, slopes);
    LAUNCH(destinations<S>, rows, threads_for(s.width), rows_of(edges), s, slopes, S == Score::add2 ? da.at : db.at,
           of_vector);
  }
  if (back.num_rows > 0 && (S == Score::dot || dx.rows > 0))
    LAUNCH(sources<S>, back.num_rows, threads_for(s.width), rows_of(back), s, dy, shares, slopes,
           dx.rows > 0 ? dx.at : nullptr, da.at);
  if (S == Score::add2) col_sum({of_vector, rows, s.width}, db.at);
}

}  // namespace

template <>
void Attention<Score::add2>::forward(const gw_adjacency& edges, const Heads& heads, const Matrix& x, const Matrix& a,
                                     const Matrix& b, const Matrix& y, float* stats) {
  forward_rows<Score::add2>(edges, heads, x, a, b, y, stats);
}

template <>
void Attention<Score::dot>::forward(const gw_adjacency& edges, const Heads& heads, const Matrix& x, const Matrix& a,
                                    const Matrix& b, const Matrix& y, float* stats) {
  forward_rows<Score::dot>(edges, heads, x, a, b, y, stats);
}

template <>
void Attention<Score::add2>::backward(const gw_adjacency& edges, const gw_adjacency& back, const Heads& heads,
                                      const Attended& given, const Matrix& dx, const Matrix& da, const Matrix& db,
                                      float* room, float* slopes) {
  backward_rows<Score::add2>(edges, back, heads, given, dx, da, db, room, slopes);
}

template <>
void Attention<Score::dot>::backward(const gw_adjacency& edges, const gw_adjacency& back, const Heads& heads,
                                     const Attended& given, const Matrix& dx, const Matrix& da, const Matrix& db,
                                     float* room, float* slopes) {
  backward_rows<Score::dot>(edges, back, heads, given, dx, da, db, room, slopes);
}

}  // namespace program
