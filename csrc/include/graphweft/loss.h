// Softmax cross entropy and arg-max over the rows of a matrix of logits, one pass each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "graphweft/epilogue.h"
#include "graphweft/explog.h"
#include "graphweft/parallel.h"

namespace gw {

struct cross_entropy_args {
  int64_t n, c;
  const float* logits;
  int64_t ld;
  const int64_t* labels;   // [n]
  const uint32_t* weight;  // [n] how often each row counts, null: once
  float* grad;             // [n, c] or null
  int64_t ld_grad;
  double scale;            // of the gradient
};

struct cross_entropy_part {
  double loss = 0.0;
  int64_t correct = 0;
  int64_t bad = -1;  // first row whose label is out of range
};

inline vf::vec larger(vf::vec a, vf::vec b) { return a > b ? a : b; }

inline float largest_lane(vf::vec t) {
  float best = t[0];
  for (int lane = 1; lane < vf::lanes; ++lane) best = t[lane] > best ? t[lane] : best;
  return best;
}

// Lanes added in a fixed tree.
inline float sum_lanes(vf::vec t) {
  float half[vf::lanes];
  std::memcpy(half, &t, sizeof t);
  for (int width = vf::lanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) half[lane] += half[lane + width];
  return half[0];
}

// 0 in the first `tail` lanes, -inf in the others: what pads a row for the maximum.
inline vf::vec padding(int tail) {
  vf::vec t{};
  for (int lane = tail; lane < vf::lanes; ++lane) t[lane] = -std::numeric_limits<float>::infinity();
  return t;
}

// One row of logits: its maximum and the sum of exp(x - maximum); `out`, if any, receives those exponentials.
struct row_softmax {
  float maximum, sum;
};

// A row of V vectors, held in registers; out = exp(x - maximum) * (scale / sum).
template <int V>
inline row_softmax softmax_tile(const float* x, int tail, vf::vec pad, float scale, float* out) {
  vf::vec t[V];
  tile_io<f32, V, false>::load(x, tail, t);
  t[V - 1] += pad;
  vf::vec best = t[0];
  for (int v = 1; v < V; ++v) best = larger(best, t[v]);
  const float maximum = largest_lane(best);
  vf::vec total{};
  for (int v = 0; v < V; ++v) {
    t[v] = exp_lanes(t[v] - maximum);
    total += t[v];
  }
  const float sum = sum_lanes(total);
  if (out) {
    const float factor = scale / sum;
    for (int v = 0; v < V; ++v) t[v] *= factor;
    tile_io<f32, V, false>::store(out, tail, t);
  }
  return {maximum, sum};
}

// A row of any width, read three times from the cache.
inline row_softmax softmax_row(const float* x, int64_t c, vf::vec pad, float scale, float* out) {
  const int64_t whole = (c - 1) / vf::lanes * vf::lanes;
  const int tail = int(c - whole);
  const vf::vec last = vf::load_part(x + whole, tail) + pad;
  vf::vec best = last;
  for (int64_t j = 0; j < whole; j += vf::lanes) best = larger(best, vf::load(x + j));
  const float maximum = largest_lane(best);
  vf::vec total{};
  for (int64_t j = 0; j < whole; j += vf::lanes) {
    const vf::vec e = exp_lanes(vf::load(x + j) - maximum);
    if (out) vf::store(out + j, e);
    total += e;
  }
  const vf::vec e = exp_lanes(last - maximum);
  total += e;
  const float sum = sum_lanes(total);
  if (out) {
    const float factor = scale / sum;
    for (int64_t j = 0; j < whole; j += vf::lanes) vf::store(out + j, vf::load(out + j) * factor);
    vf::store_part(out + whole, e * factor, tail);
  }
  return {maximum, sum};
}

inline row_softmax softmax_any(const float* x, int64_t c, vf::vec pad, float scale, float* out) {
  const int tail = int((c - 1) % vf::lanes) + 1;
  switch ((c + vf::lanes - 1) / vf::lanes) {
    case 1: return softmax_tile<1>(x, tail, pad, scale, out);
    case 2: return softmax_tile<2>(x, tail, pad, scale, out);
    case 3: return softmax_tile<3>(x, tail, pad, scale, out);
    case 4: return softmax_tile<4>(x, tail, pad, scale, out);
    default: return softmax_row(x, c, pad, scale, out);
  }
}

// True when no column before `label` reaches the maximum, which `label` does.
inline bool is_first_maximum(const float* x, int64_t label, float maximum) {
  if (!(x[label] == maximum)) return false;
  for (int64_t j = 0; j < label; ++j)
    if (x[j] == maximum) return false;
  return true;
}

// Rows [begin, end). Logarithms are taken a vector of rows at a time; losses are added in row order.
inline cross_entropy_part cross_entropy_rows(const cross_entropy_args& args, int64_t begin, int64_t end) {
  cross_entropy_part part;
  const vf::vec pad = padding(int((args.c - 1) % vf::lanes) + 1);
  float sum[vf::lanes], shift[vf::lanes], weight[vf::lanes];
  int waiting = 0;
  const auto settle = [&] {
    for (int lane = waiting; lane < vf::lanes; ++lane) sum[lane] = 1.0f;
    const vf::vec logs = log_lanes(vf::load(sum));
    for (int lane = 0; lane < waiting; ++lane)
      part.loss += (double(logs[lane]) - double(shift[lane])) * double(weight[lane]);
    waiting = 0;
  };
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t times = args.weight ? args.weight[i] : 1;
    float* grad = args.grad ? args.grad + i * args.ld_grad : nullptr;
    if (times == 0) {
      if (grad) std::memset(grad, 0, size_t(args.c) * sizeof(float));
      continue;
    }
    const int64_t label = args.labels[i];
    if (label < 0 || label >= args.c) {
      part.bad = i;
      return part;
    }
    const float* x = args.logits + i * args.ld;
    const auto scale = float(args.scale * double(times));
    const row_softmax row = softmax_any(x, args.c, pad, scale, grad);
    if (grad) grad[label] -= scale;
    sum[waiting] = row.sum;
    shift[waiting] = x[label] - row.maximum;
    weight[waiting] = float(times);
    part.correct += is_first_maximum(x, label, row.maximum) ? int64_t(times) : 0;
    if (++waiting == vf::lanes) settle();
  }
  settle();
  return part;
}

