#include "dataset.h"

#include <stdexcept>
#include <utility>

#include "arrays.h"
#include "edge_weights.h"
#include "graphweft/parallel.h"
#include "kernels.h"

extern "C" {
GW_API int gw_require_finite(int32_t wide_values, int64_t n, const void* values);
}

namespace program {

namespace {

Graph read_graph(const Npz& file, int64_t nodes, bool numbered) {
  if (file.has("indptr")) {
    Numbers<int64_t> indptr = file.read<int64_t>("indptr");
    require_size("nodes", nodes, int64_t(indptr.size()) - 1);
    return Graph::from_csr(std::move(indptr), read_ids(file, "indices", nodes), numbered);
  }
  const Array ends = file.array("edge_index");
  if (ends.shape.size() != 2 || ends.shape[0] != 2) throw std::runtime_error("edge_index: expected two rows");
  std::vector<Numbers<int32_t>> rows = read_id_rows(file, "edge_index", 2, nodes);
  return Graph::from_edges(std::move(rows[0]), std::move(rows[1]), nodes, numbered);
}

}  // namespace

Dataset::Dataset(const std::string& path, const Expected& expected)
    : graph(Graph::from_csr({0}, {})), task(expected.task), file_(path), expected_(expected) {
  if (!file_.has("edge_index") && !(file_.has("indptr") && file_.has("indices")))
    throw std::runtime_error(path + ": expected indptr and indices, or edge_index");
  for (const char* name : {"edge_weight", "edge_features"})
    if (file_.has(name) && !(expected.weighted && std::string(name) == "edge_weight"))
      throw std::runtime_error(path + ": expected a graph without " + name + ", which programs do not have yet");
  if (file_.is_deflated("x") && gw::num_threads() > 1)
    inflated_ = std::async(std::launch::async, [path] { return Npz(path).read<float>("x"); });
  graph = read_graph(file_, expected.nodes, expected.numbered);
  require_size("edges", expected.edges, graph.num_edges());
  read_targets(expected.nodes);
  require_size("training nodes", expected.train_rows, int64_t(split.train.size()));
  if (task != Task::classes)
    require_size("known labels", expected.known, known_entries(entries, split.train, expected.classes));
}

Numbers<float> Dataset::edge_weights(bool with_loops) const {
  if (!file_.has("edge_weight")) throw std::runtime_error("edge_weight: expected weights in the file, got none");
  require_size("edge_weight", expected_.edges, file_.array("edge_weight").count());
  Numbers<float> all = file_.read<float>("edge_weight");
  check(gw_require_finite(0, int64_t(all.size()), all.data()));
  if (with_loops) return all;
  return weights_without_loops(graph, all.data());
}

void Dataset::read_loop_weights(float* out) const {
  program::read_loop_weights(graph, edge_weights(true).data(), expected_.nodes, out);
}

}  // namespace program
