// A GCN of three layers as an engineer would write it for one graph: widths are constants of the compiler, A X is made
// once, logits are computed of labelled nodes alone, rows are scaled by the roots of degrees where they are written, and
// a block of rows is summed and multiplied while it lies in the cache. Nothing of GraphWeft is included.
//
// g++ -O3 -march=native -ffast-math -fopenmp -shared -fPIC -DFEATURES=128 -DHIDDEN=32 -DCLASSES=40 -DLABELS=0 -DSPARSE=0
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

constexpr int kVector = 16, kBlock = 8;  // floats of a vector; rows that are multiplied together
constexpr int padded(int width) { return (width + kVector - 1) / kVector * kVector; }
constexpr int F = FEATURES, H = HIDDEN, C = CLASSES, HP = padded(HIDDEN), CP = padded(CLASSES);
using V = float __attribute__((vector_size(64), aligned(4)));

V& at(float* p) { return *reinterpret_cast<V*>(p); }
const V& at(const float* p) { return *reinterpret_cast<const V*>(p); }

struct Free {
  void operator()(float* p) const { std::free(p); }
};
using Array = std::unique_ptr<float[], Free>;
Array array(int64_t count) {
  int64_t bytes = (count * 4 + 63) / 64 * 64 + 64;
  auto* p = static_cast<float*>(std::aligned_alloc(64, bytes));
  std::memset(p, 0, bytes);
  return Array(p);
}

struct Lists {  // rows of ids
  std::vector<int64_t> ptr;
  std::vector<int32_t> ids;
};

// Row i of the result lists the rows of `in` that have i.
Lists transposed(const Lists& in, int64_t rows) {
  Lists out;
  out.ptr.assign(rows + 1, 0);
  for (int32_t id : in.ids) ++out.ptr[id + 1];
  for (int64_t i = 0; i < rows; ++i) out.ptr[i + 1] += out.ptr[i];
  out.ids.resize(in.ids.size());
  std::vector<int64_t> next(out.ptr.begin(), out.ptr.end() - 1);
  for (int64_t i = 0; i + 1 < static_cast<int64_t>(in.ptr.size()); ++i)
    for (int64_t e = in.ptr[i]; e < in.ptr[i + 1]; ++e) out.ids[next[in.ids[e]]++] = static_cast<int32_t>(i);
  return out;
}

// Sum of the rows of x (of padded width W) that row i of the lists has.
template <int W>
void sum_row(const Lists& a, int64_t i, const float* x, float* out) {
  V sum[W / kVector] = {};
  int64_t stop = a.ptr[i + 1];
  for (int64_t e = a.ptr[i]; e < stop; ++e) {
    const float* row = x + static_cast<int64_t>(a.ids[e]) * W;
    if (e + 8 < stop) __builtin_prefetch(x + static_cast<int64_t>(a.ids[e + 8]) * W);
    for (int v = 0; v < W / kVector; ++v) sum[v] += at(row + v * kVector);
  }
  for (int v = 0; v < W / kVector; ++v) at(out + v * kVector) = sum[v];
}

// out[r] (padded width W) = bias + x[r] (K of stride S) times w (K x W), for up to kBlock rows.
template <int K, int S, int W>
void multiply(const float* x, int rows, const float* w, const float* bias, float* out) {
  for (int v = 0; v < W / kVector; v += 2) {
    constexpr int kWide = W / kVector > 1 ? 2 : 1;
    bool both = kWide == 2 && v + 1 < W / kVector;
    V sum[kBlock][2];
    for (int r = 0; r < kBlock; ++r)
      for (int u = 0; u < 2; ++u) sum[r][u] = bias && (u == 0 || both) ? at(bias + (v + u) * kVector) : V{};
    for (int k = 0; k < K; ++k) {
      V one = at(w + k * W + v * kVector), two = both ? at(w + k * W + (v + 1) * kVector) : V{};
#pragma GCC unroll 8
      for (int r = 0; r < kBlock; ++r) {
        float scale = x[std::min(r, rows - 1) * S + k];
        sum[r][0] += scale * one;
        sum[r][1] += scale * two;
      }
    }
    for (int r = 0; r < rows; ++r) {
      at(out + r * W + v * kVector) = sum[r][0];
      if (both) at(out + r * W + (v + 1) * kVector) = sum[r][1];
    }
  }
}

