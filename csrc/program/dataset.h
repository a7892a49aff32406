// A dataset in the .npz form: a graph, features, classes and masks.
#pragma once

#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "graph.h"
#include "npz.h"

namespace program {

// What labels are: one class a node, several labels a node, or numbers.
enum class Task { classes, labels, values };

// What the program was written for.
struct Expected {
  int64_t nodes, edges, features, classes, train_rows, nonzeros;  // nonzeros: of sparse features, else 0
  bool numbered = true;                                           // whether a kernel asks for numbers of edges
  bool weighted = false;                                          // whether edges have weights
  Task task = Task::classes;
  int64_t known = 0;  // entries of training nodes whose label is known, but of classes
};

// Rows of features in compressed form, and the same by column.
struct SparseFeatures {
  Form by_row, by_column;
  Numbers<float> values, values_by_column;

  // The listed rows, in their order.
  [[nodiscard]] SparseFeatures take(const Numbers<int64_t>& rows, bool columns) const;
};

// The rows of each split that have a label.
struct Split {
  Numbers<int64_t> train, val, test;
};

class Dataset {
 public:
  // Throws std::runtime_error with one line where the file is not what the program was written for.
  Dataset(const std::string& path, const Expected& expected);

  Graph graph;
  Task task;
  Numbers<int64_t> labels;  // class ids
  Numbers<float> entries;   // or numbers, [nodes, classes]; those that are not known are not a number
  Split split;

  // Weights of edges by number: of all, or of those that are no loops, numbered without them.
  [[nodiscard]] Numbers<float> edge_weights(bool with_loops) const;
  // For each node the weight of its last loop, 1 where it has none.
  void read_loop_weights(float* out) const;
  // Dense features into `out` [nodes, features]; rows divided by the sums of their magnitudes where asked for.
  void read_features(float* out, bool normalize) const;
  // The stored entries of sparse features, or of dense ones; divided in the same way, and by column as well where that
  // is wanted.
  [[nodiscard]] SparseFeatures read_sparse_features(bool normalize, bool by_column = true) const;

 private:
  // Labels and splits of so many nodes.
  void read_targets(int64_t nodes);
  // The matrix of features as the file has it.
  void read_dense(float* out) const;
  // The entries of features other than zero, row by row, from either form of the file.
  [[nodiscard]] Compressed read_nonzeros(Numbers<float>& values) const;

  Npz file_;
  Expected expected_;
  mutable std::future<Numbers<float>> inflated_;  // features that a thread inflates while others make the graph
};

}  // namespace program
