// Dense products of row-major matrices on the device.
#pragma once

#include "kernels.h"

namespace program {

// y = x w, added to y where `adds`; w as stored or transposed.
void gemm(const Matrix& x, const Matrix& w, Weight form, const Matrix& y, bool adds);
// dw = x^T g.
void gemm_transposed(const Matrix& x, const Matrix& g, const Matrix& dw);

}  // namespace program
