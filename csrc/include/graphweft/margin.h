// Sums of margins over pairs of in-edges of one destination, and their gradient: the pair-wise norm of constrained
// attention. Short rows compare all pairs, a vector of edges at a time, or of edges and heads where these come in twos,
// fours or eights; scores of long rows are sorted, so a row of d edges costs d log d, and no pair is ever stored.
// Scores lie by edge id: those of a block of rows are brought together once for all heads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/parallel.h"
#include "graphweft/score_order.h"
#include "graphweft/simd.h"

namespace gw {

// Edges of a chunk, of a block that is gathered at once, and of a row up to which all its pairs are compared, forward
// and in the gradient, which takes twice as much a pair.
inline constexpr int64_t margin_chunk = 2048, margin_block = 512;
inline constexpr int64_t margin_pairs = 24 * vd::lanes, gradient_pairs = 12 * vd::lanes;

// How many heads of an edge lie side by side: as many of them as divide both all heads and a vector.
inline int64_t heads_side_by_side(int64_t heads) { return std::min<int64_t>(heads & -heads, vd::lanes); }

// The numbers of a block's edges, `Width` heads of an edge side by side and the edges of a row behind each other, with
// room for the vector behind the last.
template <int Width>
class block_numbers {
 public:
  void resize(int64_t edges, int64_t heads) {
    stride_ = edges * Width + vd::lanes;
    numbers_.resize(size_t(stride_ * (heads / Width)));
  }
  // The heads from h on.
  double* heads(int64_t h) { return numbers_.data() + h / Width * stride_; }

  template <class Real, class Index>
  void gather(const Real* from, int64_t count, const Index* ids, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < count; h += Width) {
      double* to = heads(h);
      for (int64_t p = begin; p < end; ++p, to += Width) {
        const Real* const row = from + (ids ? int64_t(ids[p]) : p) * count + h;
        for (int w = 0; w < Width; ++w) to[w] = double(row[w]);
      }
    }
  }
  template <class Real, class Index>
  void scatter(Real* to, int64_t count, const Index* ids, int64_t begin, int64_t end) {
    for (int64_t h = 0; h < count; h += Width) {
      const double* from = heads(h);
      for (int64_t p = begin; p < end; ++p, from += Width) {
        Real* const row = to + (ids ? int64_t(ids[p]) : p) * count + h;
        for (int w = 0; w < Width; ++w) row[w] = Real(from[w]);
      }
    }
  }

 private:
  int64_t stride_ = 0;
  std::vector<double> numbers_;
};

// One head of a row's edges apart from the others, with room for the vector behind the last.
class head_apart {
 public:
  template <int Width>
  const double* take(const double* row, int64_t count, int head) {
    room(count);
    for (int64_t e = 0; e < count; ++e) numbers_[size_t(e)] = row[e * Width + head];
    return numbers_.data();
  }
  double* room(int64_t count) {
    if (int64_t(numbers_.size()) < count + vd::lanes) numbers_.resize(size_t(count + vd::lanes));
    return numbers_.data();
  }
  template <int Width>
  void put(double* row, int64_t count, int head) const {
    for (int64_t e = 0; e < count; ++e) row[e * Width + head] = numbers_[size_t(e)];
  }

 private:
  std::vector<double> numbers_;
};

template <class Real, class Index>
void fetch_rows(const Real* rows, int64_t heads, const Index* ids, int64_t begin, int64_t end) {
  if (ids == nullptr) return;
  for (int64_t p = begin; p < end; ++p) __builtin_prefetch(rows + int64_t(ids[p]) * heads, 1);
}

// A number less itself is 0, but for those that are not finite.
inline bool all_finite(const double* x, int64_t count) {
  vd::vec gap{};
  int64_t at = 0;
  for (; at + vd::lanes <= count; at += vd::lanes) {
    const vd::vec v = vd::load(x + at);
    gap += v - v;
  }
  double sum = 0.0;
  for (; at < count; ++at) sum += x[at] - x[at];
  for (int lane = 0; lane < vd::lanes; ++lane) sum += gap[lane];
  return sum == 0.0;
}

