#include "norms.h"

#include <algorithm>

#include "graphweft/parallel.h"

namespace program {

namespace {

// row(i) for all rows, in pieces that are worth a thread.
template <class Row>
void over_rows(int64_t rows, Row&& row) {
  gw::parallel_ranges(rows, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) row(i);
  });
}

}  // namespace

void track(const Matrix& stats, int64_t rows, double momentum, const Matrix& mean, const Matrix& variance,
           int64_t* count) {
  check(gw_track_moments_f32(mean.cols, rows, stats.at, momentum, mean.at, variance.at));
  ++*count;
}

void multiply(const Matrix& x, const Matrix& y, const Matrix& z) {
  gw::parallel_ranges(z.rows * z.cols, int64_t{1} << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) z.at[i] = x.at[i] * y.at[i];
  });
}

void row_add(const Matrix& x, const float* by, const Matrix& y) {
  over_rows(y.rows, [&](int64_t i) {
    for (int64_t j = i * y.cols; j < (i + 1) * y.cols; ++j) y.at[j] = x.at[j] + by[i];
  });
}

void col_scale(const Matrix& x, const float* by, const Matrix& y) {
  over_rows(y.rows, [&](int64_t i) {
    for (int64_t j = 0; j < y.cols; ++j) y.at[i * y.cols + j] = x.at[i * y.cols + j] * by[j];
  });
}

void fill_cols(const float* x, const Matrix& y) {
  over_rows(y.rows, [&](int64_t i) { std::fill_n(y.at + i * y.cols, y.cols, x[i]); });
}

}  // namespace program
