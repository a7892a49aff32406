#include <algorithm>
#include <string>

#include "blas.h"
#include "device.h"
#include "kernels.h"
#include "memory.h"

namespace program {

void* managed(size_t bytes) {
  void* made = nullptr;
  if (cudaMallocManaged(&made, std::max<size_t>(bytes, 1)) != cudaSuccess) throw std::bad_alloc();
  if (cudaMemset(made, 0, std::max<size_t>(bytes, 1)) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess)
    throw std::bad_alloc();
  return made;
}

void unmanaged(void* memory) noexcept { (void)cudaFree(memory); }

void finish() {
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
}

namespace {

__device__ inline float staged(float t, int64_t row, int64_t col, int64_t cols, const Epilogue::Stages& s) {
  if (s.row_scale) t *= s.row_scale[row];
  if (s.bias) t += s.bias[col];
  if (s.addend) t += s.addend[row * cols + col];
  if (s.relu) t = t < 0.0f ? 0.0f : t;
  if (s.mask) t = s.mask[row * cols + col] > 0.0f ? t : 0.0f;
  if (s.post_scale) t *= s.post_scale[row];
  return t;
}

// A block for each row: its threads stride over the columns, each with its sum in a register and one store.
__global__ void sum_rows(Rows a, const float* values, Reading r, const float* x, int64_t cols, Epilogue::Stages s,
                         float* y) {
  const float self = float(r.own ? r.coefficient * double(*r.own) : r.coefficient);
  const float* factors = r.factors;
  const int64_t row = blockIdx.x, begin = a.indptr[row], end = a.indptr[row + 1];
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    float total = 0.0f;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t j = a.indices[p];
      float one = x[j * cols + col];
      if (factors) one *= factors[j];
      if (values) one *= values[number_of(a, p)];
      total += one;
    }
    if (self != 0.0f) total += self * x[row * cols + col] * (factors ? factors[row] : 1.0f);
    y[row * cols + col] = staged(total, row, col, cols, s);
  }
}

__global__ void scatter_products(Rows a, const float* values, const float* g, int64_t cols, float* dw) {
  const int64_t row = blockIdx.x, begin = a.indptr[row], end = a.indptr[row + 1];
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    const float mine = g[row * cols + col];
    for (int64_t p = begin; p < end; ++p) atomicAdd(&dw[int64_t(a.indices[p]) * cols + col], values[p] * mine);
  }
}

__global__ void extreme_rows(Rows a, const float* x, int64_t cols, int minimum, float* y, int32_t* arg) {
  const int64_t row = blockIdx.x, begin = a.indptr[row], end = a.indptr[row + 1];
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    float best = 0.0f;
    int32_t from = -1;
    for (int64_t p = begin; p < end; ++p) {
      const float one = x[int64_t(a.indices[p]) * cols + col];
      const bool wins = from < 0 || (best == best && (one != one || (minimum ? one < best : one > best)));
      if (wins) {
        best = one;
        from = a.indices[p];
      }
    }
    y[row * cols + col] = best;
    if (arg) arg[row * cols + col] = from;
  }
}

__global__ void routed_rows(Rows a, const int32_t* arg, const float* dy, int64_t cols, float* dx) {
  const int64_t row = blockIdx.x, begin = a.indptr[row], end = a.indptr[row + 1];
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    float total = 0.0f;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t i = a.indices[p];
      if (p > begin && a.indices[p - 1] == i) continue;  // of parallel edges the first
      if (arg[i * cols + col] == row) total += dy[i * cols + col];
    }
    dx[row * cols + col] = total;
  }
}

__global__ void stage_elements(const float* x, int64_t count, int64_t cols, Epilogue::Stages s, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) y[at] = staged(x[at], at / cols, at % cols, cols, s);
}

// Column sums in a fixed order: of `chunks` chunks of rows, then of the chunks.
__global__ void sum_chunks(const float* x, int64_t rows, int64_t cols, int64_t chunk, float* partial) {
  const int64_t first = blockIdx.x * chunk, last = first + chunk < rows ? first + chunk : rows;
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    float total = 0.0f;
    for (int64_t row = first; row < last; ++row) total += x[row * cols + col];
    partial[blockIdx.x * cols + col] = total;
  }
}
__global__ void add_chunks(const float* partial, int64_t chunks, int64_t cols, float* sums) {
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    double total = 0.0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += double(partial[chunk * cols + col]);
    sums[col] = float(total);
  }
}