// sum (K x W) += x[r]^T (K of stride S) times g[r] (padded width W), for up to kBlock rows.
template <int K, int S, int W>
void add_outer(const float* x, int rows, const float* g, float* sum) {
  for (int k = 0; k < K; ++k)
    for (int v = 0; v < W / kVector; ++v) {
      V total = at(sum + k * W + v * kVector);
      for (int r = 0; r < rows; ++r) total += x[r * S + k] * at(g + r * W + v * kVector);
      at(sum + k * W + v * kVector) = total;
    }
}

struct Adam {
  Array value, grad, first, second;
  int64_t count = 0;
  void make(int64_t n) {
    count = n;
    value = array(n), grad = array(n), first = array(n), second = array(n);
  }
  void step(float lr, int t) {
    float one = 1 - std::pow(0.9f, t), two = 1 - std::pow(0.999f, t);
    for (int64_t i = 0; i < count; ++i) {
      first[i] = 0.9f * first[i] + 0.1f * grad[i];
      second[i] = 0.999f * second[i] + 0.001f * grad[i] * grad[i];
      value[i] -= lr * (first[i] / one) / (std::sqrt(second[i] / two) + 1e-8f);
    }
  }
};

struct Gcn {
  int64_t n = 0, m = 0;  // nodes, labelled nodes
  Lists a, at_, last, last_t;  // in-edges with loops, their transpose; those of labelled nodes
  Lists x, x_t;                // columns of sparse features
  std::vector<float> x_values, x_t_values;
  std::vector<int64_t> labels, train;
  std::vector<float> several;
  Array scale, px, h1, h2, a2, a3, d1, d2, d3, spare;
  Adam w1, b1, w2, b2, w3, b3;
  float lr = 0;
  int t = 0;

