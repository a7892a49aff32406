// Sums of margins over pairs of in-edges of one destination, and their gradient: the pair-wise norm of constrained
// attention. Scores of a row are sorted once per head, so a row of d edges costs d log d and no pair is ever stored.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "graphweft/abi.h"
#include "graphweft/parallel.h"

namespace gw {

// The finite scores of one row and head, lowest first, with the edges' ids; how many are infinite or not a number.
template <class Real>
struct ranked_scores {
  struct item {
    Real score;
    int64_t edge;
  };
  std::vector<item> finite;
  int64_t above = 0, below = 0, nan = 0;

  template <class Index>
  void read(const Real* scores, int64_t heads, int64_t head, const Index* ids, int64_t begin, int64_t end) {
    finite.clear();
    above = below = nan = 0;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t edge = ids ? int64_t(ids[p]) : p;
      const Real score = scores[edge * heads + head];
      if (std::isfinite(score))
        finite.push_back({score, edge});
      else
        ++(std::isnan(score) ? nan : score > 0 ? above : below);
    }
    // By edge among equals: one order, whatever the sort does, and so one order of summation.
    std::sort(finite.begin(), finite.end(),
              [](const item& x, const item& y) { return x.score != y.score ? x.score < y.score : x.edge < y.edge; });
  }

  [[nodiscard]] bool plain() const { return above + below + nan == 0; }

  // Calls visit(begin, end) for every stretch of equal scores, from the lowest up.
  template <class Visit>
  void groups(Visit&& visit) const {
    for (size_t begin = 0, end = 0; begin < finite.size(); begin = end) {
      while (end < finite.size() && finite[end].score == finite[begin].score) ++end;
      visit(begin, end);
    }
  }
};

// Calls body(row, scratch) for every row that has edges, in chunks of about `edges` edges; cut by indptr alone.
template <class Scratch, class Body>
void for_rows_with_edges(const gw_adjacency& adj, int64_t edges, Body&& body) {
  const int64_t* indptr = adj.indptr;
  const int64_t chunks = (adj.num_edges + edges - 1) / edges;
  parallel_chunks(chunks, [&](int64_t chunk) {
    const auto row_from = [&](int64_t edge) { return std::lower_bound(indptr, indptr + adj.num_rows, edge) - indptr; };
    Scratch scratch;
    const int64_t last = chunk + 1 == chunks ? adj.num_rows : row_from((chunk + 1) * edges);
    for (int64_t row = row_from(chunk * edges); row < last; ++row)
      if (indptr[row] < indptr[row + 1]) body(row, scratch);
  });
}

// out[e][h] = sum over the in-edges k of e's destination of max(0, scores[e][h] - scores[k][h]), by edge id. A margin
// grows from one score to the next higher by their gap times the number of edges below: nothing is ever subtracted
// from a sum.
template <class Real, class Index>
void edge_margins(const gw_adjacency& adj, const Real* scores, int64_t heads, Real* out) {
  const auto* ids = static_cast<const Index*>(adj.edge_ids);
  using ranked = ranked_scores<Real>;
  for_rows_with_edges<ranked>(adj, 2048, [&](int64_t row, ranked& rank) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    for (int64_t h = 0; h < heads; ++h) {
      rank.read(scores, heads, h, ids, begin, end);
      if (!rank.plain()) {  // what the differences of such scores add up to
        for (int64_t p = begin; p < end; ++p) out[(ids ? int64_t(ids[p]) : p) * heads + h] = Real(NAN);
        if (rank.nan) continue;
      }
      double margin = 0.0, before = 0.0;
      rank.groups([&](size_t from, size_t to) {
        const double score = double(rank.finite[from].score);
        if (from > 0) margin += double(from) * (score - before);
        before = score;
        const Real value = rank.below ? Real(INFINITY) : Real(margin);
        for (size_t at = from; at < to; ++at) out[rank.finite[at].edge * heads + h] = value;
      });
    }
  });
}

// Gradient: an edge receives its own dout once per edge below it, less the dout of all edges above it. `closed`: a
// margin of 0 lets gradients through, as in a clamp, and not as in a ReLU. Rows with scores that are not finite have
// no gradient: not a number.
template <class Real, class Index>
void edge_margins_grad(const gw_adjacency& adj, const Real* scores, const Real* dout, int64_t heads, bool closed,
                       Real* grad) {
  const auto* ids = static_cast<const Index*>(adj.edge_ids);
  using ranked = ranked_scores<Real>;
  for_rows_with_edges<ranked>(adj, 2048, [&](int64_t row, ranked& rank) {
    const int64_t begin = adj.indptr[row], end = adj.indptr[row + 1];
    for (int64_t h = 0; h < heads; ++h) {
      rank.read(scores, heads, h, ids, begin, end);
      if (!rank.plain()) {
        for (int64_t p = begin; p < end; ++p) grad[(ids ? int64_t(ids[p]) : p) * heads + h] = Real(NAN);
        continue;
      }
      const auto& items = rank.finite;
      double above = 0.0;  // of all edges with a higher score
      for (size_t to = items.size(), from = to; to > 0; to = from) {
        double own = 0.0;
        while (from > 0 && items[from - 1].score == items[to - 1].score) {
          --from;
          own += double(dout[items[from].edge * heads + h]);
        }
        const double below = double(closed ? to : from), taken = closed ? above + own : above;
        for (size_t at = from; at < to; ++at) {
          const int64_t place = items[at].edge * heads + h;
          grad[place] = Real(below * double(dout[place]) - taken);
        }
        above += own;
      }
    }
  });
}

}  // namespace gw