// The draw of 16 bits of one element, laid out as the library's.
__device__ inline uint32_t drawn(uint64_t seed, uint64_t stream, uint64_t element) {
  const Draws found = philox(seed, stream, element / 64 * 8 + element % 32 / 4);
  const uint32_t word = found.word[(element & 32 ? 2 : 0) + (element % 4 < 2 ? 0 : 1)];
  return word >> (element % 2 * 16) & 0xFFFFu;
}

__global__ void drop(const float* x, int64_t count, uint32_t threshold, float scale, uint64_t seed, uint64_t stream,
                     float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) y[at] = drawn(seed, stream, uint64_t(at)) >= threshold ? x[at] * scale : 0.0f;
}

__global__ void drop_entries(Rows a, const float* values, int64_t width, int by_column, uint32_t threshold, float scale,
                             uint64_t seed, uint64_t stream, float* kept) {
  const int64_t row = blockIdx.x;
  for (int64_t p = a.indptr[row] + threadIdx.x; p < a.indptr[row + 1]; p += blockDim.x) {
    const int64_t col = a.indices[p], element = by_column ? col * width + row : row * width + col;
    kept[p] = drawn(seed, stream, uint64_t(element)) >= threshold ? values[p] * scale : 0.0f;
  }
}

enum class Function { scaled, multiplied, shifted, inverse, inverse_root, inverse_root_cubed };
__global__ void apply(Function f, const float* x, const float* factor, float constant, int64_t count, float* y) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const float t = x[at];
  if (f == Function::scaled) y[at] = t * factor[0];
  if (f == Function::multiplied) y[at] = t * constant;
  if (f == Function::shifted) y[at] = t + constant;
  const float moved = t + constant;
  if (f == Function::inverse) y[at] = moved == 0.0f ? 0.0f : 1.0f / moved;
  if (f == Function::inverse_root) y[at] = moved == 0.0f ? 0.0f : 1.0f / sqrtf(moved);
  if (f == Function::inverse_root_cubed) y[at] = moved == 0.0f ? 0.0f : 1.0f / (moved * sqrtf(moved));
}

__global__ void mark(const int64_t* labels, const int64_t* ids, int64_t count, int32_t* label_of) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count) label_of[ids ? ids[at] : at] = int32_t(labels[ids ? ids[at] : at]);
}

// A thread for each row: its loss, whether it is right, and its gradient, 0 where it has no label.
__global__ void score(const float* logits, int64_t rows, int64_t cols, const int32_t* label_of, float scale,
                      float* gradient, float* losses, int32_t* right) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int32_t label = label_of[row];
  const float* x = logits + row * cols;
  losses[row] = 0.0f;
  right[row] = 0;
  if (label < 0) {
    for (int64_t k = 0; gradient && k < cols; ++k) gradient[row * cols + k] = 0.0f;
    return;
  }
  int64_t best = 0;
  for (int64_t k = 1; k < cols; ++k)
    if (x[k] > x[best]) best = k;
  const float top = x[best], own = x[label];
  float total = 0.0f;
  for (int64_t k = 0; k < cols; ++k) total += expf(x[k] - top);
  losses[row] = logf(total) + top - own;
  right[row] = best == label;
  for (int64_t k = 0; gradient && k < cols; ++k)
    gradient[row * cols + k] = (expf(x[k] - top) / total - (k == label ? 1.0f : 0.0f)) * scale;
}

// A thread for each row.
__global__ void add_weights(Rows a, int64_t rows, const float* weights, float* y) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float total = 0.0f;
  for (int64_t p = a.indptr[row]; p < a.indptr[row + 1]; ++p) total += weights[number_of(a, p)];
  y[row] = total;
}
__global__ void multiply_rows(const float* x, const float* y, int64_t rows, int64_t cols, float* out) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float total = 0.0f;
  for (int64_t col = 0; col < cols; ++col) total += x[row * cols + col] * y[row * cols + col];
  out[row] = total;
}

__global__ void count_step(float* step) { *step += 1.0f; }

__global__ void adam(gw_adam_tensor_f32 t) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= t.size) return;
  const double step = double(*t.step), first = 1.0 - pow(t.beta1, step), second = 1.0 - pow(t.beta2, step);
  float p = t.param[at], g = t.grad[at];
  if (t.decoupled)
    p *= float(1.0 - t.lr * t.weight_decay);
  else
    g += float(t.weight_decay) * p;
  const float mean = t.exp_avg[at] + (g - t.exp_avg[at]) * float(1.0 - t.beta1);
  const float square = t.exp_avg_sq[at] * float(t.beta2) + float(1.0 - t.beta2) * g * g;
  t.exp_avg[at] = mean;
  t.exp_avg_sq[at] = square;
  t.param[at] = p - float(t.lr / first) * mean / (sqrtf(square) / float(sqrt(second)) + float(t.eps));
}

