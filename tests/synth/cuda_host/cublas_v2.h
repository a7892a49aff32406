// The one product of cuBLAS that programs call, in plain loops over columns.
#pragma once

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
using cublasHandle_t = const int*;

inline cublasStatus_t cublasCreate(cublasHandle_t* out) {
  static const int one = 1;
  *out = &one;
  return CUBLAS_STATUS_SUCCESS;
}

// c[m, n] = alpha op(a)[m, k] op(b)[k, n] + beta c, all by column.
inline cublasStatus_t cublasSgemm(cublasHandle_t, cublasOperation_t turn_a, cublasOperation_t turn_b, int m, int n,
                                  int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                                  const float* beta, float* c, int ldc) {
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < m; ++i) {
      double total = 0.0;
      for (int p = 0; p < k; ++p)
        total += double(turn_a == CUBLAS_OP_N ? a[i + p * lda] : a[p + i * lda]) *
                 double(turn_b == CUBLAS_OP_N ? b[p + j * ldb] : b[j + p * ldb]);
      c[i + j * ldc] = float(double(*alpha) * total + (*beta == 0.0f ? 0.0 : double(*beta) * double(c[i + j * ldc])));
    }
  return CUBLAS_STATUS_SUCCESS;
}
