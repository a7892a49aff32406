// A rank's part of a graph: its own nodes, then ghosts, nodes of other ranks whose rows it borrows. Own nodes whose
// edges all lie within the rank come first: their rows are computed while those of the ghosts are on their way.
// Source: Morphling, section IV-D.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "mpi_c.h"

namespace program {

// For every row the columns of its edges.
struct Compressed {
  int64_t num_cols = 0;
  Numbers<int64_t> indptr;
  Numbers<int32_t> indices;
  Numbers<int32_t> edge_ids;  // in the whole graph; empty where nobody asks
  Numbers<float> weights;     // beside the columns; empty where edges have none

  [[nodiscard]] int64_t num_rows() const { return int64_t(indptr.size()) - 1; }
  [[nodiscard]] int64_t num_edges() const { return int64_t(indices.size()); }
  [[nodiscard]] gw_adjacency native() const;
};
using Form = std::shared_ptr<const Compressed>;

// Ascending columns in every row.
bool columns_ascend(const Compressed& a);

// Rows that travel between ranks: those of ghosts before a sum over edges, and what flows back to them after it.
class Halo {
 public:
  // Rows that each rank borrows from this one (places in its own rows, rank by rank), and that this one borrows.
  Halo(Numbers<int64_t> lent, Numbers<int64_t> lent_ends, Numbers<int64_t> borrowed);

  [[nodiscard]] int64_t ghosts() const { return ghosts_; }
  // Receives the ghosts' rows behind the own rows of x: receives first, then sends, each row times its factor. Several
  // matrices may be under way.
  void start(const Matrix& x, const float* factors = nullptr);
  // All rows are there.
  void wait();
  // Sends the rows of ghosts behind the own rows of x to their owners.
  void give_back(const Matrix& x);
  // Waits, and adds what came to the own rows of every x that was given back, rank by rank.
  void take_back();

 private:
  // Rows of one matrix that travel.
  struct Travel {
    Matrix x;
    std::vector<float> packed;
  };
  float* pack(const Matrix& x);
  void send(const float* from, int64_t count, int rank, int tag);
  void receive(float* to, int64_t count, int rank, int tag);

  const Numbers<int64_t> lent_, lent_ends_, borrowed_;
  int64_t ghosts_ = 0;
  std::vector<Travel> travels_;  // room for as many as were ever under way together
  size_t under_way_ = 0;
  std::vector<MPI_Request> requests_;
};

// Edges by destination in two parts: of the rows that need no ghosts, and of the rest.
class Edges {
 public:
  Edges(const Form& all, int64_t interior, std::shared_ptr<Halo> halo);

  Form all;
  Form inner, outer;
  Form inner_looped, outer_looped;  // with one more edge from every node to itself
  std::shared_ptr<Halo> halo;
};

// The in-edges of the own nodes by source in two parts: of the own nodes, and of the ghosts.
class Back {
 public:
  Back(const Form& in_edges, std::shared_ptr<Halo> halo);

  Form all, own, ghosts;
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
  // Exactly one edge from every node to itself, after the others.
  [[nodiscard]] Graph one_loop() const;
  void in_degrees(float* out) const;
  // Edges by destination; those in order have their numbers in the whole graph.
  [[nodiscard]] Edges in_edges() const;
  [[nodiscard]] Edges in_edges_in_order() const { return in_edges(); }
  // The same with their weights.
  [[nodiscard]] Edges weighted_in_edges() const;
  // For each own node the weight of its last loop, 1 where it has none.
  void loop_weights(float* out) const;
  // Edges by source, parallel ones side by side, for what flows back along those above.
  [[nodiscard]] Back out_edges() const;
  [[nodiscard]] Back out_edges_in_order() const { return out_edges(); }
  [[nodiscard]] Back out_edges_side_by_side() const { return out_edges(); }

 private:
  std::shared_ptr<const Sides> sides_;
  bool turned_;
};

// In-edges and out-edges of the own nodes.
struct Graph::Sides {
  int64_t num_edges = 0, interior = 0;
  Numbers<int64_t> own;  // the own nodes' numbers in the whole graph
  Form by[2];
  std::shared_ptr<Halo> halo[2];
};

// Sums over in-edges of own nodes: rows of the interior while the ghosts' rows travel, then the others.
// Edges that bring weights are multiplied by them.
void spmm(const Edges& edges, const Matrix& x, const Matrix& y, const Epilogue& then = Epilogue(),
          const Reading& reading = Reading());
// y[i] = sum of the weights of the edges into i.
void sum_weights(const Edges& edges, float* y);

// Largest (smallest) rows over in-edges of own nodes, in the same way; `arg` counts ghosts after own nodes.
void spmm_max(const Edges& edges, const Matrix& x, const Matrix& y, int32_t* arg, Extremum kind);
// What spmm_max sends back, of which the ghosts' part goes to their owners.
void spmm_max_grad(const Back& edges, const int32_t* arg, const Matrix& dy, const Matrix& dx);

}  // namespace program
