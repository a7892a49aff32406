#include "graph.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "graphweft/parallel.h"
#include "team.h"

namespace program {

gw_adjacency Compressed::native() const {
  return {num_rows(), num_cols, num_edges(), indptr.data(), indices.data(), nullptr, 0};
}

bool columns_ascend(const Compressed& a) {
  for (int64_t row = 0; row < a.num_rows(); ++row)
    if (!std::is_sorted(a.indices.begin() + a.indptr[size_t(row)], a.indices.begin() + a.indptr[size_t(row) + 1]))
      return false;
  return true;
}

Halo::Halo(std::vector<int64_t> lent, std::vector<int64_t> lent_ends, std::vector<int64_t> borrowed)
    : lent_(std::move(lent)), lent_ends_(std::move(lent_ends)), borrowed_(std::move(borrowed)) {
  for (const int64_t count : borrowed_) ghosts_ += count;
  requests_.reserve(2 * borrowed_.size());
}

void Halo::start(const Matrix& x, const float* factors) {
  const int64_t width = x.cols;
  if (std::max(ghosts_, int64_t(lent_.size())) * width > INT32_MAX)
    throw std::runtime_error("ghosts: expected fewer than 2**31 numbers for an exchange; use more ranks");
  packed_.resize(std::max(packed_.size(), lent_.size() * size_t(width)));
  float* ghost = x.at + x.rows * width;
  for (size_t rank = 0; rank < borrowed_.size(); ++rank) {
    const int64_t count = borrowed_[rank] * width;
    if (count > 0)
      MPI_Irecv(ghost, int(count), MPI_FLOAT, int(rank), 0, MPI_COMM_WORLD, &requests_.emplace_back(MPI_REQUEST_NULL));
    ghost += count;
  }
  gw::parallel_ranges(int64_t(lent_.size()), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = lent_[size_t(i)];
      const float by = factors ? factors[row] : 1.0f;
      for (int64_t k = 0; k < width; ++k) packed_[size_t(i * width + k)] = by * x.at[row * width + k];
    }
  });
  for (size_t rank = 0; rank < borrowed_.size(); ++rank) {
    const int64_t first = rank ? lent_ends_[rank - 1] : 0, count = (lent_ends_[rank] - first) * width;
    if (count > 0)
      MPI_Isend(packed_.data() + first * width, int(count), MPI_FLOAT, int(rank), 0, MPI_COMM_WORLD,
                &requests_.emplace_back(MPI_REQUEST_NULL));
  }
}

void Halo::wait() {
  MPI_Waitall(int(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
  requests_.clear();
}

namespace {

// Rows [first, last), each with an edge from itself behind the others where it is wanted.
Form cut(const Compressed& all, int64_t first, int64_t last, bool looped) {
  auto made = std::make_shared<Compressed>();
  made->num_cols = all.num_cols;
  made->indptr.assign(1, 0);
  for (int64_t row = first; row < last; ++row) {
    made->indices.insert(made->indices.end(), all.indices.begin() + all.indptr[size_t(row)],
                         all.indices.begin() + all.indptr[size_t(row) + 1]);
    if (looped) made->indices.push_back(int32_t(row));
    made->indptr.push_back(made->num_edges());
  }
  return made;
}

}  // namespace

Edges::Edges(Form all, int64_t interior, std::shared_ptr<Halo> of)
    : inner(cut(*all, 0, interior, false)),
      outer(cut(*all, interior, all->num_rows(), false)),
      inner_looped(cut(*all, 0, interior, true)),
      outer_looped(cut(*all, interior, all->num_rows(), true)),
      halo(std::move(of)) {}

Graph::Graph(std::shared_ptr<const Sides> sides, bool turned) : sides_(std::move(sides)), turned_(turned) {}

int64_t Graph::num_edges() const { return sides_->num_edges; }
int64_t Graph::own_nodes() const { return sides_->by[0]->num_rows(); }
int64_t Graph::most_ghosts() const { return std::max(sides_->halo[0]->ghosts(), sides_->halo[1]->ghosts()); }
Graph Graph::reverse() const { return Graph(sides_, !turned_); }

Graph Graph::without_loops() const {
  auto made = std::make_shared<Sides>(*sides_);
  for (Form& side : made->by) {
    auto bare = std::make_shared<Compressed>();
    bare->num_cols = side->num_cols;
    bare->indptr.assign(1, 0);
    for (int64_t row = 0; row < side->num_rows(); ++row) {
      for (int64_t p = side->indptr[size_t(row)]; p < side->indptr[size_t(row) + 1]; ++p)
        if (side->indices[size_t(p)] != row) bare->indices.push_back(side->indices[size_t(p)]);
      bare->indptr.push_back(bare->num_edges());
    }
    side = std::move(bare);
  }
  return Graph(std::move(made), turned_);
}

void Graph::in_degrees(float* out) const {
  const Compressed& rows = *sides_->by[turned_];
  for (size_t row = 0; row + 1 < rows.indptr.size(); ++row) out[row] = float(rows.indptr[row + 1] - rows.indptr[row]);
}

Edges Graph::in_edges() const { return Edges(sides_->by[turned_], sides_->interior, sides_->halo[turned_]); }

void spmm(const Edges& edges, const Matrix& x, const Matrix& y, const Epilogue& then, const Reading& reading) {
  static const Trace trace;
  if (reading.coefficient != 0 && reading.coefficient != 1)
    throw std::runtime_error("spmm: expected a row to count once or not at all");
  const bool looped = reading.coefficient != 0;
  const Compressed &inner = looped ? *edges.inner_looped : *edges.inner,
                   &outer = looped ? *edges.outer_looped : *edges.outer;
  const double begun = Trace::now();
  edges.halo->start(x, reading.factors);
  // Ghosts' rows come with their factors in them.
  if (reading.factors) std::fill_n(const_cast<float*>(reading.factors) + x.rows, edges.halo->ghosts(), 1.0f);
  if (then.sums() && inner.num_rows() == 0) std::fill_n(then.sums(), y.cols, 0.0f);
  Reading each;
  each.factors = reading.factors;
  spmm(inner.native(), x, {y.at, inner.num_rows(), y.cols}, then, each);
  const double from = Trace::now();
  edges.halo->wait();
  trace.add("ghosts", begun, from, Trace::now());
  if (outer.num_rows() == 0) return;
  std::vector<float> first(size_t(then.sums() ? y.cols : 0));
  if (then.sums()) std::copy_n(then.sums(), y.cols, first.data());
  spmm(outer.native(), x, {y.at + inner.num_rows() * y.cols, outer.num_rows(), y.cols}, then.from(inner.num_rows()),
       each);
  for (size_t k = 0; k < first.size(); ++k) then.sums()[k] += first[k];
}

}  // namespace program
