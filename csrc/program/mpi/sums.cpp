#include <algorithm>
#include <vector>

#include "graph.h"
#include "team.h"

namespace program {
namespace {

// A sum whose rows lie elsewhere than the first rows of x: its own share goes ahead.
void sum_of_outer(const gw_adjacency& edges, const Matrix& x, int64_t first, const Matrix& y, const Epilogue& then,
                  const Reading& own, const Reading& each) {
  const auto times = float(own.own ? own.coefficient * double(*own.own) : own.coefficient);
  const Matrix rest{y.at + first * y.cols, edges.num_rows, y.cols};
  scale({x.at + first * x.cols, rest.rows, x.cols}, &times, rest);
  if (own.factors) rows(rest, rest, Epilogue().row_scale(own.factors + first));
  spmm(edges, x, rest, Epilogue().addend(rest), each);
  if (then.stages()) rows(rest, rest, then.from(first));
}

}  // namespace

void spmm(const Edges& edges, const Matrix& x, const Matrix& y, const Epilogue& then, const Reading& reading) {
  static const Trace trace;
  const bool has_own = reading.coefficient != 0;
  const bool looped = reading.coefficient == 1 && !reading.own && edges.all->weights.empty();
  const Compressed &inner = looped ? *edges.inner_looped : *edges.inner,
                   &outer = looped ? *edges.outer_looped : *edges.outer;
  const double begun = Trace::now();
  edges.halo->start(x, reading.factors);
  // Ghosts' rows come with their factors in them.
  if (reading.factors) std::fill_n(const_cast<float*>(reading.factors) + x.rows, edges.halo->ghosts(), 1.0f);
  if (then.sums() && inner.num_rows() == 0) std::fill_n(then.sums(), y.cols, 0.0f);
  Reading each;
  each.factors = reading.factors;
  each.by_edge = inner.weights.empty() ? nullptr : inner.weights.data();
  Reading of_inner = each;
  if (has_own && !looped) of_inner.self(reading.coefficient, reading.own);
  spmm(inner.native(), x, {y.at, inner.num_rows(), y.cols}, then, of_inner);
  const double from = Trace::now();
  edges.halo->wait();
  trace.add("ghosts", begun, from, Trace::now());
  if (outer.num_rows() == 0) return;
  std::vector<float> first(size_t(then.sums() ? y.cols : 0));
  if (then.sums()) std::copy_n(then.sums(), y.cols, first.data());
  each.by_edge = outer.weights.empty() ? nullptr : outer.weights.data();
  if (has_own && !looped)
    sum_of_outer(outer.native(), x, inner.num_rows(), y, then, reading, each);
  else
    spmm(outer.native(), x, {y.at + inner.num_rows() * y.cols, outer.num_rows(), y.cols}, then.from(inner.num_rows()),
         each);
  for (size_t k = 0; k < first.size(); ++k) then.sums()[k] += first[k];
}

}  // namespace program