  // Each thread's sums of a gradient, added up in the order of threads.
  template <typename Body>
  void summed(int64_t rows, int64_t size, float* out, const Body& body) {
    int threads = omp_get_max_threads();
    Array parts = array(size * threads);
#pragma omp parallel
    {
      float* mine = parts.get() + size * omp_get_thread_num();
#pragma omp for schedule(dynamic, 16)
      for (int64_t block = 0; block < (rows + kBlock - 1) / kBlock; ++block)
        body(block * kBlock, static_cast<int>(std::min<int64_t>(kBlock, rows - block * kBlock)), mine);
    }
    for (int64_t i = 0; i < size; ++i) {
      out[i] = 0;
      for (int part = 0; part < threads; ++part) out[i] += parts[part * size + i];
    }
  }
  template <typename Body>
  void blocks(int64_t rows, const Body& body) {
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t block = 0; block < (rows + kBlock - 1) / kBlock; ++block)
      body(block * kBlock, static_cast<int>(std::min<int64_t>(kBlock, rows - block * kBlock)));
  }

  void finish_hidden(float* rows, int64_t i, int count) {  // relu, then the root of the degree
    for (int r = 0; r < count; ++r)
      for (int v = 0; v < HP; ++v) rows[r * HP + v] = std::max(rows[r * HP + v], 0.f) * scale[i + r];
  }
  void sums(const Lists& lists, int64_t i, int count, const float* from, float* out) {
    for (int r = 0; r < count; ++r) sum_row<HP>(lists, i + r, from, out + r * HP);
  }

  void forward_first() {
#if SPARSE
    blocks(n, [&](int64_t i, int count) {
      for (int r = 0; r < count; ++r) {
        V sum[HP / kVector] = {};
        for (int64_t e = x.ptr[i + r]; e < x.ptr[i + r + 1]; ++e)
          for (int v = 0; v < HP / kVector; ++v)
            sum[v] += x_values[e] * at(&w1.value[static_cast<int64_t>(x.ids[e]) * HP + v * kVector]);
        for (int v = 0; v < HP / kVector; ++v) at(&spare[(i + r) * HP + v * kVector]) = scale[i + r] * sum[v];
      }
    });
    blocks(n, [&](int64_t i, int count) {
      sums(a, i, count, spare.get(), &h1[i * HP]);
      for (int r = 0; r < count; ++r)
        for (int v = 0; v < HP; ++v) h1[(i + r) * HP + v] = h1[(i + r) * HP + v] * scale[i + r] + b1.value[v];
      finish_hidden(&h1[i * HP], i, count);
    });
#else
    blocks(n, [&](int64_t i, int count) {
      multiply<F, F, HP>(&px[i * F], count, w1.value.get(), b1.value.get(), &h1[i * HP]);
      finish_hidden(&h1[i * HP], i, count);
    });
#endif
  }

  double loss_and_gradient(const float* logits, int64_t i, float* g) {
    double loss = 0;
#if LABELS
    for (int c = 0; c < C; ++c) {
      float z = logits[c], y = several[i * C + c];
      loss += std::max(z, 0.f) - z * y + std::log1p(std::exp(-std::abs(z)));
      g[c] = (1 / (1 + std::exp(-z)) - y) / (static_cast<float>(m) * C);
    }
    return loss / C;
#else
    float top = *std::max_element(logits, logits + C), sum = 0;
    for (int c = 0; c < C; ++c) sum += g[c] = std::exp(logits[c] - top);
    loss = std::log(sum) + top - logits[labels[i]];
    for (int c = 0; c < C; ++c) g[c] /= sum * m;
    g[labels[i]] -= 1.f / m;
    return loss;
#endif
  }

  float epoch() {
    forward_first();
    blocks(n, [&](int64_t i, int count) {
      sums(a, i, count, h1.get(), &a2[i * HP]);
      for (int r = 0; r < count; ++r)
        for (int v = 0; v < HP; ++v) a2[(i + r) * HP + v] *= scale[i + r];
      multiply<H, HP, HP>(&a2[i * HP], count, w2.value.get(), b2.value.get(), &h2[i * HP]);
      finish_hidden(&h2[i * HP], i, count);
    });
    std::vector<float> turned(static_cast<size_t>(CP) * HP, 0.f);  // of the last weight
    for (int k = 0; k < H; ++k)
      for (int c = 0; c < C; ++c) turned[c * HP + k] = w3.value[k * CP + c];
    double loss = 0;
#pragma omp parallel for schedule(dynamic, 16) reduction(+ : loss)
    for (int64_t block = 0; block < (m + kBlock - 1) / kBlock; ++block) {
      int64_t i = block * kBlock;
      int count = static_cast<int>(std::min<int64_t>(kBlock, m - i));
      alignas(64) float logits[kBlock * CP];
      sums(last, i, count, h2.get(), &a3[i * HP]);
      for (int r = 0; r < count; ++r)
        for (int v = 0; v < HP; ++v) a3[(i + r) * HP + v] *= scale[train[i + r]];
      multiply<H, HP, CP>(&a3[i * HP], count, w3.value.get(), b3.value.get(), logits);
      for (int r = 0; r < count; ++r) loss += loss_and_gradient(logits + r * CP, i + r, &d3[(i + r) * CP]);
      multiply<C, CP, HP>(&d3[i * CP], count, turned.data(), nullptr, &spare[i * HP]);
      for (int r = 0; r < count; ++r)
        for (int v = 0; v < HP; ++v) spare[(i + r) * HP + v] *= scale[train[i + r]];
    }
    backward();
    ++t;
    for (Adam* p : {&w1, &b1, &w2, &b2, &w3, &b3}) p->step(lr, t);
    return static_cast<float>(loss / m);
  }

  // d <- relu'(h) * scale * (sums of rows of `from`); h holds relu times scale
  void through(const Lists& lists, int64_t i, int count, const float* from, const float* h, float* d) {
    sums(lists, i, count, from, d);
    for (int r = 0; r < count; ++r)
      for (int v = 0; v < HP; ++v) d[r * HP + v] = h[r * HP + v] > 0 ? d[r * HP + v] * scale[i + r] : 0.f;
  }

  template <int W>
  static void add_rows(const float* rows, int count, float* sum) {
    for (int r = 0; r < count; ++r)
      for (int v = 0; v < W / kVector; ++v) at(sum + v * kVector) += at(rows + r * W + v * kVector);
  }

  void backward() {
    constexpr int64_t kLast = static_cast<int64_t>(H) * CP, kMiddle = static_cast<int64_t>(H) * HP;
    std::vector<float> sum(std::max<int64_t>(kLast + CP, static_cast<int64_t>(F) * HP + HP));
    summed(m, kLast + CP, sum.data(), [&](int64_t i, int count, float* mine) {
      add_outer<H, HP, CP>(&a3[i * HP], count, &d3[i * CP], mine);
      add_rows<CP>(&d3[i * CP], count, mine + kLast);
    });
    std::copy_n(sum.data(), kLast, w3.grad.get());
    std::copy_n(sum.data() + kLast, CP, b3.grad.get());
    std::vector<float> turned(static_cast<size_t>(HP) * HP, 0.f);
    for (int k = 0; k < H; ++k)
      for (int c = 0; c < H; ++c) turned[c * HP + k] = w2.value[k * HP + c];
    summed(n, kMiddle + HP, sum.data(), [&](int64_t i, int count, float* mine) {
      through(last_t, i, count, spare.get(), &h2[i * HP], &d2[i * HP]);
      add_outer<H, HP, HP>(&a2[i * HP], count, &d2[i * HP], mine);
      add_rows<HP>(&d2[i * HP], count, mine + kMiddle);
    });
    std::copy_n(sum.data(), kMiddle, w2.grad.get());
    std::copy_n(sum.data() + kMiddle, HP, b2.grad.get());
    blocks(n, [&](int64_t i, int count) {
      alignas(64) float product[kBlock * HP];
      multiply<H, HP, HP>(&d2[i * HP], count, turned.data(), nullptr, product);
      for (int r = 0; r < count; ++r)
        for (int v = 0; v < HP; ++v) d2[(i + r) * HP + v] = product[r * HP + v] * scale[i + r];
    });
    backward_first(sum);
  }

  void backward_first(std::vector<float>& sum) {
#if SPARSE
    summed(n, HP, sum.data(), [&](int64_t i, int count, float* mine) {
      through(at_, i, count, d2.get(), &h1[i * HP], &d1[i * HP]);
      add_rows<HP>(&d1[i * HP], count, mine);
      for (int r = 0; r < count; ++r)
        for (int v = 0; v < HP; ++v) d1[(i + r) * HP + v] *= scale[i + r];
    });
    std::copy_n(sum.data(), HP, b1.grad.get());
    blocks(n, [&](int64_t i, int count) {
      sums(at_, i, count, d1.get(), &spare[i * HP]);
      for (int r = 0; r < count; ++r)
        for (int v = 0; v < HP; ++v) spare[(i + r) * HP + v] *= scale[i + r];
    });
#pragma omp parallel for schedule(dynamic, 32)
    for (int64_t k = 0; k < F; ++k) {
      V total[HP / kVector] = {};
      for (int64_t e = x_t.ptr[k]; e < x_t.ptr[k + 1]; ++e)
        for (int v = 0; v < HP / kVector; ++v)
          total[v] += x_t_values[e] * at(&spare[static_cast<int64_t>(x_t.ids[e]) * HP + v * kVector]);
      for (int v = 0; v < HP / kVector; ++v) at(&w1.grad[k * HP + v * kVector]) = total[v];
    }
#else
    constexpr int64_t kFirst = static_cast<int64_t>(F) * HP;
    summed(n, kFirst + HP, sum.data(), [&](int64_t i, int count, float* mine) {
      alignas(64) float d[kBlock * HP];
      through(at_, i, count, d2.get(), &h1[i * HP], d);
      add_outer<F, F, HP>(&px[i * F], count, d, mine);
      add_rows<HP>(d, count, mine + kFirst);
    });
    std::copy_n(sum.data(), kFirst, w1.grad.get());
    std::copy_n(sum.data() + kFirst, HP, b1.grad.get());
#endif
  }
};