// `Width` numbers again and again.
template <int Width>
inline vd::vec repeated(const double* x) {
  if constexpr (Width == 1) return vd::splat(*x);
  if constexpr (Width == vd::lanes) return vd::load(x);
#if defined(__AVX512VL__)
  if constexpr (Width == 4) return vd::vec(_mm512_maskz_broadcast_f64x4(__mmask8(-1), _mm256_loadu_pd(x)));
  if constexpr (Width == 2) return vd::vec(_mm512_maskz_broadcast_f64x2(__mmask8(-1), _mm_loadu_pd(x)));
#endif
  vd::vec v{};
  for (int lane = 0; lane < vd::lanes; ++lane) v[lane] = x[lane % Width];
  return v;
}

// 0 for what is not above it, and for what is no number.
inline vd::vec positive_part(vd::vec x) {
#if defined(__AVX512VL__)
  return vd::vec(_mm512_maskz_max_pd(__mmask8(-1), __m512d(x), _mm512_setzero_pd()));
#else
  const vd::vec none{};
  return x > none ? x : none;
#endif
}

// body(at, vectors) for the numbers [0, count), as many vectors at once as there are, four at most: sums of one vector
// alone would wait for each other.
template <class Body>
void for_vectors(int64_t count, Body&& body) {
  constexpr int64_t lanes = vd::lanes;
  int64_t at = 0;
  for (; count - at > 3 * lanes; at += 4 * lanes) body(at, std::integral_constant<int, 4>{});
  if (count - at > 2 * lanes)
    body(at, std::integral_constant<int, 3>{});
  else if (count - at > lanes)
    body(at, std::integral_constant<int, 2>{});
  else if (count > at)
    body(at, std::integral_constant<int, 1>{});
}

// out[e] = sum over k of max(0, s[e] - s[k]), over all pairs, for each of `Width` heads; writes whole vectors.
template <int Width>
void pair_margins(const double* s, int64_t count, double* out) {
  for_vectors(count * Width, [&](int64_t at, auto vectors) {
    constexpr int n = decltype(vectors)::value;
    vd::vec own[n], sum[n] = {};
#pragma GCC unroll 4
    for (int v = 0; v < n; ++v) own[v] = vd::load(s + at + v * vd::lanes);
    for (int64_t k = 0; k < count; ++k) {
      const vd::vec other = repeated<Width>(s + k * Width);
#pragma GCC unroll 4
      for (int v = 0; v < n; ++v) sum[v] += positive_part(own[v] - other);
    }
#pragma GCC unroll 4
    for (int v = 0; v < n; ++v) vd::store(out + at + v * vd::lanes, sum[v]);
  });
}

// The same, by ascending score: a margin grows from one score to the next by their gap times the number of edges below,
// and nothing is ever subtracted from a sum.
template <class Real>
void sorted_margins(const double* s, int64_t count, score_order<Real>& order, double* out) {
  const size_t finite = order.sort(s, count);
  const bool plain = int64_t(finite) == count;
  bool below = false;
  if (!plain) {  // what the differences of such scores add up to
    std::fill(out, out + count, NAN);
    if (std::any_of(s, s + count, [](double x) { return std::isnan(x); })) return;
    below = std::any_of(s, s + count, [](double x) { return x == -INFINITY; });
  }
  double margin = 0.0, before = 0.0;
  for (size_t at = 0; at < finite; ++at) {
    const size_t place = order.place(at);
    const double score = s[place];
    if (at > 0 && score != before) margin += double(at) * (score - before);
    before = score;
    out[place] = below ? INFINITY : margin;
  }
}

