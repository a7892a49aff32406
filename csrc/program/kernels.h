// The kernels of a program: matrices in, matrices out, over the entry points of core/.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "graphweft/abi.h"
#include "graphweft/optim.h"

extern "C" {
GW_API int gw_pages_map(int64_t bytes, void** out);
GW_API int gw_pages_unmap(void* pages, int64_t bytes);
GW_API int gw_spmm_f32(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, const float* weight,
                       const float* src_scale, double self_coef, const float* self_factor, int32_t mean,
                       const gw_epilogue_f32* stages, int32_t prefetch, float* panel, int32_t plain, float* y,
                       int64_t ldy);
GW_API int gw_spmm_max_f32(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, int32_t minimum,
                           float* panel, float* y, int64_t ldy, void* arg, int64_t ldarg);
GW_API int gw_spmm_max_winners_f32(const void* arg, int32_t wide, int64_t ldarg, const float* dy, int64_t lddy,
                                   int64_t num_rows, int64_t width, float* dx, int64_t lddx, int64_t num_cols);
GW_API int gw_spmm_max_grad_f32(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const float* dy,
                                int64_t lddy, int64_t width, float* dx, int64_t lddx);
GW_API int gw_gemm_nn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w, int64_t ldw,
                          int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y, int64_t ldy,
                          const int64_t* rows, int64_t table_rows);
GW_API int gw_gemm_terms_f32(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                             const gw_epilogue_f32* epilogue, float* y, int64_t ldy);
GW_API int gw_gemm_tn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g, int64_t ldg,
                          const float* row_scale, float* dw, int64_t lddw, float* col_sum, const int64_t* rows,
                          int64_t table_rows);
GW_API int gw_rows_apply_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const gw_epilogue_f32* epilogue,
                             float* y, int64_t ldy, const int64_t* rows, int64_t table_rows);
GW_API int gw_col_sum_f32(int64_t n, int64_t f, const float* x, int64_t ldx, float* out);
GW_API int gw_power_f32(int64_t count, const float* x, double shift, double exponent, float* y);
GW_API int gw_dot_f32(int64_t count, const float* x, const float* y, float* out);
GW_API int gw_dropout_f32(int64_t n, int64_t f, const float* x, int64_t ldx, double p, uint64_t seed, uint64_t stream,
                          float* y, int64_t ldy, const int64_t* rows, int64_t table_rows);
GW_API int gw_sparse_dropout_f32(const gw_adjacency* adj, const float* values, int64_t features, int32_t turned,
                                 double p, uint64_t seed, uint64_t stream, float* out);
GW_API int gw_cross_entropy_f32(int64_t n, int64_t c, const float* logits, int64_t ld, const int64_t* rows,
                                int64_t num_rows, const int64_t* labels, double scale, float* grad, int64_t ld_grad,
                                double* loss_sum, int64_t* correct);
GW_API int gw_adam_f32(const gw_adam_tensor_f32* table, int64_t count);
GW_API int gw_sgd_f32(const gw_sgd_tensor_f32* table, int64_t count);
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

// Waits for kernels: here they are done when they return.
inline void finish() {}

// Row ids of a matrix.
struct Ids {
  const int64_t* at;
  int64_t count;
};
inline constexpr Ids all_rows{nullptr, -1};

// What is done to a finished row before it is stored, in the order of the functions here.
class Epilogue {
 public:
  Epilogue& row_scale(const float* factors) { return set(stages_.row_scale, factors); }
  Epilogue& bias(const float* values) { return set(stages_.bias, values); }
  Epilogue& addend(const Matrix& values) {
    stages_.ld_addend = values.cols;
    return set(stages_.addend, static_cast<const float*>(values.at));
  }
  Epilogue& relu() { return set(stages_.relu, 1); }
  Epilogue& mask(const Matrix& values) {
    stages_.ld_mask = values.cols;
    return set(stages_.mask, static_cast<const float*>(values.at));
  }
  Epilogue& col_sum(float* sums) { return set(stages_.col_sum, sums); }
  Epilogue& post_scale(const float* factors) { return set(stages_.post_scale, factors); }

