// Losses over the rows or the entries of a matrix, and arg-max over its rows, one pass each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
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
  float* grad;             // [n, c], null, or the logits themselves
  int64_t ld_grad;
  double scale;  // of the gradient
};

struct cross_entropy_part {
  double loss = 0.0;
  int64_t correct = 0;
  int64_t bad = -1;  // first row whose label is out of range
};

inline vf::vec larger(vf::vec a, vf::vec b) { return a > b ? a : b; }

// 0, 1, 2 ... by lane.
inline int_lanes lane_numbers() {
  int_lanes lane{};
  for (int l = 0; l < vf::lanes; ++l) lane[l] = l;
  return lane;
}

// Every lane beside the one `Distance` away.
template <int Distance, int... Lane>
inline vf::vec exchanged(vf::vec t, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(t, t, (Lane ^ Distance)...);
}

// Lanes combined in a fixed tree, the same on every lane count that halves to it.
template <int Distance = vf::lanes / 2, class F>
inline float fold_lanes(vf::vec t, F&& f) {
  if constexpr (Distance == 0) {
    return t[0];
  } else {
    t = f(t, exchanged<Distance>(t, std::make_integer_sequence<int, vf::lanes>{}));
    return fold_lanes<Distance / 2>(t, f);
  }
}

inline float largest_lane(vf::vec t) { return fold_lanes(t, larger); }
inline float sum_lanes(vf::vec t) {
  return fold_lanes(t, [](vf::vec a, vf::vec b) { return a + b; });
}

// Bit l is set where lane l of t equals the value.
inline uint32_t equal_bits(vf::vec t, float value) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(__m512(t), _mm512_set1_ps(value), _CMP_EQ_OQ);
#elif defined(__AVX2__)
  return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(__m256(t), _mm256_set1_ps(value), _CMP_EQ_OQ)));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < vf::lanes; ++lane) bits |= uint32_t(t[lane] == value) << lane;
  return bits;
#endif
}

// 0 in the first `tail` lanes, -inf in the others: what pads a row for the maximum.
inline vf::vec padding(int tail) {
  vf::vec t{};
  for (int lane = tail; lane < vf::lanes; ++lane) t[lane] = -std::numeric_limits<float>::infinity();
  return t;
}

// The first of the c columns that equals the value, c if none does.
inline int64_t first_equal(const float* x, int64_t c, float value) {
  for (int64_t j = 0; j < c; j += vf::lanes) {
    const bool full = j + vf::lanes <= c;
    uint32_t bits = equal_bits(full ? vf::load(x + j) : vf::load_part(x + j, int(c - j)), value);
    if (!full) bits &= (1u << (c - j)) - 1u;
    if (bits) return j + __builtin_ctz(bits);
  }
  return c;
}

// One row of logits: its maximum, the first column that holds it, and the sum of exp(x - maximum).
struct row_softmax {
  float maximum, sum;
  int64_t first;
};

// A row of V vectors, held in registers; out = exp(x - maximum) * (scale / sum), less scale at the label.
template <int V>
inline row_softmax softmax_tile(const float* x, int tail, vf::vec pad, int32_t label, float scale, float* out) {
  vf::vec t[V];
  tile_io<f32, V, false>::load(x, tail, t);
  t[V - 1] += pad;
  vf::vec best = t[0];
  for (int v = 1; v < V; ++v) best = larger(best, t[v]);
  const float maximum = largest_lane(best);
  int64_t first = V * vf::lanes;  // stays so where the maximum is not a number
  for (int v = V - 1; v >= 0; --v)
    if (const uint32_t bits = equal_bits(t[v], maximum)) first = v * vf::lanes + __builtin_ctz(bits);
  vf::vec total{};
  for (int v = 0; v < V; ++v) {
    t[v] = exp_lanes(t[v] - maximum);
    total += t[v];
  }
  const float sum = sum_lanes(total);
  if (out) {
    const float factor = scale / sum;
    const int_lanes lane = lane_numbers();
    for (int v = 0; v < V; ++v) {
      t[v] *= factor;
      t[v] = lane == label - v * vf::lanes ? t[v] - scale : t[v];
    }
    tile_io<f32, V, false>::store(out, tail, t);
  }
  return {maximum, sum, first};
}

// A row of any width, read three times from the cache.
inline row_softmax softmax_row(const float* x, int64_t c, vf::vec pad, int64_t label, float scale, float* out) {
  const int64_t whole = (c - 1) / vf::lanes * vf::lanes;
  const int tail = int(c - whole);
  const vf::vec last = vf::load_part(x + whole, tail) + pad;
  vf::vec best = last;
  for (int64_t j = 0; j < whole; j += vf::lanes) best = larger(best, vf::load(x + j));
  const float maximum = largest_lane(best);
  const int64_t first = first_equal(x, c, maximum);
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
    out[label] -= scale;
  }
  return {maximum, sum, first};
}

