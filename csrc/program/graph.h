// A graph and the graphs made of it. Every form is built once, when it is asked for, and shared by a graph and its
// reverse.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "graphweft/adjacency.h"
#include "memory.h"

namespace program {

// The edges of all rows by stretches of columns, as sums over many of them read them: graphweft/stretches.h.
struct Stretches {
  gw_stretches native{};
  Numbers<int64_t> rows, entries;
  Numbers<uint16_t> lengths, inside;
  Numbers<int32_t> behind;
};

// For every row the columns of its edges. Edges keep the numbers of their order in the source.
struct Compressed {
  int64_t num_cols = 0;
  Numbers<int64_t> indptr;
  mutable Numbers<int32_t> indices;
  mutable Numbers<int32_t> edge_ids;                   // empty: position p is edge p, or nobody asks
  mutable std::shared_ptr<const Stretches> stretches;  // null: not made
  mutable bool is_read = false;                        // row by row, by what outlives the making of graphs
  mutable bool is_dropped = false;                     // `indices` and `edge_ids`, as nobody reads them any more

  [[nodiscard]] int64_t num_rows() const { return int64_t(indptr.size()) - 1; }
  [[nodiscard]] int64_t num_edges() const { return is_dropped ? indptr.back() : int64_t(indices.size()); }
  [[nodiscard]] gw_adjacency native() const;
};
using Form = std::shared_ptr<const Compressed>;

// Columns become rows; inside a new row entries ascend by the old row.
Form transposed(const Compressed& a, bool with_edge_ids);
// Ascending columns in every row.
bool columns_ascend(const Compressed& a);

class Graph {
 public:
  // Edges src[e] -> dst[e]. Unless they are `numbered`, no form of this graph, or of one made of it, has their numbers.
  static Graph from_edges(Numbers<int32_t> src, Numbers<int32_t> dst, int64_t num_nodes, bool numbered = true);
  // Rows are sources.
  static Graph from_csr(Numbers<int64_t> indptr, Numbers<int32_t> indices, bool numbered = true);
  // Rows are destinations; not copied, and shared with other graphs.
  static Graph from_in_edges(Form in_edges);

  [[nodiscard]] int64_t num_edges() const;
  [[nodiscard]] Graph reverse() const;
  [[nodiscard]] Graph without_loops() const;
  // Exactly one edge from every node to itself, after the others.
  [[nodiscard]] Graph one_loop() const;
  // The edges into some nodes, which become the destinations; with loops, each with one more from itself.
  [[nodiscard]] Graph take_dst(const Numbers<int64_t>& rows, bool loops) const;
  void in_degrees(float* out) const;

  // Edges by destination, for sums over in-edges.
  [[nodiscard]] gw_adjacency in_edges() const;
  // The same with edge numbers in the order of the source, for maxima; of a numbered graph.
  [[nodiscard]] gw_adjacency in_edges_in_order() const;
  // Both, with the edges by so many stretches of sources alone, unless these do not ascend within rows.
  [[nodiscard]] gw_adjacency in_edges_by_stretches(int64_t count) const;
  [[nodiscard]] gw_adjacency in_edges_in_order_by_stretches(int64_t count) const;
  // Edges by source, for what flows back along those above.
  [[nodiscard]] gw_adjacency out_edges() const { return reverse().in_edges(); }
  [[nodiscard]] gw_adjacency out_edges_in_order() const { return reverse().in_edges_in_order(); }
  // The same with parallel ones side by side, for the gradient of maxima; of a numbered graph.
  [[nodiscard]] gw_adjacency out_edges_side_by_side() const;
  // Gives the memory of edges back that none of the above reads row by row. No graph is made of this one after it.
  void drop_unread() const;

 private:
  struct Forms;
  Graph(Form by_dst, Form by_src, int64_t num_src, int64_t num_dst, bool square, bool numbered);
  [[nodiscard]] bool is_symmetric() const;
  [[nodiscard]] Form full(int side) const;
  [[nodiscard]] Form known() const;
  [[nodiscard]] Form summed() const;

  std::shared_ptr<Forms> forms_;
  int side_ = 0;
  int64_t num_src_, num_dst_;
  bool square_;
};

}  // namespace program
