// The kernels of a CUDA program: matrices in managed memory in, matrices out. Sums over edges have a block for each row
// and no atomics; dense products are cuBLAS's. Source: Morphling, section IV-C.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "graphweft/abi.h"
#include "graphweft/optim.h"

extern "C" {
int gw_adam_f32(const gw_adam_tensor_f32* table, int64_t count);
int gw_sgd_f32(const gw_sgd_tensor_f32* table, int64_t count);
}

namespace program {

// Turns the status of a kernel into an exception.
inline void check(int status) {
  if (status) throw std::runtime_error(gw_last_error());
}

// Rows of numbers, one after the other.
struct Matrix {
  float* at;
  int64_t rows, cols;
};

// Row ids of a matrix.
struct Ids {
  const int64_t* at;
  int64_t count;
};
inline constexpr Ids all_rows{nullptr, -1};

// What is done to a finished row before it is stored, in the order of the functions here.
class Epilogue {
 public:
  struct Stages {
    const float *row_scale, *bias, *addend, *mask, *post_scale;
    int relu;
  };
  Epilogue& row_scale(const float* factors) { return stages.row_scale = factors, *this; }
  Epilogue& bias(const float* values) { return stages.bias = values, *this; }
  Epilogue& addend(const Matrix& values) { return stages.addend = values.at, *this; }
  Epilogue& relu() { return stages.relu = 1, *this; }
  Epilogue& mask(const Matrix& values) { return stages.mask = values.at, *this; }
  Epilogue& col_sum(float* out) { return sums = out, *this; }
  Epilogue& post_scale(const float* factors) { return stages.post_scale = factors, *this; }

  Stages stages = {};
  float* sums = nullptr;
};

// How a sum over edges reads its operand.
struct Reading {
  double coefficient = 0;
  const float* own = nullptr;
  const float* factors = nullptr;
  const float* by_edge = nullptr;

  // The row itself counts so many times; with `by`, a number that is read at each call, so many times that.
  Reading& self(double times, const float* by = nullptr) { return coefficient = times, own = by, *this; }
  // A factor for each row that is read.
  Reading& src_scale(const float* by) { return factors = by, *this; }
  // A factor for each edge, by its number.
  Reading& weights(const float* by) { return by_edge = by, *this; }
};

// y = epilogue(sum over in-edges of x).
void spmm(const gw_adjacency& edges, const Matrix& x, const Matrix& y, const Epilogue& then = Epilogue(),
          const Reading& reading = Reading());
// y = epilogue(features W), or with the transposed structure features^T G; `values` lie by entry of `structure`.
void sparse_matmul(const gw_adjacency& structure, const float* values, const Matrix& w, const Matrix& y,
                   const Epilogue& then = Epilogue());
// dw = features^T g by the rows of the features: no transposed copy, sums are added atomically in any order.
void implicit_transpose(const gw_adjacency& rows, const float* values, const Matrix& g, const Matrix& dw);

enum class Extremum { maximum, minimum };
// y = largest (smallest) row over in-edges by element, arg = where each comes from, unless null.
void spmm_max(const gw_adjacency& edges, const Matrix& x, const Matrix& y, int32_t* arg, Extremum kind);
// dx = what spmm_max sends back; `out_edges` lists parallel edges side by side.
void spmm_max_grad(const gw_adjacency& out_edges, const int32_t* arg, const Matrix& dy, const Matrix& dx);

enum class Weight { as_stored, transposed };
// y = epilogue(x w).
void matmul(const Matrix& x, const Matrix& w, Weight form, const Matrix& y, const Epilogue& then = Epilogue());

// One product of several.
struct Term {
  Matrix x, w;
  Weight form;
};
// y = epilogue(x1 w1 + x2 w2 + ...).
void matmul_terms(std::initializer_list<Term> terms, const Matrix& y, const Epilogue& then = Epilogue());
// dw = x^T g, and the column sums of g where they are wanted.
void contract(const Matrix& x, const Matrix& g, const Matrix& dw, float* col_sum = nullptr);
// y = epilogue(x).
void rows(const Matrix& x, const Matrix& y, const Epilogue& then);
void col_sum(const Matrix& x, float* sums);
// out = the sum of all products of elements.
void dot(const Matrix& x, const Matrix& y, float* out);
// y[i] = sum of the weights of the edges into i.
void sum_weights(const gw_adjacency& edges, const float* weights, float* y);

// y = x where an element is kept, times 1 / (1 - p); a pure function of seed, stream and position.
void dropout(const Matrix& x, double p, uint64_t seed, uint64_t stream, const Matrix& y);
// The same elements of sparse features, in either layout.
enum class Layout { by_row, by_column };
void sparse_dropout(const gw_adjacency& structure, const float* values, int64_t width, Layout layout, double p,
                    uint64_t seed, uint64_t stream, float* kept);

// y = factor x.
void scale(const Matrix& x, const float* factor, const Matrix& y);
void scale(const Matrix& x, double factor, const Matrix& y);
// y = x + constant.
void add_constant(const Matrix& x, float constant, const Matrix& y);
// y = (x + shift)^exponent, 0 where x + shift is 0; the exponent is -1/2, -1 or -3/2.
void power(const Matrix& x, double exponent, const Matrix& y, double shift = 0);

// y = f of the elements of its operands, all of the shape of y; f launches its kernel.
using Elements = void (*)(int64_t count, const float* const* in, float* out);
inline void elementwise(Elements f, std::initializer_list<Matrix> operands, const Matrix& y) {
  const float* in[8];
  int64_t count = 0;
  if (operands.size() > 8) throw std::runtime_error("elementwise: expected at most 8 operands");
  for (const Matrix& x : operands) in[count++] = x.at;
  f(y.rows * y.cols, in, y.at);
}

// Sum of losses and number of rows predicted right.
struct Loss {
  double sum = 0;
  int64_t correct = 0, rows = 0;

  // The mean in the precision of the logits.
  [[nodiscard]] float mean() const { return float(sum / double(rows)); }
};

// Softmax cross-entropy of the listed rows, and unless null the gradient of its mean. Waits for the device.
Loss cross_entropy(const Matrix& logits, const int64_t* labels, const Ids& ids, float* gradient);

// Waits for the device. Throws std::runtime_error for a failure of any kernel before.
void finish();

// Compares every kernel with plain loops in double precision on small random graphs and prints a line for each; the
// number of those that differ.
int self_test();

}  // namespace program