inline row_softmax softmax_any(const float* x, int64_t c, vf::vec pad, int64_t label, float scale, float* out) {
  const int tail = int((c - 1) % vf::lanes) + 1;
  switch ((c + vf::lanes - 1) / vf::lanes) {
    case 1:
      return softmax_tile<1>(x, tail, pad, int32_t(label), scale, out);
    case 2:
      return softmax_tile<2>(x, tail, pad, int32_t(label), scale, out);
    case 3:
      return softmax_tile<3>(x, tail, pad, int32_t(label), scale, out);
    case 4:
      return softmax_tile<4>(x, tail, pad, int32_t(label), scale, out);
    case 5:
      return softmax_tile<5>(x, tail, pad, int32_t(label), scale, out);
    case 6:
      return softmax_tile<6>(x, tail, pad, int32_t(label), scale, out);
    case 7:
      return softmax_tile<7>(x, tail, pad, int32_t(label), scale, out);
    case 8:
      return softmax_tile<8>(x, tail, pad, int32_t(label), scale, out);
    default:
      return softmax_row(x, c, pad, label, scale, out);
  }
}

// Rows [begin, end). Logarithms are taken a vector of rows at a time; losses are added in row order.
inline cross_entropy_part cross_entropy_rows(const cross_entropy_args& args, int64_t begin, int64_t end) {
  cross_entropy_part part;
  const vf::vec pad = padding(int((args.c - 1) % vf::lanes) + 1);
  float sum[vf::lanes], shift[vf::lanes], weight[vf::lanes];
  int waiting = 0;
  const int64_t ahead = 1 + 1024 / args.c;  // rows: about 4 KiB on
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
    if (i + ahead < end && (!args.weight || args.weight[i + ahead]))
      for (int64_t j = 0; j < args.c; j += 16) __builtin_prefetch(args.logits + (i + ahead) * args.ld + j);
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
    const float at_label = x[label];  // the gradient may be written over the logits
    const row_softmax row = softmax_any(x, args.c, pad, label, scale, grad);
    sum[waiting] = row.sum;
    shift[waiting] = at_label - row.maximum;
    weight[waiting] = float(times);
    part.correct += row.first == label ? int64_t(times) : 0;
    if (++waiting == vf::lanes) settle();
  }
  settle();
  return part;
}

