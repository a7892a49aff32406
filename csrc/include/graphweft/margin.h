// Sums of margins over pairs of in-edges of one destination, and their gradient: the pair-wise norm of constrained
// attention. Short rows compare all pairs, a vector of edges at a time; scores of long rows are sorted, so a row of d
// edges costs d log d, and no pair is ever stored. Scores lie by edge id: those of a block of rows are brought together
// once for all heads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/parallel.h"
#include "graphweft/score_order.h"
#include "graphweft/simd.h"

namespace gw {

// Edges of a chunk, of a block that is gathered at once, and of a row up to which all its pairs are compared.
inline constexpr int64_t margin_chunk = 2048, margin_block = 512, margin_pairs = 12 * vd::lanes;

// The numbers of a block's edges, head by head, each row's side by side, with room for the vector behind the last.
class block_numbers {
 public:
  void resize(int64_t edges, int64_t heads) {
    stride_ = edges + vd::lanes;
    numbers_.resize(size_t(stride_ * heads));
  }
  double* head(int64_t h) { return numbers_.data() + h * stride_; }

  template <class Real, class Index>
  void gather(const Real* from, int64_t heads, const Index* ids, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Real* row = from + (ids ? int64_t(ids[p]) : p) * heads;
      for (int64_t h = 0; h < heads; ++h) head(h)[p - begin] = double(row[h]);
    }
  }
  template <class Real, class Index>
  void scatter(Real* to, int64_t heads, const Index* ids, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      Real* row = to + (ids ? int64_t(ids[p]) : p) * heads;
      for (int64_t h = 0; h < heads; ++h) row[h] = Real(head(h)[p - begin]);
    }
  }

 private:
  int64_t stride_ = 0;
  std::vector<double> numbers_;
};

template <class Real, class Index>
void fetch_rows(const Real* rows, int64_t heads, const Index* ids, int64_t begin, int64_t end) {
  if (ids == nullptr) return;
  for (int64_t p = begin; p < end; ++p) __builtin_prefetch(rows + int64_t(ids[p]) * heads, 1);
}

inline bool all_finite(const double* x, int64_t count) {
  bool finite = true;
  for (int64_t at = 0; at < count; ++at) finite &= std::isfinite(x[at]);
  return finite;
}

// out[e] = sum over k of max(0, s[e] - s[k]), over all pairs; writes whole vectors.
inline void pair_margins(const double* s, int64_t count, double* out) {
  for (int64_t at = 0; at < count; at += vd::lanes) {
    const vd::vec own = vd::load(s + at);
    vd::vec sum{};
    for (int64_t k = 0; k < count; ++k) {
      const vd::vec gap = own - vd::splat(s[k]), none{};
      sum += gap > none ? gap : none;
    }
    vd::store(out + at, sum);
  }
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
template <bool Closed>
void pair_margins_grad(const double* s, const double* dout, int64_t count, double* grad) {
  const vd::vec one = vd::splat(1.0);
  for (int64_t at = 0; at < count; at += vd::lanes) {
    const vd::vec own = vd::load(s + at);
    vd::vec below{}, taken{};
    for (int64_t k = 0; k < count; ++k) {
      const vd::vec other = vd::splat(s[k]), none{};
      below += (Closed ? other <= own : other < own) ? one : none;
      taken += (Closed ? other >= own : other > own) ? vd::splat(dout[k]) : none;
    }
    vd::store(grad + at, below * vd::load(dout + at) - taken);
  }
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

// out[e][h] = sum over the in-edges k of e's destination of max(0, scores[e][h] - scores[k][h]), by edge id.
template <class Real, class Index>
void edge_margins(const gw_adjacency& adj, const Real* scores, int64_t heads, Real* out) {
  struct room {
    block_numbers s, margin;
    score_order<Real> order;
  };
  const auto* ids = static_cast<const Index*>(adj.edge_ids);
  for_margin_blocks<room>(adj, [&](int64_t row, int64_t last, room& r) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[last];
    fetch_rows(out, heads, ids, begin, end);
    r.s.resize(end - begin, heads);
    r.margin.resize(end - begin, heads);
    r.s.gather(scores, heads, ids, begin, end);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = row; i < last; ++i) {  // upwards: a row's last vector may reach into the next row
        const int64_t from = adj.indptr[i] - begin, count = adj.indptr[i + 1] - adj.indptr[i];
        const double* s = r.s.head(h) + from;
        if (count <= margin_pairs && all_finite(s, count))
          pair_margins(s, count, r.margin.head(h) + from);
        else
          sorted_margins(s, count, r.order, r.margin.head(h) + from);
      }
    r.margin.scatter(out, heads, ids, begin, end);
  });
}

// The gradient of the scores. `closed`: a margin of 0 lets gradients through, as in a clamp, and not as in a ReLU. Rows
// with scores that are not finite have none: not a number.
template <class Real, class Index>
void edge_margins_grad(const gw_adjacency& adj, const Real* scores, const Real* dout, int64_t heads, bool closed,
                       Real* grad) {
  struct room {
    block_numbers s, dout, grad;
    score_order<Real> order;
  };
  const auto* ids = static_cast<const Index*>(adj.edge_ids);
  for_margin_blocks<room>(adj, [&](int64_t row, int64_t last, room& r) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[last];
    fetch_rows(grad, heads, ids, begin, end);
    for (block_numbers* numbers : {&r.s, &r.dout, &r.grad}) numbers->resize(end - begin, heads);
    r.s.gather(scores, heads, ids, begin, end);
    r.dout.gather(dout, heads, ids, begin, end);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = row; i < last; ++i) {
        const int64_t from = adj.indptr[i] - begin, count = adj.indptr[i + 1] - adj.indptr[i];
        const double *s = r.s.head(h) + from, *d = r.dout.head(h) + from;
        double* to = r.grad.head(h) + from;
        if (!all_finite(s, count))
          std::fill(to, to + count, NAN);
        else if (count > margin_pairs)
          sorted_margins_grad(s, d, count, closed, r.order, to);
        else
          closed ? pair_margins_grad<true>(s, d, count, to) : pair_margins_grad<false>(s, d, count, to);
      }
    r.grad.scatter(grad, heads, ids, begin, end);
  });
}

}  // namespace gw
