// Batch norms: every column of rows x[n, f] less its mean, over its deviation, times a weight, plus a bias.
//
// Statistics come from one walk over memory: blocks of rows that stay in the cache are walked twice, for their means
// and for the squares of what is left, and are merged pairwise (Chan, Golub, LeVeque, 1983) in double precision. Blocks
// and the order of merging follow from n alone, so the bits do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "graphweft/reduce.h"
#include "graphweft/rows.h"

extern "C" {

// One norm whose running numbers are moved: stats[2, f] of its latest rows, and how often it was moved, where counted.
struct gw_tracked_norm_f32 {
  int64_t f;
  const float* stats;
  float* mean;
  float* variance;
  int64_t* count;
  double momentum;
};
}

namespace gw {

inline constexpr int64_t norm_block = 256;  // rows whose sums are kept in single precision

// Calls visit(V, Full, col, tail) for tiles of at most four vectors of `f` columns.
template <class Visit>
void for_each_norm_tile(int64_t f, Visit&& visit) {
  for_each_tile<4, vf::lanes>(0, f, visit);
}

// Two numbers per column, in double precision.
struct column_pairs {
  explicit column_pairs(int64_t width) : width(width), first(size_t(width), 0.0), second(size_t(width), 0.0) {}
  int64_t width;
  double rows = 0.0;  // that were added so far
  std::vector<double> first, second;

  // Means and sums of squares around them, of `count` more rows.
  template <class T>
  void merge_moments(double count, const T* mean, const T* squares) {
    const double together = rows + count, share = count / together, weight = rows * share;
    for (int64_t k = 0; k < width; ++k) {
      const double apart = double(mean[k]) - first[size_t(k)];
      first[size_t(k)] += apart * share;
      second[size_t(k)] += double(squares[k]) + apart * apart * weight;
    }
    rows = together;
  }
  template <class T>
  void add(const T* more_first, const T* more_second) {
    for (int64_t k = 0; k < width; ++k) {
      first[size_t(k)] += double(more_first[k]);
      second[size_t(k)] += double(more_second[k]);
    }
  }
};

// Pairs of all rows: make(begin, count, first, second) gives those of a block, join(pairs, count, first, second) adds
// them, first block by block within a chunk, then chunk by chunk.
template <class Make, class Join>
column_pairs over_blocks(int64_t n, int64_t f, Make&& make, Join&& join) {
  const int64_t grain = (row_grain(n) + norm_block - 1) / norm_block * norm_block, chunks = (n + grain - 1) / grain;
  std::vector<column_pairs> parts(static_cast<size_t>(chunks), column_pairs(f));
  parallel_chunks(chunks, [&](int64_t chunk) {
    std::vector<float> block(static_cast<size_t>(2 * f));
    const int64_t end = std::min(n, (chunk + 1) * grain);
    for (int64_t begin = chunk * grain; begin < end; begin += norm_block) {
      const int64_t count = std::min(norm_block, end - begin);
      make(begin, count, block.data(), block.data() + f);
      join(parts[size_t(chunk)], double(count), block.data(), block.data() + f);
    }
  });
  column_pairs total(f);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const column_pairs& part = parts[size_t(chunk)];
    join(total, double(std::min(n, (chunk + 1) * grain) - chunk * grain), part.first.data(), part.second.data());
  }
  return total;
}

// Sums of rows are kept in several parts, row i in part i mod Parts, so that an addition does not wait for the one
// before; the parts are added pairwise.
constexpr int sum_parts(int vectors) { return vectors >= 3 ? 2 : 4; }

template <int Parts, int V>
GW_INLINE void join_parts(vf::vec (&sums)[Parts][V]) {
  for (int half = Parts / 2; half > 0; half /= 2)
    for (int p = 0; p < half; ++p)
      for (int v = 0; v < V; ++v) sums[p][v] += sums[p + half][v];
}

// Calls add(part, i) for all rows i.
template <int Parts, class Add>
GW_INLINE void by_parts(int64_t count, Add&& add) {
  int64_t i = 0;
  for (; i + Parts <= count; i += Parts) {
#pragma GCC unroll 4
    for (int p = 0; p < Parts; ++p) add(p, i + p);
  }
  for (int p = 0; i < count; ++i, ++p) add(p, i);
}

