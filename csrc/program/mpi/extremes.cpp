#include "graph.h"

namespace program {

void spmm_max(const Edges& edges, const Matrix& x, const Matrix& y, int32_t* arg, Extremum kind) {
  const int64_t inner = edges.inner->num_rows(), outer = edges.outer->num_rows();
  edges.halo->start(x);
  spmm_max(edges.inner->native(), x, {y.at, inner, y.cols}, arg, kind);
  edges.halo->wait();
  spmm_max(edges.outer->native(), x, {y.at + inner * y.cols, outer, y.cols}, arg ? arg + inner * y.cols : nullptr,
           kind);
}

void spmm_max_grad(const Back& edges, const int32_t* arg, const Matrix& dy, const Matrix& dx) {
  spmm_max_grad(edges.all->native(), arg, dy, {dx.at, dx.rows + edges.halo->ghosts(), dx.cols});
  edges.halo->give_back(dx);
  edges.halo->take_back();
}

}  // namespace program
