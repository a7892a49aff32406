#include "neighborhood.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "graphweft/parallel.h"
#include "kernels.h"

extern "C" {
GW_API int gw_sampler_new(const gw_adjacency* a, const float* weights, int32_t dense, void** out);
GW_API int gw_sampler_free(void* sampler);
GW_API int gw_sample_begin(void* sampler, int64_t count, const int64_t* seeds, int64_t hops, const int64_t* fanouts,
                           int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t* rows,
                           int64_t* block_edges, int64_t* totals);
GW_API int gw_sample_finish(void* sampler, int64_t* n_id, int64_t* inner_indptr, int32_t* inner_indices,
                            uint32_t* inner_offsets, int64_t* const* block_indptr, int32_t* const* block_indices,
                            uint32_t* const* block_offsets, void* open, int64_t* num_nodes);
}

namespace program {

namespace {

// Edges of some rows of a batch, and where each lies in the row that it was drawn from.
struct Drawn {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  std::vector<uint32_t> offsets;

  Drawn(int64_t rows, int64_t edges) : indptr(size_t(rows) + 1), indices(size_t(edges)), offsets(size_t(edges)) {}
};

}  // namespace

Neighborhood::Neighborhood(Form in_edges, const float* weights)
    : whole_(std::move(in_edges)), native_(whole_->native()), weights_(weights) {
  check(gw_sampler_new(&native_, nullptr, 0, &sampler_));
}

Neighborhood::~Neighborhood() { (void)gw_sampler_free(sampler_); }

void Neighborhood::draw(int64_t count, const int64_t* seeds, int64_t hops, const int64_t* fanouts, uint64_t seed) {
  const auto steps = size_t(hops);
  std::vector<int64_t> rows(steps), edges(steps);
  int64_t totals[2] = {}, found = 0;
  check(gw_sample_begin(sampler_, count, seeds, hops, fanouts, 0, seed, 0, 0, rows.data(), edges.data(), totals));
  const int64_t inner_rows = steps > 1 ? rows[steps - 2] : 0;
  Drawn inner(inner_rows, totals[0]), outer(rows[steps - 1], edges[steps - 1]);
  std::vector<int64_t*> indptr(steps, nullptr);
  std::vector<int32_t*> indices(steps, nullptr);
  std::vector<uint32_t*> offsets(steps, nullptr);
  indptr.back() = outer.indptr.data();
  indices.back() = outer.indices.data();
  offsets.back() = outer.offsets.data();
  ids_.resize(size_t(totals[1]));
  check(gw_sample_finish(sampler_, ids_.data(), inner.indptr.data(), inner.indices.data(), inner.offsets.data(),
                         indptr.data(), indices.data(), offsets.data(), nullptr, &found));
  ids_.resize(size_t(found));
  // A node draws once: in the inner rows, or where it is first reached in the last hop.
  auto made = std::make_shared<Compressed>();
  made->num_cols = found;
  made->indptr.assign(size_t(found) + 1, 0);
  const int64_t first = outer.indptr[size_t(inner_rows)];
  std::copy(inner.indptr.begin(), inner.indptr.end(), made->indptr.begin());
  made->indices.assign(inner.indices.begin(), inner.indices.begin() + inner.indptr.back());
  for (int64_t row = inner_rows; row < found; ++row) {
    const int64_t end = outer.indptr[size_t(std::min(row + 1, rows[steps - 1]))] - first;
    made->indptr[size_t(row) + 1] = inner.indptr.back() + end;
  }
  made->indices.insert(made->indices.end(), outer.indices.begin() + first, outer.indices.end());
  if (weights_) {
    inner.offsets.resize(size_t(inner.indptr.back()));
    inner.offsets.insert(inner.offsets.end(), outer.offsets.begin() + first, outer.offsets.end());
    drawn_weights_.resize(inner.offsets.size());
    for (int64_t row = 0; row < found; ++row)
      for (int64_t p = made->indptr[size_t(row)]; p < made->indptr[size_t(row) + 1]; ++p)
        drawn_weights_[size_t(p)] = weights_[whole_->indptr[size_t(ids_[size_t(row)])] + inner.offsets[size_t(p)]];
  }
  drawn_ = std::move(made);
}

const float* Neighborhood::rows_of(const float* table, int64_t width) {
  rows_.resize(ids_.size() * size_t(width));
  gw::parallel_ranges(nodes(), 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(table + ids_[size_t(i)] * width, width, rows_.data() + i * width);
  });
  return rows_.data();
}

}  // namespace program
