// A rank's part of a dataset, from a folder that `graphweft synth --ranks` wrote.
#include "dataset.h"

#include <stdexcept>
#include <utility>

#include "arrays.h"
#include "team.h"

extern "C" {
GW_API int gw_require_finite(int32_t wide_values, int64_t n, const void* values);
}

namespace program {

namespace {

std::string part_of(const std::string& folder) { return folder + "/rank-" + std::to_string(Team::rank()) + ".npz"; }

Form read_side(const Npz& file, const std::string& name, int64_t own) {
  auto made = std::make_shared<Compressed>();
  made->indptr = file.read<int64_t>(name + "_indptr");
  require_size("rows of a part", own, made->num_rows());
  made->num_cols = own + int64_t(file.read<int64_t>(name + "_ghosts").size());
  made->indices = read_ids(file, name + "_indices", made->num_cols);
  made->edge_ids = read_ids(file, name + "_edge_ids", INT32_MAX);
  require_size("edges of a part", made->num_edges(), int64_t(made->edge_ids.size()));
  if (const std::string weights = name + "_edge_weight"; file.has(weights)) {
    require_size("weights of a part", made->num_edges(), file.array(weights).count());
    made->weights = file.read<float>(weights);
    check(gw_require_finite(0, made->num_edges(), made->weights.data()));
  }
  if (made->indptr.front() != 0 || made->indptr.back() != made->num_edges())
    throw std::runtime_error(name + "_indptr: expected ends of rows within the edges");
  return made;
}

std::shared_ptr<Halo> read_halo(const Npz& file, const std::string& name, int64_t own) {
  Numbers<int64_t> lent = file.read<int64_t>(name + "_lent"), ends = file.read<int64_t>(name + "_lent_ends"),
                   borrowed = file.read<int64_t>(name + "_borrowed");
  require_size("ranks of a part", Team::size(), int64_t(ends.size()));
  require_size("ranks of a part", Team::size(), int64_t(borrowed.size()));
  for (const int64_t place : lent)
    if (place < 0 || place >= own) throw std::runtime_error(name + "_lent: expected places of own rows");
  return std::make_shared<Halo>(std::move(lent), std::move(ends), std::move(borrowed));
}

Graph read_graph(const Npz& file) {
  const Numbers<int64_t> sizes = file.read<int64_t>("sizes");
  auto sides = std::make_shared<Graph::Sides>();
  sides->num_edges = sizes.at(1);
  sides->interior = sizes.at(5);
  const int64_t own = sizes.at(4);
  sides->own = file.read<int64_t>("own");
  require_size("own nodes of a part", own, int64_t(sides->own.size()));
  const char* names[2] = {"in", "out"};
  for (int side = 0; side < 2; ++side) {
    sides->by[side] = read_side(file, names[side], own);
    sides->halo[side] = read_halo(file, names[side], own);
  }
  if (sides->interior < 0 || sides->interior > own)
    throw std::runtime_error("sizes: expected interior nodes of a part");
  return Graph(std::move(sides));
}

}  // namespace

Dataset::Dataset(const std::string& path, const Expected& expected)
    : graph(std::make_shared<Graph::Sides>()), task(expected.task), file_(part_of(path)), expected_(expected) {
  const Numbers<int64_t> sizes = file_.read<int64_t>("sizes");
  if (sizes.size() != 7) throw std::runtime_error(path + ": expected a part of a dataset");
  require_size("nodes", expected.nodes, sizes[0]);
  require_size("edges", expected.edges, sizes[1]);
  require_size("training nodes", expected.train_rows, sizes[2]);
  require_size("ranks", sizes[3], Team::size());
  expected_.nodes = sizes[4];
  expected_.nonzeros = sizes[6];
  graph = read_graph(file_);
  read_targets(sizes[4]);
}

void Dataset::read_loop_weights(float* out) const { graph.loop_weights(out); }

}  // namespace program
