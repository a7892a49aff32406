#include "graph.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "graphweft/parallel.h"
#include "team.h"

namespace program {

gw_adjacency Compressed::native() const {
  const bool numbered = !edge_ids.empty() && weights.empty();  // weights are by place
  return {num_rows(), num_cols, num_edges(), indptr.data(), indices.data(), numbered ? edge_ids.data() : nullptr, 0};
}

bool columns_ascend(const Compressed& a) {
  for (int64_t row = 0; row < a.num_rows(); ++row)
    if (!std::is_sorted(a.indices.begin() + a.indptr[size_t(row)], a.indices.begin() + a.indptr[size_t(row) + 1]))
      return false;
  return true;
}

namespace {

constexpr int borrowing = 0, giving_back = 1;  // tags of messages

}  // namespace

Halo::Halo(Numbers<int64_t> lent, Numbers<int64_t> lent_ends, Numbers<int64_t> borrowed)
    : lent_(std::move(lent)), lent_ends_(std::move(lent_ends)), borrowed_(std::move(borrowed)) {
  for (const int64_t count : borrowed_) ghosts_ += count;
  requests_.reserve(2 * borrowed_.size());
}

void Halo::send(const float* from, int64_t count, int rank, int tag) {
  if (count > 0)
    MPI_Isend(from, int(count), MPI_FLOAT, rank, tag, MPI_COMM_WORLD, &requests_.emplace_back(MPI_REQUEST_NULL));
}

void Halo::receive(float* to, int64_t count, int rank, int tag) {
  if (count > 0)
    MPI_Irecv(to, int(count), MPI_FLOAT, rank, tag, MPI_COMM_WORLD, &requests_.emplace_back(MPI_REQUEST_NULL));
}

float* Halo::pack(const Matrix& x) {
  if (std::max(ghosts_, int64_t(lent_.size())) * x.cols > INT32_MAX)
    throw std::runtime_error("ghosts: expected fewer than 2**31 numbers for an exchange; use more ranks");
  if (under_way_ == travels_.size()) travels_.emplace_back();
  Travel& travel = travels_[under_way_++];
  travel.x = x;
  travel.packed.resize(std::max(travel.packed.size(), lent_.size() * size_t(x.cols)));
  return travel.packed.data();
}

void Halo::start(const Matrix& x, const float* factors) {
  const int64_t width = x.cols;
  float* packed = pack(x);
  float* ghost = x.at + x.rows * width;
  for (size_t rank = 0; rank < borrowed_.size(); ++rank) {
    receive(ghost, borrowed_[rank] * width, int(rank), borrowing);
    ghost += borrowed_[rank] * width;
  }
  gw::parallel_ranges(int64_t(lent_.size()), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = lent_[size_t(i)];
      const float by = factors ? factors[row] : 1.0f;
      for (int64_t k = 0; k < width; ++k) packed[i * width + k] = by * x.at[row * width + k];
    }
  });
  for (size_t rank = 0; rank < borrowed_.size(); ++rank) {
    const int64_t first = rank ? lent_ends_[rank - 1] : 0;
    send(packed + first * width, (lent_ends_[rank] - first) * width, int(rank), borrowing);
  }
}

void Halo::wait() {
  MPI_Waitall(int(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
  requests_.clear();
  under_way_ = 0;
}

void Halo::give_back(const Matrix& x) {
  const int64_t width = x.cols;
  float* packed = pack(x);
  for (size_t rank = 0; rank < borrowed_.size(); ++rank) {
    const int64_t first = rank ? lent_ends_[rank - 1] : 0;
    receive(packed + first * width, (lent_ends_[rank] - first) * width, int(rank), giving_back);
  }
  const float* ghost = x.at + x.rows * width;
  for (size_t rank = 0; rank < borrowed_.size(); ++rank) {
    send(ghost, borrowed_[rank] * width, int(rank), giving_back);
    ghost += borrowed_[rank] * width;
  }
}

void Halo::take_back() {
  const size_t count = under_way_;
  wait();
  for (size_t i = 0; i < count; ++i) {
    const Matrix& x = travels_[i].x;
    const float* packed = travels_[i].packed.data();
    for (size_t rank = 0; rank < borrowed_.size(); ++rank)  // a row comes at most once from a rank
      gw::parallel_ranges(lent_ends_[rank] - (rank ? lent_ends_[rank - 1] : 0), 1024, [&](int64_t begin, int64_t end) {
        const int64_t first = rank ? lent_ends_[rank - 1] : 0;
        for (int64_t k = first + begin; k < first + end; ++k)
          for (int64_t c = 0; c < x.cols; ++c) x.at[lent_[size_t(k)] * x.cols + c] += packed[k * x.cols + c];
      });
  }
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
    if (!looped && !all.edge_ids.empty())
      made->edge_ids.insert(made->edge_ids.end(), all.edge_ids.begin() + all.indptr[size_t(row)],
                            all.edge_ids.begin() + all.indptr[size_t(row) + 1]);
    if (!looped && !all.weights.empty())
      made->weights.insert(made->weights.end(), all.weights.begin() + all.indptr[size_t(row)],
                           all.weights.begin() + all.indptr[size_t(row) + 1]);
    if (looped) made->indices.push_back(int32_t(row));
    made->indptr.push_back(made->num_edges());
  }
  return made;
}

// Columns become rows; inside a new row entries ascend by the old row.
Form transposed(const Compressed& a) {
  auto made = std::make_shared<Compressed>();
  made->num_cols = a.num_rows();
  made->indptr.assign(size_t(a.num_cols) + 1, 0);
  for (const int32_t col : a.indices) ++made->indptr[size_t(col) + 1];
  std::partial_sum(made->indptr.begin(), made->indptr.end(), made->indptr.begin());
  made->indices.resize(a.indices.size());
  made->edge_ids.resize(a.edge_ids.size());
  std::vector<int64_t> next(made->indptr.begin(), made->indptr.end() - 1);
  for (int64_t row = 0; row < a.num_rows(); ++row)
    for (int64_t p = a.indptr[size_t(row)]; p < a.indptr[size_t(row) + 1]; ++p) {
      const auto to = size_t(next[size_t(a.indices[size_t(p)])]++);
      made->indices[to] = int32_t(row);
      if (!a.edge_ids.empty()) made->edge_ids[to] = a.edge_ids[size_t(p)];
    }
  return made;
}

}  // namespace

