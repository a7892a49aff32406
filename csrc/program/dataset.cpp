#include "dataset.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "arrays.h"
#include "kernels.h"

extern "C" {
GW_API int gw_require_finite(int32_t wide_values, int64_t n, const void* values);
}

namespace program {

namespace {

Graph read_graph(const Npz& file, int64_t nodes) {
  if (file.has("indptr")) {
    Numbers<int64_t> indptr = file.read<int64_t>("indptr");
    require_size("nodes", nodes, int64_t(indptr.size()) - 1);
    return Graph::from_csr(std::move(indptr), read_ids(file, "indices", nodes));
  }
  const Array ends = file.array("edge_index");
  if (ends.shape.size() != 2 || ends.shape[0] != 2) throw std::runtime_error("edge_index: expected two rows");
  const Numbers<int32_t> both = read_ids(file, "edge_index", nodes);
  const auto middle = both.begin() + int64_t(both.size() / 2);
  return Graph::from_edges({both.begin(), middle}, {middle, both.end()}, nodes);
}

}  // namespace

Dataset::Dataset(const std::string& path, const Expected& expected)
    : graph(Graph::from_csr({0}, {})), task(expected.task), file_(path), expected_(expected) {
  if (!file_.has("edge_index") && !(file_.has("indptr") && file_.has("indices")))
    throw std::runtime_error(path + ": expected indptr and indices, or edge_index");
  for (const char* name : {"edge_weight", "edge_features"})
    if (file_.has(name) && !(expected.weighted && std::string(name) == "edge_weight"))
      throw std::runtime_error(path + ": expected a graph without " + name + ", which programs do not have yet");
  graph = read_graph(file_, expected.nodes);
  require_size("edges", expected.edges, graph.num_edges());
  read_targets(expected.nodes);
  require_size("training nodes", expected.train_rows, int64_t(split.train.size()));
  if (task != Task::classes)
    require_size("known labels", expected.known, known_entries(entries, split.train, expected.classes));
}

namespace {

// Nodes of loops by the number of the edge, -1 for other edges.
Numbers<int32_t> loops_of(const Graph& graph) {
  const gw_adjacency edges = graph.in_edges_in_order();
  const auto *columns = static_cast<const int32_t*>(edges.indices), *ids = static_cast<const int32_t*>(edges.edge_ids);
  Numbers<int32_t> found(size_t(edges.num_edges), -1);
  for (int64_t row = 0; row < edges.num_rows; ++row)
    for (int64_t p = edges.indptr[row]; p < edges.indptr[row + 1]; ++p)
      if (columns[p] == row) found[size_t(ids ? ids[p] : p)] = int32_t(row);
  return found;
}

}  // namespace

Numbers<float> Dataset::edge_weights(bool with_loops) const {
  if (!file_.has("edge_weight")) throw std::runtime_error("edge_weight: expected weights in the file, got none");
  require_size("edge_weight", expected_.edges, file_.array("edge_weight").count());
  Numbers<float> all = file_.read<float>("edge_weight");
  check(gw_require_finite(0, int64_t(all.size()), all.data()));
  if (with_loops) return all;
  const Numbers<int32_t> loops = loops_of(graph);
  Numbers<float> kept;
  for (size_t edge = 0; edge < all.size(); ++edge)
    if (loops[edge] < 0) kept.push_back(all[edge]);
  return kept;
}

void Dataset::read_loop_weights(float* out) const {
  const Numbers<float> all = edge_weights(true);
  const Numbers<int32_t> loops = loops_of(graph);
  std::fill_n(out, expected_.nodes, 1.0f);
  for (size_t edge = 0; edge < all.size(); ++edge)
    if (loops[edge] >= 0) out[loops[edge]] = all[edge];
}

}  // namespace program
