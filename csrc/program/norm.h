// What norms of columns are told.
#pragma once

namespace program {

// What a batch norm learned, and the number under its root; `relu`: then max(y, 0).
struct Norm {
  const float *weight, *bias;
  double eps;
  bool relu = false;
};

}  // namespace program