Edges::Edges(const Form& of_all, int64_t interior, std::shared_ptr<Halo> of)
    : all(of_all),
      inner(cut(*all, 0, interior, false)),
      outer(cut(*all, interior, all->num_rows(), false)),
      inner_looped(cut(*all, 0, interior, true)),
      outer_looped(cut(*all, interior, all->num_rows(), true)),
      halo(std::move(of)) {}

Back::Back(const Form& in_edges, std::shared_ptr<Halo> of)
    : all(transposed(*in_edges)),
      own(cut(*all, 0, in_edges->num_rows(), false)),
      ghosts(cut(*all, in_edges->num_rows(), all->num_rows(), false)),
      halo(std::move(of)) {}

Graph::Graph(std::shared_ptr<const Sides> sides, bool turned) : sides_(std::move(sides)), turned_(turned) {}

int64_t Graph::num_edges() const { return sides_->num_edges; }
int64_t Graph::own_nodes() const { return sides_->by[0]->num_rows(); }
int64_t Graph::most_ghosts() const { return std::max(sides_->halo[0]->ghosts(), sides_->halo[1]->ghosts()); }
Graph Graph::reverse() const { return Graph(sides_, !turned_); }

namespace {

// The edges between different nodes with their weights, or where `loops` names the own nodes without, and one from each
// to itself behind the others; its number is `first` and the node's.
Form with_loops(const Compressed& all, const Numbers<int64_t>* loops, int64_t first) {
  auto made = std::make_shared<Compressed>();
  made->num_cols = all.num_cols;
  made->indptr.assign(1, 0);
  for (int64_t row = 0; row < all.num_rows(); ++row) {
    for (int64_t p = all.indptr[size_t(row)]; p < all.indptr[size_t(row) + 1]; ++p)
      if (all.indices[size_t(p)] != row) {
        made->indices.push_back(all.indices[size_t(p)]);
        made->edge_ids.push_back(all.edge_ids[size_t(p)]);
        if (!loops && !all.weights.empty()) made->weights.push_back(all.weights[size_t(p)]);
      }
    if (loops) {
      made->indices.push_back(int32_t(row));
      made->edge_ids.push_back(int32_t(first + (*loops)[size_t(row)]));
    }
    made->indptr.push_back(made->num_edges());
  }
  return made;
}

}  // namespace

Graph Graph::without_loops() const {
  auto made = std::make_shared<Sides>(*sides_);
  for (Form& side : made->by) side = with_loops(*side, nullptr, 0);
  return Graph(std::move(made), turned_);
}

Graph Graph::one_loop() const {
  auto made = std::make_shared<Sides>(*sides_);
  for (Form& side : made->by) side = with_loops(*side, &sides_->own, sides_->num_edges);
  return Graph(std::move(made), turned_);
}

void Graph::in_degrees(float* out) const {
  const Compressed& rows = *sides_->by[turned_];
  for (size_t row = 0; row + 1 < rows.indptr.size(); ++row) out[row] = float(rows.indptr[row + 1] - rows.indptr[row]);
}

Edges Graph::in_edges() const {
  if (sides_->by[turned_]->weights.empty()) return weighted_in_edges();
  auto bare = std::make_shared<Compressed>(*sides_->by[turned_]);
  bare->weights.clear();
  return Edges(std::move(bare), sides_->interior, sides_->halo[turned_]);
}

Edges Graph::weighted_in_edges() const { return Edges(sides_->by[turned_], sides_->interior, sides_->halo[turned_]); }

void Graph::loop_weights(float* out) const {
  const Compressed& rows = *sides_->by[0];
  std::fill_n(out, rows.num_rows(), 1.0f);
  for (int64_t row = 0; row < rows.num_rows(); ++row)
    for (int64_t p = rows.indptr[size_t(row)]; p < rows.indptr[size_t(row) + 1]; ++p)
      if (rows.indices[size_t(p)] == row) out[row] = rows.weights.at(size_t(p));
}

Back Graph::out_edges() const { return Back(sides_->by[turned_], sides_->halo[turned_]); }

void sum_weights(const Edges& edges, float* y) {
  const Compressed& all = *edges.all;
  for (int64_t row = 0; row < all.num_rows(); ++row)
    y[row] = std::accumulate(all.weights.begin() + all.indptr[size_t(row)],
                             all.weights.begin() + all.indptr[size_t(row) + 1], 0.0f);
}

}  // namespace program