__global__ void sgd(gw_sgd_tensor_f32 t) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < t.size) t.param[at] -= float(t.lr) * (t.grad[at] + float(t.weight_decay) * t.param[at]);
}

// Room for sums of chunks and for losses, taken once.
template <class T>
T* room(int64_t count) {
  static Numbers<T> taken;
  if (int64_t(taken.size()) < count) {
    finish();
    taken.assign(size_t(count), T{});
  }
  return taken.data();
}

// Column sums come before the last factor, which is then another pass.
void staged_sums(const Matrix& y, const Epilogue& then) {
  col_sum(y, then.sums);
  if (!then.stages.post_scale) return;
  Epilogue::Stages last = {};
  last.post_scale = then.stages.post_scale;
  LAUNCH(stage_elements, blocks_for(y.rows * y.cols), wide, y.at, y.rows * y.cols, y.cols, last, y.at);
}

Epilogue::Stages first_of(const Epilogue& then) {
  Epilogue::Stages s = then.stages;
  if (then.sums) s.post_scale = nullptr;
  return s;
}

void over_edges(const gw_adjacency& a, const float* values, const Reading& reading, const Matrix& x, const Matrix& y,
                const Epilogue& then) {
  if (a.num_rows > 0)
    LAUNCH(sum_rows, a.num_rows, threads_for(x.cols), rows_of(a), values, reading, x.at, x.cols, first_of(then), y.at);
  if (then.sums) staged_sums(y, then);
}

void staged_product(const Matrix& y, const Epilogue& then) { rows(y, y, then); }

void apply_all(Function f, const Matrix& x, const float* factor, float constant, const Matrix& y) {
  const int64_t count = x.rows * x.cols;
  LAUNCH(apply, blocks_for(count), wide, f, x.at, factor, constant, count, y.at);
}

}  // namespace

float* scratch(int64_t count) {
  static Numbers<float> taken;
  if (int64_t(taken.size()) < count) {
    finish();
    taken.assign(size_t(count), 0.0f);
  }
  return taken.data();
}

void spmm(const gw_adjacency& edges, const Matrix& x, const Matrix& y, const Epilogue& then, const Reading& reading) {
  over_edges(edges, reading.by_edge, reading, x, y, then);
}

void sparse_matmul(const gw_adjacency& structure, const float* values, const Matrix& w, const Matrix& y,
                   const Epilogue& then) {
  gw_adjacency entries = structure;
  entries.edge_ids = nullptr;  // values lie by place
  over_edges(entries, values, Reading(), w, y, then);
}

void implicit_transpose(const gw_adjacency& rows, const float* values, const Matrix& g, const Matrix& dw) {
  (void)cudaMemset(dw.at, 0, size_t(dw.rows * dw.cols) * sizeof(float));
  if (rows.num_rows > 0)
    LAUNCH(scatter_products, rows.num_rows, threads_for(g.cols), rows_of(rows), values, g.at, g.cols, dw.at);
}

void spmm_max(const gw_adjacency& edges, const Matrix& x, const Matrix& y, int32_t* arg, Extremum kind) {
  const int minimum = kind == Extremum::minimum;
  if (edges.num_rows > 0)
    LAUNCH(extreme_rows, edges.num_rows, threads_for(x.cols), rows_of(edges), x.at, x.cols, minimum, y.at, arg);
}

void spmm_max_grad(const gw_adjacency& out_edges, const int32_t* arg, const Matrix& dy, const Matrix& dx) {
  if (out_edges.num_rows > 0)
    LAUNCH(routed_rows, out_edges.num_rows, threads_for(dy.cols), rows_of(out_edges), arg, dy.at, dy.cols, dx.at);
}

void matmul(const Matrix& x, const Matrix& w, Weight form, const Matrix& y, const Epilogue& then) {
  gemm(x, w, form, y, false);
  staged_product(y, then);
}

void matmul_terms(std::initializer_list<Term> terms, const Matrix& y, const Epilogue& then) {
  bool adds = false;
  for (const Term& term : terms) {
    gemm(term.x, term.w, term.form, y, adds);
    adds = true;
  }
  staged_product(y, then);
}

void contract(const Matrix& x, const Matrix& g, const Matrix& dw, float* sums) {
  gemm_transposed(x, g, dw);
  if (sums) col_sum(g, sums);
}

void rows(const Matrix& x, const Matrix& y, const Epilogue& then) {
  const int64_t count = y.rows * y.cols;
  const Epilogue::Stages s = first_of(then);
  LAUNCH(stage_elements, blocks_for(count), wide, x.at, count, y.cols, s, y.at);
  if (then.sums) staged_sums(y, then);
}