template <int V, bool Full>
inline void block_moments(const float* x, int64_t ld, int64_t count, int tail, float* mean, float* squares) {
  using io = tile_io<f32, V, Full>;
  constexpr int parts = sum_parts(V);
  vf::vec sum[parts][V] = {}, square[parts][V] = {}, centre[V];
  by_parts<parts>(count, [&](int p, int64_t i) GW_INLINE_LAMBDA {
    vf::vec t[V];
    io::load(x + i * ld, tail, t);
    for (int v = 0; v < V; ++v) sum[p][v] += t[v];
  });
  join_parts(sum);
  for (int v = 0; v < V; ++v) centre[v] = sum[0][v] / float(count);
  by_parts<parts>(count, [&](int p, int64_t i) GW_INLINE_LAMBDA {
    vf::vec t[V];
    io::load(x + i * ld, tail, t);
    for (int v = 0; v < V; ++v) square[p][v] += (t[v] - centre[v]) * (t[v] - centre[v]);
  });
  join_parts(square);
  io::store(mean, tail, centre);
  io::store(squares, tail, square[0]);
}

// stats[0, f] = means, stats[1, f] = variances, over n, of the columns of x.
inline void column_moments(int64_t n, int64_t f, const float* x, int64_t ldx, float* stats) {
  const column_pairs found = over_blocks(
      n, f,
      [&](int64_t begin, int64_t count, float* mean, float* squares) {
        for_each_norm_tile(f, [&](auto v, auto full, int64_t col, int tail) {
          block_moments<decltype(v)::value, decltype(full)::value>(x + begin * ldx + col, ldx, count, tail, mean + col,
                                                                   squares + col);
        });
      },
      [](column_pairs& to, double count, const auto* mean, const auto* squares) {
        to.merge_moments(count, mean, squares);
      });
  const double rows = double(std::max<int64_t>(n, 1));
  for (int64_t k = 0; k < f; ++k) {
    stats[k] = float(found.first[size_t(k)]);
    stats[f + k] = float(found.second[size_t(k)] / rows);
  }
}

// Moves running means and variances by `momentum` towards stats[2, f], the variances of those times `unbiased`.
inline void track_moments(int64_t f, const float* stats, float unbiased, float momentum, float* mean, float* variance) {
  for (int64_t k = 0; k < f; ++k) {
    mean[k] += momentum * (stats[k] - mean[k]);
    variance[k] += momentum * (stats[f + k] * unbiased - variance[k]);
  }
}

// Moves all of a table, whose statistics are of `rows` rows, the variances as those of a sample.
inline void track_norms(const gw_tracked_norm_f32* table, int64_t norms, int64_t rows) {
  const float unbiased = float(double(rows) / double(std::max<int64_t>(rows - 1, 1)));
  for (int64_t i = 0; i < norms; ++i) {
    const gw_tracked_norm_f32& norm = table[i];
    track_moments(norm.f, norm.stats, unbiased, float(norm.momentum), norm.mean, norm.variance);
    if (norm.count) ++*norm.count;
  }
}

inline float norm_scale(float variance, double eps, const float* weight, int64_t k) {
  const double inverse = 1.0 / std::sqrt(double(variance) + eps);
  return float(weight ? inverse * double(weight[k]) : inverse);
}

template <int V, bool Full>
inline void normalise_tile(const float* x, int64_t ldx, int64_t count, int tail, const float* mean, const float* scale,
                           const float* bias, bool relu, float* y, int64_t ldy) {
  using io = tile_io<f32, V, Full>;
  vf::vec centre[V], factor[V], shift[V] = {}, t[V];
  io::load(mean, tail, centre);
  io::load(scale, tail, factor);
  if (bias) io::load(bias, tail, shift);
  for (int64_t i = 0; i < count; ++i) {
    io::load(x + i * ldx, tail, t);
    for (int v = 0; v < V; ++v) t[v] = (t[v] - centre[v]) * factor[v] + shift[v];
    if (relu)
      for (int v = 0; v < V; ++v) t[v] = t[v] < 0.0f ? vf::vec{} : t[v];  // NaN compares false and stays
    io::store(y + i * ldy, tail, t);
  }
}

// y = (x - mean) / sqrt(variance + eps) * weight + bias with the statistics given, then perhaps max(y, 0).
inline void normalise(int64_t n, int64_t f, const float* x, int64_t ldx, const float* mean, const float* variance,
                      const float* weight, const float* bias, double eps, bool relu, float* y, int64_t ldy) {
  std::vector<float> scale(static_cast<size_t>(f));
  for (int64_t k = 0; k < f; ++k) scale[size_t(k)] = norm_scale(variance[k], eps, weight, k);
  parallel_ranges(n, row_grain(n), [&](int64_t begin, int64_t end) {
    for_each_norm_tile(f, [&](auto v, auto full, int64_t col, int tail) {
      normalise_tile<decltype(v)::value, decltype(full)::value>(
          x + begin * ldx + col, ldx, end - begin, tail, mean + col, scale.data() + col, bias ? bias + col : nullptr,
          relu, y + begin * ldy + col, ldy);
    });
  });
}

