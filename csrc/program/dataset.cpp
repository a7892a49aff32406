#include "dataset.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "kernels.h"

extern "C" {
GW_API int gw_csr_check(const gw_adjacency* a);
GW_API int gw_csr_transpose(const gw_adjacency* a, int32_t payload_bytes, const void* payload_in, int64_t* indptr,
                            void* indices, void* payload);
GW_API int gw_dense_count_nonzero(int32_t wide_values, int64_t rows, int64_t width, int64_t ld, const void* x,
                                  int64_t* counts);
GW_API int gw_csr_from_dense(int32_t wide_values, int64_t rows, int64_t width, int64_t ld, const void* x,
                             const int64_t* indptr, int32_t wide, void* indices, void* values);
GW_API int gw_csr_merge_equal(const gw_adjacency* a, int32_t wide_values, const void* values, int64_t* indptr,
                              void* indices, void* out);
GW_API int gw_csr_normalize_rows(const gw_adjacency* a, int32_t wide_values, const void* values, void* out);
GW_API int gw_require_finite(int32_t wide_values, int64_t n, const void* values);
}

namespace program {

namespace {

void require_size(const char* what, int64_t expected, int64_t got) {
  if (expected == got) return;
  throw std::runtime_error(std::string(what) + ": expected " + std::to_string(expected) +
                           ", which this program was written for, got " + std::to_string(got));
}

std::vector<int32_t> read_ids(const Npz& file, const std::string& name, int64_t bound) {
  const std::vector<int64_t> wide = file.read<int64_t>(name);
  for (const int64_t id : wide)
    if (id < 0 || id >= bound)
      throw std::runtime_error(name + ": expected ids in [0, " + std::to_string(bound) + "), got " +
                               std::to_string(id));
  return {wide.begin(), wide.end()};
}

Graph read_graph(const Npz& file, int64_t nodes) {
  if (file.has("indptr")) {
    std::vector<int64_t> indptr = file.read<int64_t>("indptr");
    require_size("nodes", nodes, int64_t(indptr.size()) - 1);
    return Graph::from_csr(std::move(indptr), read_ids(file, "indices", nodes));
  }
  const Array ends = file.array("edge_index");
  if (ends.shape.size() != 2 || ends.shape[0] != 2) throw std::runtime_error("edge_index: expected two rows");
  const std::vector<int32_t> both = read_ids(file, "edge_index", nodes);
  const auto middle = both.begin() + int64_t(both.size() / 2);
  return Graph::from_edges({both.begin(), middle}, {middle, both.end()}, nodes);
}

// Class ids; floats that are whole numbers count.
std::vector<int64_t> read_labels(const Npz& file, int64_t nodes, int64_t classes) {
  const Array header = file.array("y");
  require_size("y", nodes, header.count());
  const std::vector<double> values = file.read<double>("y");
  std::vector<int64_t> labels(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != std::floor(values[i]) || values[i] < -1 || values[i] >= double(classes))
      throw std::runtime_error("y: expected class ids below " + std::to_string(classes) + ", or -1 for none, got " +
                               std::to_string(values[i]) + " at position " + std::to_string(i));
    labels[i] = int64_t(values[i]);
  }
  return labels;
}

// The rows where a mask is set and a label is known; of several splits the first.
std::vector<int64_t> read_split(const Npz& file, const std::string& name, const std::vector<int64_t>& labels) {
  if (!file.has(name))
    throw std::runtime_error(name + ": expected a mask in the file, got none; gw.load(...).save(...) writes them");
  const Array header = file.array(name);
  const std::vector<int64_t> mask = file.read<int64_t>(name);
  const auto nodes = int64_t(labels.size());
  int64_t step = 1;
  if (header.shape.size() == 2 && header.shape[1] != nodes && header.shape[0] == nodes) step = header.shape[1];
  if (header.shape.empty() || header.shape.size() > 2 || (header.shape.back() != nodes && step == 1))
    throw std::runtime_error(name + ": expected " + std::to_string(nodes) + " entries, one per node");
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < nodes; ++i) {
    const int64_t value = mask[size_t(i * step)];
    if (value != 0 && value != 1) throw std::runtime_error(name + ": expected true and false, got other values");
    if (value && labels[size_t(i)] >= 0) rows.push_back(i);
  }
  return rows;
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

void Dataset::read_features(float* out) const {
  const Array header = file_.array("x");
  if (header.shape.size() != 2) throw std::runtime_error("x: expected a matrix");
  require_size("rows of x", expected_.nodes, header.shape[0]);
  require_size("columns of x", expected_.features, header.shape[1]);
  file_.read("x", out);
  check(gw_require_finite(0, header.count(), out));
}

namespace {

// The transposed structure; values move along.
Compressed turn(const Compressed& x, std::vector<float>& values) {
  Compressed turned;
  turned.num_cols = x.num_rows();
  turned.indptr.resize(size_t(x.num_cols) + 1);
  turned.indices.resize(x.indices.size());
  std::vector<float> moved(values.size());
  const gw_adjacency from = x.native();
  check(gw_csr_transpose(&from, 4, values.data(), turned.indptr.data(), turned.indices.data(), moved.data()));
  values = std::move(moved);
  return turned;
}

// Columns that ascend, equal ones added up, no stored zeros.
void make_canonical(Compressed& x, std::vector<float>& values) {
  for (int turns = columns_ascend(x) ? 0 : 2; turns > 0; --turns) x = turn(x, values);
  Compressed merged;
  merged.num_cols = x.num_cols;
  merged.indptr.assign(x.indptr.size(), 0);
  const gw_adjacency native = x.native();
  check(gw_csr_merge_equal(&native, 0, values.data(), merged.indptr.data() + 1, nullptr, nullptr));
  std::partial_sum(merged.indptr.begin(), merged.indptr.end(), merged.indptr.begin());
  if (size_t(merged.indptr.back()) == values.size()) return;
  merged.indices.resize(size_t(merged.indptr.back()));
  std::vector<float> sums(merged.indices.size());
  check(gw_csr_merge_equal(&native, 0, values.data(), merged.indptr.data(), merged.indices.data(), sums.data()));
  x = std::move(merged);
  values = std::move(sums);
}

}  // namespace

SparseFeatures Dataset::read_sparse_features(bool normalize) const {
  SparseFeatures found;
  auto x = std::make_shared<Compressed>();
  x->num_cols = expected_.features;
  if (file_.has("x")) {
    std::vector<float> dense(size_t(expected_.nodes * expected_.features));
    read_features(dense.data());
    x->indptr.assign(size_t(expected_.nodes) + 1, 0);
    check(gw_dense_count_nonzero(0, expected_.nodes, x->num_cols, x->num_cols, dense.data(), x->indptr.data() + 1));
    std::partial_sum(x->indptr.begin(), x->indptr.end(), x->indptr.begin());
    x->indices.resize(size_t(x->indptr.back()));
    found.values.resize(x->indices.size());
    check(gw_csr_from_dense(0, expected_.nodes, x->num_cols, x->num_cols, dense.data(), x->indptr.data(), 0,
                            x->indices.data(), found.values.data()));
  } else {
    const std::vector<int64_t> shape = file_.read<int64_t>("x_shape");
    if (shape.size() != 2) throw std::runtime_error("x_shape: expected two sizes");
    require_size("rows of x", expected_.nodes, shape[0]);
    require_size("columns of x", expected_.features, shape[1]);
    x->indptr = file_.read<int64_t>("x_indptr");
    x->indices = read_ids(file_, "x_indices", x->num_cols);
    found.values.assign(x->indices.size(), 1.0f);
    if (file_.has("x_data")) {
      require_size("x_data", int64_t(x->indices.size()), file_.array("x_data").count());
      file_.read("x_data", found.values.data());
    }
    require_size("x_indptr", expected_.nodes + 1, int64_t(x->indptr.size()));
    const gw_adjacency native = x->native();
    check(gw_csr_check(&native));
    check(gw_require_finite(0, int64_t(found.values.size()), found.values.data()));
    make_canonical(*x, found.values);
  }
  require_size("stored entries of x", expected_.nonzeros, int64_t(found.values.size()));  // buffers have this size
  const gw_adjacency native = x->native();
  if (normalize) {
    std::vector<float> shares(found.values.size());
    check(gw_csr_normalize_rows(&native, 0, found.values.data(), shares.data()));
    found.values = std::move(shares);
  }
  found.values_by_column = found.values;
  found.by_column = std::make_shared<Compressed>(turn(*x, found.values_by_column));
  found.by_row = std::move(x);
  return found;
}

}  // namespace program
