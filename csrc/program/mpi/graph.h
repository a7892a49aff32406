// A rank's part of a graph: its own nodes, then ghosts, nodes of other ranks whose rows it borrows. Own nodes whose
// edges all lie within the rank come first: their rows are computed while those of the ghosts are on their way.
// Source: Morphling, section IV-D.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "mpi_c.h"

namespace program {

// For every row the columns of its edges.
struct Compressed {
  int64_t num_cols = 0;
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;

  [[nodiscard]] int64_t num_rows() const { return int64_t(indptr.size()) - 1; }
  [[nodiscard]] int64_t num_edges() const { return int64_t(indices.size()); }
  [[nodiscard]] gw_adjacency native() const;
};
using Form = std::shared_ptr<const Compressed>;

// Ascending columns in every row.
bool columns_ascend(const Compressed& a);

// Rows that travel between ranks before a sum over edges.
class Halo {
 public:
  // Rows that each rank borrows from this one (places in its own rows, rank by rank), and that this one borrows.
  Halo(std::vector<int64_t> lent, std::vector<int64_t> lent_ends, std::vector<int64_t> borrowed);

  [[nodiscard]] int64_t ghosts() const { return ghosts_; }
  // Receives the ghosts' rows behind the own rows of x: receives first, then sends, each row times its factor.
  void start(const Matrix& x, const float* factors);
  // All rows are there.
  void wait();

 private:
  const std::vector<int64_t> lent_, lent_ends_, borrowed_;
  int64_t ghosts_ = 0;
  std::vector<float> packed_;
  std::vector<MPI_Request> requests_;
};

// Edges by destination in two parts: of the rows that need no ghosts, and of the rest.
class Edges {
 public:
  Edges(Form all, int64_t interior, std::shared_ptr<Halo> halo);

  Form inner, outer;
  Form inner_looped, outer_looped;  // with one more edge from every node to itself
  std::shared_ptr<Halo> halo;
};

class Graph {
 public:
  struct Sides;
  explicit Graph(std::shared_ptr<const Sides> sides, bool turned = false);

  // Of the whole graph.
  [[nodiscard]] int64_t num_edges() const;
  [[nodiscard]] int64_t own_nodes() const;
  // The most ghosts that a row of a buffer must have room for.
  [[nodiscard]] int64_t most_ghosts() const;
  [[nodiscard]] Graph reverse() const;
  [[nodiscard]] Graph without_loops() const;
  void in_degrees(float* out) const;
  [[nodiscard]] Edges in_edges() const;

 private:
  std::shared_ptr<const Sides> sides_;
  bool turned_;
};

// In-edges and out-edges of the own nodes.
struct Graph::Sides {
  int64_t num_edges = 0, interior = 0;
  Form by[2];
  std::shared_ptr<Halo> halo[2];
};

// Sums over in-edges of own nodes: rows of the interior while the ghosts' rows travel, then the others.
void spmm(const Edges& edges, const Matrix& x, const Matrix& y, const Epilogue& then = Epilogue(),
          const Reading& reading = Reading());

}  // namespace program
