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

void gemm(const Block& x, const Block& w, Weight form, const Block& y, bool adds) {
  const float one = 1.0f, before = adds ? 1.0f : 0.0f;
  const bool turned = form == Weight::transposed;
  if (y.rows == 0) return;
  require(cublasSgemm(handle(), turned ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, int(y.cols), int(y.rows), int(x.cols),
                      &one, w.at, int(w.ld), x.at, int(x.ld), &before, y.at, int(y.ld)));
}

void gemm_transposed(const Block& x, const Block& g, const Block& dw) {
  const float one = 1.0f, none = 0.0f;
  require(cublasSgemm(handle(), CUBLAS_OP_N, CUBLAS_OP_T, int(g.cols), int(x.cols), int(x.rows), &one, g.at, int(g.ld),
                      x.at, int(x.ld), &none, dw.at, int(dw.ld)));
}

}  // namespace program