// How often each of the n rows is listed; an error names the first id out of range.
inline std::unique_ptr<uint32_t[]> count_rows(const char* who, const int64_t* rows, int64_t num_rows, int64_t n) {
  std::unique_ptr<uint32_t[]> count(new uint32_t[size_t(n)]());
  for (int64_t p = 0; p < num_rows; ++p) {
    if (rows[p] < 0 || rows[p] >= n)
      throw error(out_of_range, std::string(who) + ": expected rows in [0, " + std::to_string(n) + "), got " +
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

struct entry_loss_args {
  int64_t n, c;
  const float* values;
  int64_t ld;
  const float* labels;  // [n, c], NaN where unknown
  int64_t ld_labels;
  const uint32_t* weight;  // [n] how often each row counts, null: once
  float* grad;             // [n, c], null, or the values themselves
  int64_t ld_grad;
  double scale;  // of the gradient
};

struct entry_loss_part {
  double loss = 0.0;
  int64_t known = 0, hits = 0, predicted = 0, actual = 0;

  void add(const entry_loss_part& other) {
    loss += other.loss;
    known += other.known;
    hits += other.hits;
    predicted += other.predicted;
    actual += other.actual;
  }
};

// Binary cross entropy of logits x and labels y; returns its derivative by x.
struct binary_entries {
  static inline vf::vec derive(vf::vec x, vf::vec y, vf::vec& loss) {
    const vf::vec e = exp_lanes(x < 0.0f ? x : -x);
    const vf::vec one = e + 1.0f;
    const vf::vec rounded = one - 1.0f;  // what the sum kept of e: log(1 + e) to the last place for any e
    const vf::vec log_sum = rounded == 0.0f ? e : log_lanes(one) * (e / rounded);
    loss = (x > 0.0f ? x : vf::vec{}) - x * y + log_sum;
    return (x < 0.0f ? e : vf::splat(1.0f)) / one - y;
  }
};

// Squared difference of x and y; returns its derivative by x.
struct squared_entries {
  static inline vf::vec derive(vf::vec x, vf::vec y, vf::vec& loss) {
    const vf::vec difference = x - y;
    loss = difference * difference;
    return difference + difference;
  }
};

// How many entries of some rows are known, and of these predicted (above 0), actual (above 1/2) and both, by lane.
struct entry_tally {
  int_lanes known{}, hits{}, predicted{}, actual{};

  static int64_t total(int_lanes counts) {
    int64_t sum = 0;
    for (int lane = 0; lane < vf::lanes; ++lane) sum += counts[lane];
    return sum;
  }
  // Adds the counts, each row taken so many times, and starts again.
  void settle(int64_t times, entry_loss_part& part) {
    part.known += times * total(known);
    part.hits += times * total(hits);
    part.predicted += times * total(predicted);
    part.actual += times * total(actual);
    *this = {};
  }
};

// Rows [begin, end). Losses of a row are added in lanes, those of rows in row order.
template <class Entries>
inline entry_loss_part entry_loss_rows(const entry_loss_args& args, int64_t begin, int64_t end) {
  constexpr int64_t wide = 1 << 20;  // columns, from which counts of several rows might not fit 32 bits
  entry_loss_part part;
  entry_tally tally;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t times = args.weight ? args.weight[i] : 1;
    float* grad = args.grad ? args.grad + i * args.ld_grad : nullptr;
    if (times == 0) {
      if (grad) std::memset(grad, 0, size_t(args.c) * sizeof(float));
      continue;
    }
    const bool alone = times != 1 || args.c >= wide;
    if (alone) tally.settle(1, part);
    const float *x = args.values + i * args.ld, *y = args.labels + i * args.ld_labels;
    const vf::vec scale = vf::splat(float(args.scale * double(times)));
    vf::vec sum{};
    for (int64_t j = 0; j < args.c; j += vf::lanes) {
      const bool full = j + vf::lanes <= args.c;
      const int count = full ? vf::lanes : int(args.c - j);
      const vf::vec value = full ? vf::load(x + j) : vf::load_part(x + j, count);
      const vf::vec label = full ? vf::load(y + j) : vf::load_part(y + j, count);
      const int_lanes known = (label == label) & (lane_numbers() < count);
      vf::vec loss;
      const vf::vec slope = Entries::derive(value, label, loss);
      sum += known ? loss : vf::vec{};
      const int_lanes predicted = known & (value > 0.0f), actual = known & (label > 0.5f);
      tally.known -= known;  // true is -1
      tally.predicted -= predicted;
      tally.actual -= actual;
      tally.hits -= predicted & actual;
      if (!grad) continue;
      const vf::vec out = known ? slope * scale : vf::vec{};
      if (full)
        vf::store(grad + j, out);
      else
        vf::store_part(grad + j, out, count);
    }
    part.loss += double(sum_lanes(sum)) * double(times);
    if (alone) tally.settle(times, part);
  }
  tally.settle(1, part);
  return part;
}

template <class Entries>
inline entry_loss_part entry_loss_all(const entry_loss_args& args) {
  const int64_t grain = std::max<int64_t>(1, 8192 / args.c);
  std::vector<entry_loss_part> parts(size_t((args.n + grain - 1) / grain));
  parallel_ranges(args.n, grain, [&](int64_t begin, int64_t end) {
    parts[size_t(begin / grain)] = entry_loss_rows<Entries>(args, begin, end);
  });
  entry_loss_part whole;
  for (const entry_loss_part& part : parts) whole.add(part);
  return whole;
}

// Fills the gradient; returns the sum of the losses and the counts. Short rows that lie one behind the other are taken
// as fewer long ones, so that few lanes are empty.
template <class Entries>
inline entry_loss_part entry_loss(const entry_loss_args& args) {
  const bool dense = !args.weight && args.ld == args.c && args.ld_labels == args.c && args.ld_grad == args.c;
  const int64_t joined = dense ? std::max<int64_t>(1, 1024 / args.c) : 1;
  entry_loss_args body = args, rest = args;
  body.n = args.n / joined;
  body.c = body.ld = body.ld_labels = body.ld_grad = args.c * joined;
  if (joined == 1) return entry_loss_all<Entries>(args);
  const int64_t done = body.n * joined * args.c;
  rest.n = args.n - body.n * joined;
  rest.values += done;
  rest.labels += done;
  if (rest.grad) rest.grad += done;
  entry_loss_part whole = entry_loss_all<Entries>(body);
  whole.add(entry_loss_all<Entries>(rest));
  return whole;
}

}  // namespace gw
