#include "kernels.h"

#include <algorithm>

#include "graphweft/parallel.h"

namespace program {

namespace {

// body(begin, end) over elements, in pieces that are worth a thread.
template <class Body>
void over(int64_t count, Body&& body) {
  gw::parallel_ranges(count, int64_t{1} << 15, body);
}

}  // namespace

void sum_weights(const gw_adjacency& edges, const float* weights, float* y) {
  const auto* ids = static_cast<const int32_t*>(edges.edge_ids);
  gw::parallel_ranges(edges.num_rows, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      y[row] = 0.0f;
      for (int64_t p = edges.indptr[row]; p < edges.indptr[row + 1]; ++p) y[row] += weights[ids ? ids[p] : p];
    }
  });
}

void take_rows(const Matrix& x, const Ids& ids, const Matrix& y) {
  gw::parallel_ranges(ids.count, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(x.at + ids.at[i] * x.cols, x.cols, y.at + i * y.cols);
  });
}

void scatter_rows(const Matrix& x, const Ids& ids, const Matrix& y) {
  over(y.rows * y.cols, [&](int64_t begin, int64_t end) { std::fill(y.at + begin, y.at + end, 0.0f); });
  gw::parallel_ranges(ids.count, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(x.at + i * x.cols, x.cols, y.at + ids.at[i] * y.cols);
  });
}

void scale(const Matrix& x, const float* factor, const Matrix& y) {
  const float by = *factor;
  over(x.rows * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y.at[i] = x.at[i] * by;
  });
}

void add_constant(const Matrix& x, float constant, const Matrix& y) {
  over(x.rows * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y.at[i] = x.at[i] + constant;
  });
}

void elementwise(Elements f, std::initializer_list<Matrix> operands, const Matrix& y) {
  const float* in[8];
  if (operands.size() > 8) throw std::runtime_error("elementwise: expected at most 8 operands");
  std::transform(operands.begin(), operands.end(), in, [](const Matrix& x) { return x.at; });
  gw::parallel_ranges(y.rows * y.cols, 16384, [&](int64_t begin, int64_t end) { f(begin, end, in, y.at); });
}

}  // namespace program