void set(Adam& p, const float* from, int rows, int columns) {
  p.make(static_cast<int64_t>(rows) * padded(columns));
  for (int r = 0; r < rows; ++r) std::copy_n(from + static_cast<int64_t>(r) * columns, columns, &p.value[r * padded(columns)]);
}

Lists with_loops(int64_t n, const int64_t* ptr, const int64_t* ids) {
  Lists out;
  out.ptr.push_back(0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t e = ptr[i]; e < ptr[i + 1]; ++e)
      if (ids[e] != i) out.ids.push_back(static_cast<int32_t>(ids[e]));
    out.ids.push_back(static_cast<int32_t>(i));
    out.ptr.push_back(static_cast<int64_t>(out.ids.size()));
  }
  return out;
}

}  // namespace

// `x` is the dense matrix (n x F), or with SPARSE the values of the lists `x_ptr` and `x_ids`. `y` has labels of all
// nodes: classes, or with LABELS a float for each.
extern "C" void* make(int64_t n, const int64_t* ptr, const int64_t* ids, const float* x, const int64_t* x_ptr,
                      const int64_t* x_ids, const void* y, const int64_t* train, int64_t m, const float* const* weights,
                      float lr) {
  auto* g = new Gcn;
  g->n = n, g->m = m, g->lr = lr;
  g->a = with_loops(n, ptr, ids);
  g->at_ = transposed(g->a, n);
  g->train.assign(train, train + m);
  g->last.ptr.push_back(0);
  for (int64_t i = 0; i < m; ++i) {
    g->last.ids.insert(g->last.ids.end(), &g->a.ids[g->a.ptr[train[i]]], &g->a.ids[g->a.ptr[train[i] + 1]]);
    g->last.ptr.push_back(static_cast<int64_t>(g->last.ids.size()));
#if LABELS
    const float* row = static_cast<const float*>(y) + train[i] * C;
    g->several.insert(g->several.end(), row, row + C);
#else
    g->labels.push_back(static_cast<const int64_t*>(y)[train[i]]);
#endif
  }
  g->last_t = transposed(g->last, n);
  g->scale = array(n);
  for (int64_t i = 0; i < n; ++i) g->scale[i] = 1 / std::sqrt(static_cast<float>(g->a.ptr[i + 1] - g->a.ptr[i]));
#if SPARSE
  g->x.ptr.assign(x_ptr, x_ptr + n + 1);
  g->x.ids.assign(x_ids, x_ids + x_ptr[n]);
  g->x_values.assign(x, x + x_ptr[n]);
  g->x_t = transposed(g->x, F);
  std::vector<int64_t> next(g->x_t.ptr.begin(), g->x_t.ptr.end() - 1);
  g->x_t_values.resize(x_ptr[n]);
  for (int64_t e = 0; e < x_ptr[n]; ++e) g->x_t_values[next[g->x.ids[e]]++] = x[e];
  g->d1 = array(n * HP);
#else
  g->px = array(n * F);
#pragma omp parallel for schedule(dynamic, 64)
  for (int64_t i = 0; i < n; ++i) {
    float* out = &g->px[i * F];
    for (int64_t e = g->a.ptr[i]; e < g->a.ptr[i + 1]; ++e) {
      int64_t j = g->a.ids[e];
      float weight = g->scale[i] * g->scale[j];
      for (int k = 0; k < F; ++k) out[k] += weight * x[j * F + k];
    }
  }
#endif
  g->h1 = array(n * HP), g->h2 = array(n * HP), g->a2 = array(n * HP), g->d2 = array(n * HP);
  g->a3 = array(m * HP), g->d3 = array(m * CP), g->spare = array(std::max(n, m) * HP);
  set(g->w1, weights[0], F, H), set(g->b1, weights[1], 1, H), set(g->w2, weights[2], H, H);
  set(g->b2, weights[3], 1, H), set(g->w3, weights[4], H, C), set(g->b3, weights[5], 1, C);
  return g;
}

extern "C" float epoch(void* gcn) { return static_cast<Gcn*>(gcn)->epoch(); }