  [[nodiscard]] const gw_epilogue_f32* stages() const { return is_set_ ? &stages_ : nullptr; }
  [[nodiscard]] const gw_epilogue_f32* always() const { return &stages_; }
  [[nodiscard]] float* sums() const { return stages_.col_sum; }
  // The same for the rows from `first` on.
  [[nodiscard]] Epilogue from(int64_t first) const {
    Epilogue rest = *this;
    gw_epilogue_f32& s = rest.stages_;
    if (s.row_scale) s.row_scale += first;
    if (s.post_scale) s.post_scale += first;
    if (s.addend) s.addend += first * s.ld_addend;
    if (s.mask) s.mask += first * s.ld_mask;
    return rest;
  }

 private:
  template <class T>
  Epilogue& set(T& stage, T value) {
    stage = value;
    is_set_ = true;
    return *this;
  }

  gw_epilogue_f32 stages_ = {};
  bool is_set_ = false;
};

// How a sum over edges reads its operand.
struct Reading {
  double coefficient = 0;
  const float* own = nullptr;
  const float* factors = nullptr;
  float* room = nullptr;
  const float* by_edge = nullptr;

  // The row itself counts so many times; with `by`, a number that is read at each call, so many times that.
  Reading& self(double times, const float* by = nullptr) { return coefficient = times, own = by, *this; }
  // A factor for each row that is read.
  Reading& src_scale(const float* by) { return factors = by, *this; }
  // A factor for each edge, by its number.
  Reading& weights(const float* by) { return by_edge = by, *this; }
  // Room for a copy of part of the rows.
  Reading& panel(float* copy) { return room = copy, *this; }
};

// y = epilogue(sum over in-edges of x).
inline void spmm(const gw_adjacency& edges, const Matrix& x, const Matrix& y, const Epilogue& then = Epilogue(),
                 const Reading& reading = Reading()) {
  check(gw_spmm_f32(&edges, x.at, x.cols, x.cols, reading.by_edge, reading.factors, reading.coefficient, reading.own, 0,
                    then.stages(), -1, reading.room, 0, y.at, y.cols));
}

// y = epilogue(features W), or with the transposed structure features^T G; `values` lie by entry of `structure`.
inline void sparse_matmul(const gw_adjacency& structure, const float* values, const Matrix& w, const Matrix& y,
                          const Epilogue& then = Epilogue(), float* panel = nullptr) {
  check(gw_spmm_f32(&structure, w.at, w.cols, w.cols, values, nullptr, 0, nullptr, 0, then.stages(), -1, panel, 0, y.at,
                    y.cols));
}

enum class Extremum { maximum, minimum };

// y = largest (smallest) row over in-edges by element, arg = where each comes from, unless null.
inline void spmm_max(const gw_adjacency& edges, const Matrix& x, const Matrix& y, int32_t* arg, Extremum kind,
                     float* panel = nullptr) {
  check(gw_spmm_max_f32(&edges, x.at, x.cols, x.cols, kind == Extremum::minimum, panel, y.at, y.cols, arg, y.cols));
}

// dx = what spmm_max sends back to the rows that `arg` names, where rows have many edges.
inline void spmm_max_grad(const int32_t* arg, const Matrix& dy, const Matrix& dx) {
  check(gw_spmm_max_winners_f32(arg, 0, dy.cols, dy.at, dy.cols, dy.rows, dy.cols, dx.at, dx.cols, dx.rows));
}

// dx = what spmm_max sends back; `out_edges` lists parallel edges side by side.
inline void spmm_max_grad(const gw_adjacency& out_edges, const int32_t* arg, const Matrix& dy, const Matrix& dx) {
  check(gw_spmm_max_grad_f32(&out_edges, arg, dy.cols, dy.at, dy.cols, dy.cols, dx.at, dx.cols));
}

enum class Weight { as_stored, transposed };

// y = epilogue(x w).
inline void matmul(const Matrix& x, const Matrix& w, Weight form, const Matrix& y, const Epilogue& then = Epilogue()) {
  check(gw_gemm_nn_f32(y.rows, x.cols, y.cols, x.at, x.cols, w.at, w.cols, form == Weight::transposed, then.stages(),
                       y.at, y.cols, nullptr, x.rows));
}

// One product of several.
struct Term {
  Matrix x, w;
  Weight form;
};