// How often each of the n rows is listed; an error names the first id out of range.
inline std::unique_ptr<uint32_t[]> count_rows(const int64_t* rows, int64_t num_rows, int64_t n) {
  std::unique_ptr<uint32_t[]> count(new uint32_t[size_t(n)]());
  for (int64_t p = 0; p < num_rows; ++p) {
    if (rows[p] < 0 || rows[p] >= n)
      throw error(out_of_range, "cross_entropy: expected rows in [0, " + std::to_string(n) + "), got " +
                                    std::to_string(rows[p]) + " at position " + std::to_string(p));
    ++count[size_t(rows[p])];
  }
  return count;
}

// Fills the gradient; returns the sum of losses and the number of rows whose first maximum is their label.
inline cross_entropy_part cross_entropy(const cross_entropy_args& args) {
  constexpr int64_t grain = 512;
  std::vector<cross_entropy_part> parts(size_t((args.n + grain - 1) / grain));
  parallel_ranges(args.n, grain, [&](int64_t begin, int64_t end) {
    parts[size_t(begin / grain)] = cross_entropy_rows(args, begin, end);
  });
  cross_entropy_part whole;
  for (const cross_entropy_part& part : parts) {
    if (part.bad >= 0)
      throw error(out_of_range, "cross_entropy: expected labels in [0, " + std::to_string(args.c) + "), got " +
                                    std::to_string(args.labels[part.bad]) + " at position " + std::to_string(part.bad));
    whole.loss += part.loss;
    whole.correct += part.correct;
  }
  return whole;
}

// The first column that holds the row's maximum; NaN counts as larger than any number, as in torch.
inline int64_t argmax_row(const float* x, int64_t c) {
  int_lanes lane{};
  for (int l = 0; l < vf::lanes; ++l) lane[l] = l;
  vf::vec best = vf::vec{} - std::numeric_limits<float>::infinity();
  int_lanes where = lane;
  for (int64_t j = 0; j < c; j += vf::lanes) {
    const bool full = j + vf::lanes <= c;
    const vf::vec t = full ? vf::load(x + j) : vf::load_part(x + j, int(c - j)) + padding(int(c - j));
    const int_lanes better = (t > best) | ((t != t) & (best == best));
    best = better ? t : best;
    where = better ? lane + int32_t(j) : where;
  }
  float top = best[0];
  int32_t at = where[0];
  for (int l = 1; l < vf::lanes; ++l) {
    const bool nan = best[l] != best[l], top_nan = top != top;
    const bool same = nan ? top_nan : best[l] == top;
    if ((nan && !top_nan) || best[l] > top || (same && where[l] < at)) {
      top = best[l];
      at = where[l];
    }
  }
  return at;
}

}  // namespace gw
