// Each process makes the sums of its own rows; two numbers a column travel, in double precision.
#include "batch_norm.h"

#include <cmath>
#include <vector>

#include "graphweft/batch_norm.h"
#include "mpi_c.h"

namespace program {

namespace {

void sum_over_processes(std::vector<double>& numbers) {
  MPI_Allreduce(MPI_IN_PLACE, numbers.data(), int(numbers.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

}  // namespace

void batch_norm(const Matrix& x, const Norm& norm, const Matrix& stats, const Matrix& y) {
  const auto f = size_t(x.cols);
  const auto own = double(x.rows);
  float *mean = stats.at, *variance = stats.at + f;
  gw::column_moments(x.rows, x.cols, x.at, x.cols, stats.at);
  std::vector<double> totals(f + 1, own), around(f);  // sums of columns, then rows; squares around the mean of all
  for (size_t k = 0; k < f; ++k) totals[k] = own * double(mean[k]);
  sum_over_processes(totals);
  for (size_t k = 0; k < f; ++k) {
    const double of_all = totals[k] / totals[f], apart = double(mean[k]) - of_all;
    around[k] = own * (double(variance[k]) + apart * apart);
    mean[k] = float(of_all);
  }
  sum_over_processes(around);
  for (size_t k = 0; k < f; ++k) variance[k] = float(around[k] / totals[f]);
  gw::normalise(x.rows, x.cols, x.at, x.cols, mean, variance, norm.weight, norm.bias, norm.eps, norm.relu, y.at,
                y.cols);
}

void batch_norm_grad(const Matrix& x, const Matrix& stats, const Matrix& dy, const Norm& norm, const Matrix& dx,
                     float* dweight, float* dbias) {
  const auto f = size_t(x.cols);
  const float *mean = stats.at, *variance = stats.at + f;
  gw::batch_norm_gradients(x.rows, x.cols, x.at, x.cols, dy.at, dy.cols, norm.weight, stats.at, norm.eps, nullptr, 0,
                           dweight, dbias);
  std::vector<double> totals(2 * f + 1, double(x.rows));  // by weight, by bias, rows
  for (size_t k = 0; k < f; ++k) {
    totals[k] = double(dweight[k]);
    totals[f + k] = double(dbias[k]);
  }
  sum_over_processes(totals);
  std::vector<float> scale(f), constant(f), slope(f);
  for (size_t k = 0; k < f; ++k) {
    scale[k] = gw::norm_scale(variance[k], norm.eps, norm.weight, int64_t(k));
    constant[k] = float(totals[f + k] / totals[2 * f]);
    slope[k] = float(totals[k] / std::sqrt(double(variance[k]) + norm.eps) / totals[2 * f]);
  }
  gw::norm_gradient(x.rows, x.cols, x.at, x.cols, dy.at, dy.cols, mean, scale.data(), constant.data(), slope.data(),
                    dx.at, dx.cols);
}

}  // namespace program