// y = epilogue(x1 w1 + x2 w2 + ...).
inline void matmul_terms(std::initializer_list<Term> terms, const Matrix& y, const Epilogue& then = Epilogue()) {
  gw_term_f32 native[8] = {};
  if (terms.size() > 8) throw std::runtime_error("matmul_terms: expected at most 8 products");
  int64_t count = 0;
  for (const Term& term : terms) {
    gw_term_f32& one = native[count++];
    one.k = term.x.cols;
    one.x = term.x.at;
    one.ldx = term.x.cols;
    one.table_rows = term.x.rows;
    one.w = term.w.at;
    one.ldw = term.w.cols;
    one.w_transposed = term.form == Weight::transposed;
  }
  check(gw_gemm_terms_f32(y.rows, y.cols, native, count, then.stages(), y.at, y.cols));
}

// dw = x^T g, and the column sums of g where they are wanted.
inline void contract(const Matrix& x, const Matrix& g, const Matrix& dw, float* col_sum = nullptr) {
  check(gw_gemm_tn_f32(x.rows, x.cols, g.cols, x.at, x.cols, g.at, g.cols, nullptr, dw.at, dw.cols, col_sum, nullptr,
                       x.rows));
}

// y = epilogue(x).
inline void rows(const Matrix& x, const Matrix& y, const Epilogue& then) {
  check(gw_rows_apply_f32(y.rows, y.cols, x.at, x.cols, then.always(), y.at, y.cols, nullptr, x.rows));
}

inline void col_sum(const Matrix& x, float* sums) { check(gw_col_sum_f32(x.rows, x.cols, x.at, x.cols, sums)); }
// out = the sum of all products of elements.
inline void dot(const Matrix& x, const Matrix& y, float* out) { check(gw_dot_f32(x.rows * x.cols, x.at, y.at, out)); }

// y = x where an element is kept, times 1 / (1 - p); a pure function of seed, stream and position.
inline void dropout(const Matrix& x, double p, uint64_t seed, uint64_t stream, const Matrix& y) {
  check(gw_dropout_f32(x.rows, x.cols, x.at, x.cols, p, seed, stream, y.at, y.cols, nullptr, x.rows));
}

// The same elements of sparse features, in either layout.
enum class Layout { by_row, by_column };
inline void sparse_dropout(const gw_adjacency& structure, const float* values, int64_t width, Layout layout, double p,
                           uint64_t seed, uint64_t stream, float* kept) {
  check(gw_sparse_dropout_f32(&structure, values, width, layout == Layout::by_column, p, seed, stream, kept));
}

// y[i] = sum of the weights of the edges into i.
void sum_weights(const gw_adjacency& edges, const float* weights, float* y);
// y = the listed rows of x.
void take_rows(const Matrix& x, const Ids& ids, const Matrix& y);
// y = 0 but in the listed rows, which are those of x.
void scatter_rows(const Matrix& x, const Ids& ids, const Matrix& y);
// y = factor x.
void scale(const Matrix& x, const float* factor, const Matrix& y);
inline void scale(const Matrix& x, double factor, const Matrix& y) {
  const auto by = float(factor);
  scale(x, &by, y);
}
// y = x + constant.
void add_constant(const Matrix& x, float constant, const Matrix& y);
// y = (x + shift)^exponent, 0 where x + shift is 0; the exponent is -1/2, -1 or -3/2.
inline void power(const Matrix& x, double exponent, const Matrix& y, double shift = 0) {
  check(gw_power_f32(x.rows * x.cols, x.at, shift, exponent, y.at));
}

// y = f of the elements of its operands, all of the shape of y.
using Elements = void (*)(int64_t begin, int64_t end, const float* const* in, float* out);
void elementwise(Elements f, std::initializer_list<Matrix> operands, const Matrix& y);

// Sum of losses and number of rows predicted right.
struct Loss {
  double sum = 0;
  int64_t correct = 0, rows = 0;

  // The mean in the precision of the logits.
  [[nodiscard]] float mean() const { return float(sum / double(rows)); }
};

// Softmax cross-entropy of the listed rows, and unless null the gradient of its mean over so many rows; 0: over those
// that are listed.
inline Loss cross_entropy(const Matrix& logits, const int64_t* labels, const Ids& ids, float* gradient,
                          int64_t of = 0) {
  Loss found;
  static constexpr int64_t none = 0;
  const int64_t* rows = ids.count < 0 ? nullptr : ids.at ? ids.at : &none;
  found.rows = rows ? ids.count : logits.rows;
  check(gw_cross_entropy_f32(logits.rows, logits.cols, logits.at, logits.cols, rows, found.rows, labels,
                             1.0 / double(of ? of : found.rows), gradient, logits.cols, &found.sum, &found.correct));
  return found;
}

}  // namespace program
