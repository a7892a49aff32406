#include "dataset.h"

#include <stdexcept>
#include <utility>

#include "arrays.h"

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
    : graph(Graph::from_csr({0}, {})), file_(path), expected_(expected) {
  if (!file_.has("edge_index") && !(file_.has("indptr") && file_.has("indices")))
    throw std::runtime_error(path + ": expected indptr and indices, or edge_index");
  for (const char* name : {"edge_weight", "edge_features"})
    if (file_.has(name))
      throw std::runtime_error(path + ": expected a graph without " + name + ", which programs do not have yet");
  graph = read_graph(file_, expected.nodes);
  require_size("edges", expected.edges, graph.num_edges());
  labels = read_labels(file_, expected.nodes, expected.classes);
  split = {read_split(file_, "train_mask", labels), read_split(file_, "val_mask", labels),
           read_split(file_, "test_mask", labels)};
  require_size("training nodes", expected.train_rows, int64_t(split.train.size()));
}

}  // namespace program