void col_sum(const Matrix& x, float* sums) {
  const int64_t chunk = 256, chunks = (x.rows + chunk - 1) / chunk;
  float* partial = room<float>(std::max(chunks * x.cols, x.rows));
  if (chunks > 0) LAUNCH(sum_chunks, chunks, threads_for(x.cols), x.at, x.rows, x.cols, chunk, partial);
  LAUNCH(add_chunks, 1, threads_for(x.cols), partial, chunks, x.cols, sums);
}

void dot(const Matrix& x, const Matrix& y, float* out) {
  float* of_rows = scratch(x.rows);
  LAUNCH(multiply_rows, blocks_for(x.rows), wide, x.at, y.at, x.rows, x.cols, of_rows);
  col_sum({of_rows, x.rows, 1}, out);
}

void sum_weights(const gw_adjacency& edges, const float* weights, float* y) {
  LAUNCH(add_weights, blocks_for(edges.num_rows), wide, rows_of(edges), edges.num_rows, weights, y);
}

void dropout(const Matrix& x, double p, uint64_t seed, uint64_t stream, const Matrix& y) {
  const auto threshold = uint32_t(std::lround(p * 65536.0));
  const float by = p < 1.0 ? float(1.0 / (1.0 - p)) : 0.0f;
  LAUNCH(drop, blocks_for(x.rows * x.cols), wide, x.at, x.rows * x.cols, threshold, by, seed, stream, y.at);
}

void sparse_dropout(const gw_adjacency& structure, const float* values, int64_t width, Layout layout, double p,
                    uint64_t seed, uint64_t stream, float* kept) {
  const auto threshold = uint32_t(std::lround(p * 65536.0));
  const float by = p < 1.0 ? float(1.0 / (1.0 - p)) : 0.0f;
  const int by_column = layout == Layout::by_column;
  if (structure.num_rows > 0)
    LAUNCH(drop_entries, structure.num_rows, 32, rows_of(structure), values, width, by_column, threshold, by, seed,
           stream, kept);
}

void scale(const Matrix& x, const float* factor, const Matrix& y) { apply_all(Function::scaled, x, factor, 0.0f, y); }

void scale(const Matrix& x, double factor, const Matrix& y) {
  apply_all(Function::multiplied, x, nullptr, float(factor), y);
}

void add_constant(const Matrix& x, float constant, const Matrix& y) {
  apply_all(Function::shifted, x, nullptr, constant, y);
}

void power(const Matrix& x, double exponent, const Matrix& y, double shift) {
  const Function f = exponent == -0.5   ? Function::inverse_root
                     : exponent == -1.5 ? Function::inverse_root_cubed
                                        : Function::inverse;
  apply_all(f, x, nullptr, float(shift), y);
}

Loss cross_entropy(const Matrix& logits, const int64_t* labels, const Ids& ids, float* gradient) {
  Loss found;
  const int64_t rows = logits.rows;
  found.rows = ids.count < 0 ? rows : ids.count;
  int32_t* label_of = room<int32_t>(2 * rows);
  int32_t* right = label_of + rows;
  float* losses = room<float>(rows);
  (void)cudaMemset(label_of, 0xFF, size_t(rows) * sizeof(int32_t));
  LAUNCH(mark, blocks_for(found.rows), wide, labels, ids.at, found.rows, label_of);
  const float by = found.rows ? float(1.0 / double(found.rows)) : 0.0f;
  LAUNCH(score, blocks_for(rows), wide, logits.at, rows, logits.cols, label_of, by, gradient, losses, right);
  finish();
  for (int64_t row = 0; row < rows; ++row) {
    found.sum += double(losses[row]);
    found.correct += right[row];
  }
  return found;
}

}  // namespace program

extern "C" int gw_adam_f32(const gw_adam_tensor_f32* table, int64_t count) {
  return gw::guarded([&] {
    for (int64_t i = 0; i < count; ++i) {
      const gw_adam_tensor_f32 one = table[i];
      LAUNCH(program::count_step, 1, 1, one.step);
      LAUNCH(program::adam, program::blocks_for(one.size), program::wide, one);
    }
    program::finish();
  });
}

extern "C" int gw_sgd_f32(const gw_sgd_tensor_f32* table, int64_t count) {
  return gw::guarded([&] {
    for (int64_t i = 0; i < count; ++i) {
      const gw_sgd_tensor_f32 one = table[i];
      LAUNCH(program::sgd, program::blocks_for(one.size), program::wide, one);
    }
    program::finish();
  });
}
