// Dense products of row-major matrices on the device.
#pragma once

#include "kernels.h"

namespace program {

// A matrix, or columns of a wider one: `ld` numbers lie between the beginnings of rows.
struct Block {
  float* at;
  int64_t rows, cols, ld;
  Block(float* of_at, int64_t of_rows, int64_t of_cols, int64_t of_ld)
      : at(of_at), rows(of_rows), cols(of_cols), ld(of_ld) {}
  Block(const Matrix& x) : at(x.at), rows(x.rows), cols(x.cols), ld(x.cols) {}
};

// y = x w, added to y where `adds`; w as stored or transposed.
void gemm(const Block& x, const Block& w, Weight form, const Block& y, bool adds);
// dw = x^T g.
void gemm_transposed(const Block& x, const Block& g, const Block& dw);

}  // namespace program