// grad[e] = dout[e] times the number of edges below it, less the dout of all edges above it. `Closed`: equal scores
// count as below and above.
template <int Width, bool Closed>
void pair_margins_grad(const double* s, const double* dout, int64_t count, double* grad) {
  const vd::vec one = vd::splat(1.0);
  for_vectors(count * Width, [&](int64_t at, auto vectors) {
    constexpr int n = decltype(vectors)::value;
    vd::vec own[n], below[n] = {}, taken[n] = {};
#pragma GCC unroll 4
    for (int v = 0; v < n; ++v) own[v] = vd::load(s + at + v * vd::lanes);
    for (int64_t k = 0; k < count; ++k) {
      const vd::vec other = repeated<Width>(s + k * Width), from = repeated<Width>(dout + k * Width), none{};
#pragma GCC unroll 4
      for (int v = 0; v < n; ++v) {
        below[v] += (Closed ? other <= own[v] : other < own[v]) ? one : none;
        taken[v] += (Closed ? other >= own[v] : other > own[v]) ? from : none;
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < n; ++v) {
      const int64_t place = at + v * vd::lanes;
      vd::store(grad + place, below[v] * vd::load(dout + place) - taken[v]);
    }
  });
}

template <class Real>
void sorted_margins_grad(const double* s, const double* dout, int64_t count, bool closed, score_order<Real>& order,
                         double* grad) {
  double above = 0.0;  // of all edges with a higher score
  for (size_t to = order.sort(s, count), from = to; to > 0; to = from) {
    const double score = s[order.place(to - 1)];
    double own = 0.0;
    while (from > 0 && s[order.place(from - 1)] == score) own += dout[order.place(--from)];
    const double below = double(closed ? to : from), taken = closed ? above + own : above;
    for (size_t at = from; at < to; ++at) {
      const size_t place = order.place(at);
      grad[place] = below * dout[place] - taken;
    }
    above += own;
  }
}

// Calls body(first row, row behind the last, scratch) for blocks of rows; cut by indptr alone.
template <class Scratch, class Body>
void for_margin_blocks(const gw_adjacency& adj, Body&& body) {
  const int64_t* indptr = adj.indptr;
  const int64_t chunks = (adj.num_edges + margin_chunk - 1) / margin_chunk;
  parallel_chunks(chunks, [&](int64_t chunk) {
    const auto row_from = [&](int64_t edge) { return std::lower_bound(indptr, indptr + adj.num_rows, edge) - indptr; };
    Scratch scratch;
    const int64_t last = chunk + 1 == chunks ? adj.num_rows : row_from((chunk + 1) * margin_chunk);
    for (int64_t row = row_from(chunk * margin_chunk), end; row < last; row = end) {
      end = row + 1;
      while (end < last && indptr[end + 1] - indptr[row] <= margin_block) ++end;
      if (indptr[row] < indptr[end]) body(row, end, scratch);
    }
  });
}

// Calls body(Width) with the number of heads side by side.
template <class Body>
void with_width(int64_t heads, Body&& body) {
  switch (heads_side_by_side(heads)) {
    case 8:
      if constexpr (vd::lanes >= 8) return body(std::integral_constant<int, 8>{});
      break;
    case 4:
      if constexpr (vd::lanes >= 4) return body(std::integral_constant<int, 4>{});
      break;
    case 2:
      return body(std::integral_constant<int, 2>{});
    default:
      return body(std::integral_constant<int, 1>{});
  }
}

// out[e][h] = sum over the in-edges k of e's destination of max(0, scores[e][h] - scores[k][h]), by edge id.
template <class Real>
struct margins_of_rows {
  template <int Width>
  struct room {
    block_numbers<Width> s, margin;
    head_apart own, out;
    score_order<Real> order;
  };

  // One row, `Width` heads of it.
  template <int Width>
  static void row(const double* s, int64_t count, room<Width>& r, double* out) {
    if (count <= margin_pairs && all_finite(s, count * Width)) return pair_margins<Width>(s, count, out);
    for (int head = 0; head < Width; ++head) {
      const double* const own = r.own.template take<Width>(s, count, head);
      if (count <= margin_pairs && all_finite(own, count))
        pair_margins<1>(own, count, r.out.room(count));
      else
        sorted_margins(own, count, r.order, r.out.room(count));
      r.out.template put<Width>(out, count, head);
    }
  }
};

template <class Real, class Index>
void edge_margins(const gw_adjacency& adj, const Real* scores, int64_t heads, Real* out) {
  const auto* ids = static_cast<const Index*>(adj.edge_ids);
  with_width(heads, [&](auto side_by_side) {
    constexpr int width = decltype(side_by_side)::value;
    using room = typename margins_of_rows<Real>::template room<width>;
    for_margin_blocks<room>(adj, [&](int64_t row, int64_t last, room& r) {
      const int64_t begin = adj.indptr[row], end = adj.indptr[last];
      fetch_rows(out, heads, ids, begin, end);
      r.s.resize(end - begin, heads);
      r.margin.resize(end - begin, heads);
      r.s.gather(scores, heads, ids, begin, end);
      for (int64_t h = 0; h < heads; h += width)
        for (int64_t i = row; i < last; ++i) {  // upwards: a row's last vector may reach into the next row
          const int64_t from = (adj.indptr[i] - begin) * width, count = adj.indptr[i + 1] - adj.indptr[i];
          margins_of_rows<Real>::template row<width>(r.s.heads(h) + from, count, r, r.margin.heads(h) + from);
        }
      r.margin.scatter(out, heads, ids, begin, end);
    });
  });
}

// The gradient of the scores. `closed`: a margin of 0 lets gradients through, as in a clamp, and not as in a ReLU. Rows
// with scores that are not finite have none: not a number.
template <class Real>
struct gradients_of_rows {
  template <int Width>
  struct room {
    block_numbers<Width> s, dout, grad;
    head_apart own, given, out;
    score_order<Real> order;
  };

  template <int Width>
  static void row(const double* s, const double* dout, int64_t count, bool closed, room<Width>& r, double* grad) {
    if (count <= gradient_pairs && all_finite(s, count * Width))
      return closed ? pair_margins_grad<Width, true>(s, dout, count, grad)
                    : pair_margins_grad<Width, false>(s, dout, count, grad);
    for (int head = 0; head < Width; ++head) {
      const double* const own = r.own.template take<Width>(s, count, head);
      const double* const given = r.given.template take<Width>(dout, count, head);
      double* const out = r.out.room(count);
      if (!all_finite(own, count))
        std::fill(out, out + count, NAN);
      else if (count > gradient_pairs)
        sorted_margins_grad(own, given, count, closed, r.order, out);
      else
        closed ? pair_margins_grad<1, true>(own, given, count, out)
               : pair_margins_grad<1, false>(own, given, count, out);
      r.out.template put<Width>(grad, count, head);
    }
  }
};

template <class Real, class Index>
void edge_margins_grad(const gw_adjacency& adj, const Real* scores, const Real* dout, int64_t heads, bool closed,
                       Real* grad) {
  const auto* ids = static_cast<const Index*>(adj.edge_ids);
  with_width(heads, [&](auto side_by_side) {
    constexpr int width = decltype(side_by_side)::value;
    using room = typename gradients_of_rows<Real>::template room<width>;
    for_margin_blocks<room>(adj, [&](int64_t row, int64_t last, room& r) {
      const int64_t begin = adj.indptr[row], end = adj.indptr[last];
      fetch_rows(grad, heads, ids, begin, end);
      for (auto* numbers : {&r.s, &r.dout, &r.grad}) numbers->resize(end - begin, heads);
      r.s.gather(scores, heads, ids, begin, end);
      r.dout.gather(dout, heads, ids, begin, end);
      for (int64_t h = 0; h < heads; h += width)
        for (int64_t i = row; i < last; ++i) {
          const int64_t from = (adj.indptr[i] - begin) * width, count = adj.indptr[i + 1] - adj.indptr[i];
          gradients_of_rows<Real>::template row<width>(r.s.heads(h) + from, r.dout.heads(h) + from, count, closed, r,
                                                       r.grad.heads(h) + from);
        }
      r.grad.scatter(grad, heads, ids, begin, end);
    });
  });
}

}  // namespace gw
