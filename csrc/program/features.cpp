#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "arrays.h"
#include "dataset.h"
#include "graphweft/parallel.h"
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
GW_API int gw_dense_normalize_rows(int32_t wide_values, int64_t rows, int64_t width, int64_t ld, const void* x,
                                   void* out);
GW_API int gw_require_finite(int32_t wide_values, int64_t n, const void* values);
}

namespace program {

namespace {

// The transposed structure; values move along.
Compressed turn(const Compressed& x, Numbers<float>& values) {
  Compressed turned;
  turned.num_cols = x.num_rows();
  turned.indptr.resize(size_t(x.num_cols) + 1);
  turned.indices.resize(x.indices.size());
  Numbers<float> moved(values.size());
  const gw_adjacency from = x.native();
  check(gw_csr_transpose(&from, 4, values.data(), turned.indptr.data(), turned.indices.data(), moved.data()));
  values = std::move(moved);
  return turned;
}

void add_columns(SparseFeatures& to, const Compressed& by_row) {
  to.values_by_column = to.values;
  to.by_column = std::make_shared<Compressed>(turn(by_row, to.values_by_column));
}

// Columns that ascend, equal ones added up, no stored zeros.
void make_canonical(Compressed& x, Numbers<float>& values) {
  for (int turns = columns_ascend(x) ? 0 : 2; turns > 0; --turns) x = turn(x, values);
  Compressed merged;
  merged.num_cols = x.num_cols;
  merged.indptr.assign(x.indptr.size(), 0);
  const gw_adjacency native = x.native();
  check(gw_csr_merge_equal(&native, 0, values.data(), merged.indptr.data() + 1, nullptr, nullptr));
  std::partial_sum(merged.indptr.begin(), merged.indptr.end(), merged.indptr.begin());
  if (size_t(merged.indptr.back()) == values.size()) return;
  merged.indices.resize(size_t(merged.indptr.back()));
  Numbers<float> sums(merged.indices.size());
  check(gw_csr_merge_equal(&native, 0, values.data(), merged.indptr.data(), merged.indices.data(), sums.data()));
  x = std::move(merged);
  values = std::move(sums);
}

}  // namespace

void Dataset::read_dense(float* out) const {
  const Array header = file_.array("x");
  if (header.shape.size() != 2) throw std::runtime_error("x: expected a matrix");
  require_size("rows of x", expected_.nodes, header.shape[0]);
  require_size("columns of x", expected_.features, header.shape[1]);
  if (inflated_.valid()) {
    const Numbers<float> x = inflated_.get();
    gw::parallel_ranges(header.count(), int64_t{1} << 18,
                        [&](int64_t begin, int64_t end) { std::copy(x.data() + begin, x.data() + end, out + begin); });
  } else {
    file_.read("x", out);
  }
  check(gw_require_finite(0, header.count(), out));
}

Compressed Dataset::read_nonzeros(Numbers<float>& values) const {
  Compressed x;
  x.num_cols = expected_.features;
  if (file_.has("x")) {
    Numbers<float> dense(size_t(expected_.nodes * expected_.features));
    read_dense(dense.data());
    x.indptr.assign(size_t(expected_.nodes) + 1, 0);
    check(gw_dense_count_nonzero(0, expected_.nodes, x.num_cols, x.num_cols, dense.data(), x.indptr.data() + 1));
    std::partial_sum(x.indptr.begin(), x.indptr.end(), x.indptr.begin());
    x.indices.resize(size_t(x.indptr.back()));
    values.resize(x.indices.size());
    check(gw_csr_from_dense(0, expected_.nodes, x.num_cols, x.num_cols, dense.data(), x.indptr.data(), 0,
                            x.indices.data(), values.data()));
    return x;
  }
  const Numbers<int64_t> shape = file_.read<int64_t>("x_shape");
  if (shape.size() != 2) throw std::runtime_error("x_shape: expected two sizes");
  require_size("rows of x", expected_.nodes, shape[0]);
  require_size("columns of x", expected_.features, shape[1]);
  x.indptr = file_.read<int64_t>("x_indptr");
  x.indices = read_ids(file_, "x_indices", x.num_cols);
  values.assign(x.indices.size(), 1.0f);
  if (file_.has("x_data")) {
    require_size("x_data", int64_t(x.indices.size()), file_.array("x_data").count());
    file_.read("x_data", values.data());
  }
  require_size("x_indptr", expected_.nodes + 1, int64_t(x.indptr.size()));
  const gw_adjacency native = x.native();
  check(gw_csr_check(&native));
  check(gw_require_finite(0, int64_t(values.size()), values.data()));
  make_canonical(x, values);
  return x;
}

void Dataset::read_features(float* out, bool normalize) const {
  const int64_t rows = expected_.nodes, width = expected_.features;
  if (file_.has("x")) {
    read_dense(out);
  } else {
    Numbers<float> values;
    const Compressed x = read_nonzeros(values);
    std::fill_n(out, rows * width, 0.0f);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t p = x.indptr[size_t(row)]; p < x.indptr[size_t(row) + 1]; ++p)
        out[row * width + x.indices[size_t(p)]] = values[size_t(p)];
  }
  if (normalize) check(gw_dense_normalize_rows(0, rows, width, width, out, out));
}

SparseFeatures Dataset::read_sparse_features(bool normalize, bool by_column) const {
  SparseFeatures found;
  const auto x = std::make_shared<Compressed>(read_nonzeros(found.values));
  require_size("stored entries of x", expected_.nonzeros, int64_t(found.values.size()));  // buffers have this size
  const gw_adjacency native = x->native();
  if (normalize) {
    Numbers<float> shares(found.values.size());
    check(gw_csr_normalize_rows(&native, 0, found.values.data(), shares.data()));
    found.values = std::move(shares);
  }
  if (by_column) add_columns(found, *x);
  found.by_row = x;
  return found;
}

SparseFeatures SparseFeatures::take(const Numbers<int64_t>& rows, bool columns) const {
  SparseFeatures found;
  const auto x = std::make_shared<Compressed>();
  x->num_cols = by_row->num_cols;
  x->indptr.assign(1, 0);
  for (const int64_t row : rows) {
    const int64_t first = by_row->indptr[size_t(row)], last = by_row->indptr[size_t(row) + 1];
    x->indices.insert(x->indices.end(), by_row->indices.begin() + first, by_row->indices.begin() + last);
    found.values.insert(found.values.end(), values.begin() + first, values.begin() + last);
    x->indptr.push_back(x->num_edges());
  }
  if (columns) add_columns(found, *x);
  found.by_row = x;
  return found;
}

}  // namespace program
