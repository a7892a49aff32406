// Dense products by cuBLAS, which stores columns: a row-major matrix is its transpose there.
#include "blas.h"

#include <cublas_v2.h>

namespace program {

namespace {

cublasHandle_t handle() {
  static cublasHandle_t made = nullptr;
  if (!made && cublasCreate(&made) != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error("cuBLAS: expected a device that it can use, got none");
  return made;
}

void require(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error("cuBLAS: a product failed");
}

}  // namespace

void gemm(const Matrix& x, const Matrix& w, Weight form, const Matrix& y, bool adds) {
  const float one = 1.0f, before = adds ? 1.0f : 0.0f;
  const auto n = int(y.rows), k = int(x.cols), m = int(y.cols);
  const bool turned = form == Weight::transposed;
  require(cublasSgemm(handle(), turned ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, w.at, turned ? k : m,
                      x.at, k, &before, y.at, m));
}

void gemm_transposed(const Matrix& x, const Matrix& g, const Matrix& dw) {
  const float one = 1.0f, none = 0.0f;
  const auto n = int(x.rows), k = int(x.cols), m = int(g.cols);
  require(cublasSgemm(handle(), CUBLAS_OP_N, CUBLAS_OP_T, m, k, n, &one, g.at, m, x.at, k, &none, dw.at, m));
}

}  // namespace program
