// Subgraphs by node ids: entry points over subset.h and ego.h.
#include <memory>

#include "graphweft/abi.h"
#include "graphweft/ego.h"
#include "graphweft/subset.h"

namespace gw {
namespace {

template <class I>
std::unique_ptr<subset> make_subset(const gw_adjacency& a, bool dense) {
  const csr_view<I> graph(a);
  // ids of 64 bits are rare, and numbers are the same either way: one form is compiled for them
  if constexpr (sizeof(I) == 4)
    if (dense) return std::make_unique<subset_of<I, dense_numbers>>(graph);
  return std::make_unique<subset_of<I, hashed_numbers>>(graph);
}

template <class I>
std::unique_ptr<ego_sampler> make_ego(const gw_adjacency& a, const float* weights, bool ascending, bool dense) {
  const csr_view<I> graph(a);
  if constexpr (sizeof(I) == 4)
    if (dense) return std::make_unique<ego_sampler_of<I, dense_numbers>>(graph, weights, ascending);
  return std::make_unique<ego_sampler_of<I, hashed_numbers>>(graph, weights, ascending);
}

// Places within a row are 32 bits wide.
void check_rows(const gw_adjacency& a) {
  parallel_ranges(a.num_rows, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      require(a.indptr[row + 1] - a.indptr[row] < int64_t(UINT32_MAX), "sampler: a row has 2^32 entries");
  });
}

}  // namespace
}  // namespace gw

extern "C" {

// Working memory for pieces of a structure, which must outlive it. dense: a word per node, else a hash table.
GW_API int gw_subset_new(const gw_adjacency* a, int32_t dense, void** out) {
  return gw::guarded([&] {
    gw::check_rows(*a);
    *out = (a->wide ? gw::make_subset<int64_t>(*a, dense != 0) : gw::make_subset<int32_t>(*a, dense != 0)).release();
  });
}

GW_API int gw_subset_free(void* subset) {
  return gw::guarded([&] { delete static_cast<gw::subset*>(subset); });
}

// ids [count] without repeats, in order of first occurrence, out [made]; places [count]: where each id is in out.
GW_API int gw_subset_distinct(void* subset, int64_t count, const int64_t* ids, int64_t* out, int64_t* places,
                              int64_t* made) {
  return gw::guarded([&] { *made = static_cast<gw::subset*>(subset)->distinct(count, ids, out, places); });
}

// Keeps the entries of rows [num_rows] whose column is one of columns [num_columns], which are distinct and have the
// numbers given, or 0, 1, ... where those are null. edges: how many; gw_subset_write_slice writes them.
GW_API int gw_subset_slice(void* subset, int64_t num_rows, const int64_t* rows, int64_t num_columns,
                           const int64_t* columns, const int64_t* numbers, int64_t* edges) {
  return gw::guarded([&] {
    gw::require(num_rows >= 0 && num_columns >= 0, "gw_subset_slice: negative size");
    *edges = static_cast<gw::subset*>(subset)->slice(num_rows, rows, num_columns, columns, numbers);
  });
}

// indptr [num_rows + 1], indices [edges]: numbers of the columns, offsets [edges]: places in the rows.
GW_API int gw_subset_write_slice(const void* subset, int64_t* indptr, int32_t* indices, uint32_t* offsets) {
  return gw::guarded([&] { static_cast<const gw::subset*>(subset)->write_slice(indptr, indices, offsets); });
}

// The distinct columns of rows, with sums over their entries of factors[row] * weight^2; null: 1.
GW_API int gw_subset_candidates(void* subset, int64_t num_rows, const int64_t* rows, const double* factors,
                                const float* weights, int64_t* count) {
  return gw::guarded([&] { *count = static_cast<gw::subset*>(subset)->candidates(num_rows, rows, factors, weights); });
}

GW_API int gw_subset_write_candidates(const void* subset, int64_t* ids, double* sums) {
  return gw::guarded([&] { static_cast<const gw::subset*>(subset)->write_candidates(ids, sums); });
}

// A maker of neighbourhoods as subgraphs of their own. weights [num_edges] by position, or null. ascending: columns
// ascend in every row.
GW_API int gw_ego_new(const gw_adjacency* a, const float* weights, int32_t ascending, int32_t dense, void** out) {
  return gw::guarded([&] {
    gw::require(a->num_rows == a->num_cols, "gw_ego_new: not square");
    gw::check_rows(*a);
    *out = (a->wide ? gw::make_ego<int64_t>(*a, weights, ascending != 0, dense != 0)
                    : gw::make_ego<int32_t>(*a, weights, ascending != 0, dense != 0))
               .release();
  });
}

GW_API int gw_ego_free(void* ego) {
  return gw::guarded([&] { delete static_cast<gw::ego_sampler*>(ego); });
}

// The neighbourhoods of roots [count]; sizes [2]: nodes and edges.
GW_API int gw_ego_draw(void* ego, int64_t count, const int64_t* roots, int64_t hops, const int64_t* fanouts,
                       int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t* sizes) {
  return gw::guarded([&] {
    const std::vector<int64_t> widths(fanouts, fanouts + hops);
    for (const int64_t width : widths)
      gw::require(width > 0 || (width < 0 && !replace), "gw_ego_draw: a fan-out is 0, or all with replacement");
    const auto made = static_cast<gw::ego_sampler*>(ego)->draw(count, roots, widths, replace != 0,
                                                               gw::sample_seed(seed, epoch, stage));
    sizes[0] = made.nodes;
    sizes[1] = made.edges;
  });
}

// Groups ids[starts[i] .. starts[i + 1]), none of them empty.
GW_API int gw_ego_group(void* ego, int64_t count, const int64_t* starts, const int64_t* ids, int64_t* sizes) {
  return gw::guarded([&] {
    const auto made = static_cast<gw::ego_sampler*>(ego)->group(count, starts, ids);
    sizes[0] = made.nodes;
    sizes[1] = made.edges;
  });
}

// nodes and owners [nodes], indptr [nodes + 1], indices and offsets [edges]: the disjoint union.
GW_API int gw_ego_write(const void* ego, int64_t* nodes, int64_t* owners, int64_t* indptr, int32_t* indices,
                        uint32_t* offsets) {
  return gw::guarded([&] { static_cast<const gw::ego_sampler*>(ego)->write(nodes, owners, indptr, indices, offsets); });
}
}