template <int V, bool Full>
inline void block_gradients(const float* x, int64_t ldx, const float* dy, int64_t lddy, int64_t count, int tail,
                            const float* mean, float* sums, float* products) {
  using io = tile_io<f32, V, Full>;
  constexpr int parts = sum_parts(V) / 2;
  vf::vec centre[V], sum[parts][V] = {}, product[parts][V] = {};
  io::load(mean, tail, centre);
  by_parts<parts>(count, [&](int p, int64_t i) GW_INLINE_LAMBDA {
    vf::vec t[V], g[V];
    io::load(x + i * ldx, tail, t);
    io::load(dy + i * lddy, tail, g);
    for (int v = 0; v < V; ++v) {
      sum[p][v] += g[v];
      product[p][v] += g[v] * (t[v] - centre[v]);
    }
  });
  join_parts(sum);
  join_parts(product);
  io::store(sums, tail, sum[0]);
  io::store(products, tail, product[0]);
}

template <int V, bool Full>
inline void norm_gradient_tile(const float* x, int64_t ldx, const float* dy, int64_t lddy, int64_t count, int tail,
                               const float* mean, const float* scale, const float* constant, const float* slope,
                               float* dx, int64_t lddx) {
  using io = tile_io<f32, V, Full>;
  vf::vec centre[V], factor[V], even[V], tilt[V], t[V], g[V];
  io::load(mean, tail, centre);
  io::load(scale, tail, factor);
  io::load(constant, tail, even);
  io::load(slope, tail, tilt);
  for (int64_t i = 0; i < count; ++i) {
    io::load(x + i * ldx, tail, t);
    io::load(dy + i * lddy, tail, g);
    for (int v = 0; v < V; ++v) t[v] = factor[v] * (g[v] - even[v] - (t[v] - centre[v]) * tilt[v]);
    io::store(dx + i * lddx, tail, t);
  }
}

// dx = scale * (dy - constant - (x - mean) * slope), by column.
inline void norm_gradient(int64_t n, int64_t f, const float* x, int64_t ldx, const float* dy, int64_t lddy,
                          const float* mean, const float* scale, const float* constant, const float* slope, float* dx,
                          int64_t lddx) {
  parallel_ranges(n, row_grain(n), [&](int64_t begin, int64_t end) {
    for_each_norm_tile(f, [&](auto v, auto full, int64_t col, int tail) {
      norm_gradient_tile<decltype(v)::value, decltype(full)::value>(
          x + begin * ldx + col, ldx, dy + begin * lddy + col, lddy, end - begin, tail, mean + col, scale + col,
          constant + col, slope + col, dx + begin * lddx + col, lddx);
    });
  });
}

// Gradients of the norm of x with the statistics of x, given that of its result; dx, dweight and dbias may be null.
inline void batch_norm_gradients(int64_t n, int64_t f, const float* x, int64_t ldx, const float* dy, int64_t lddy,
                                 const float* weight, const float* stats, double eps, float* dx, int64_t lddx,
                                 float* dweight, float* dbias) {
  const float *mean = stats, *variance = stats + f;
  const column_pairs sums = over_blocks(
      n, f,
      [&](int64_t begin, int64_t count, float* first, float* second) {
        for_each_norm_tile(f, [&](auto v, auto full, int64_t col, int tail) {
          block_gradients<decltype(v)::value, decltype(full)::value>(x + begin * ldx + col, ldx,
                                                                     dy + begin * lddy + col, lddy, count, tail,
                                                                     mean + col, first + col, second + col);
        });
      },
      [](column_pairs& to, double, const auto* first, const auto* second) { to.add(first, second); });
  std::vector<float> scale(static_cast<size_t>(f)), constant(static_cast<size_t>(f)), slope(static_cast<size_t>(f));
  const double rows = double(std::max<int64_t>(n, 1));
  for (int64_t k = 0; k < f; ++k) {
    const double square = 1.0 / (double(variance[k]) + eps);
    scale[size_t(k)] = norm_scale(variance[k], eps, weight, k);
    constant[size_t(k)] = float(sums.first[size_t(k)] / rows);
    slope[size_t(k)] = float(sums.second[size_t(k)] * square / rows);
    if (dweight) dweight[k] = float(sums.second[size_t(k)] * std::sqrt(square));
    if (dbias) dbias[k] = float(sums.first[size_t(k)]);
  }
  if (dx) norm_gradient(n, f, x, ldx, dy, lddy, mean, scale.data(), constant.data(), slope.data(), dx, lddx);
}

}  // namespace gw
