// Sampling by relation and time: entry points over segment_sample.h.
#include "graphweft/segment_sample.h"

#include "graphweft/abi.h"

namespace gw {
namespace {

template <class I>
std::unique_ptr<segment_sampler_base> make_segment_sampler(const gw_adjacency& a, const time_order& order,
                                                           const row_cuts& cuts, const std::vector<int64_t>& bounds,
                                                           bool trees, bool dense) {
  const csr_view<I> graph(a);
  parallel_ranges(graph.num_rows, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      require(graph.indptr[row + 1] - graph.indptr[row] < int64_t(UINT32_MAX), "sampler: a row has 2^32 entries");
  });
  // ids of 64 bits are rare, and numbers are the same either way: one form is compiled for them
  if constexpr (sizeof(I) == 4)
    if (dense && !trees)
      return std::make_unique<segment_sampler<I, dense_renumbering<I>, I>>(graph, order, cuts, bounds, trees);
  return std::make_unique<segment_sampler<I, hashed_renumbering<int64_t>, int64_t>>(graph, order, cuts, bounds, trees);
}

std::vector<int64_t> relation_bounds(int64_t relations, const int64_t* bounds) {
  require(relations > 0 && bounds[0] == 0, "segment sampler: no relation");
  for (int64_t r = 0; r < relations; ++r) require(bounds[r] <= bounds[r + 1], "segment sampler: bounds fall");
  return {bounds, bounds + relations + 1};
}

}  // namespace
}  // namespace gw

extern "C" {

// The edges of every row by (relation, time, edge id): places [num_edges] in the row and sorted times, both by
// position. times [num_edges] by edge id; relation r has the edge ids [bounds[r], bounds[r + 1]).
GW_API int gw_order_by_time(const gw_adjacency* a, int64_t relations, const int64_t* bounds, const int64_t* times,
                            uint32_t* places, int64_t* sorted) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr, "gw_order_by_time: no structure");
    const std::vector<int64_t> limits = gw::relation_bounds(relations, bounds);
    a->wide ? gw::order_by_time(gw::csr_view<int64_t>(*a), limits, times, places, sorted)
            : gw::order_by_time(gw::csr_view<int32_t>(*a), limits, times, places, sorted);
  });
}

// begin [num_rows + 1]: the first run of every row, a run being its edges of one relation; they number begin[num_rows].
GW_API int gw_relation_runs_count(const gw_adjacency* a, int64_t relations, const int64_t* bounds, int64_t* begin) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr, "gw_relation_runs_count: no structure");
    const std::vector<int64_t> limits = gw::relation_bounds(relations, bounds);
    gw::require(limits.back() >= a->num_edges, "gw_relation_runs_count: edges of no relation");
    a->wide ? gw::count_runs(gw::csr_view<int64_t>(*a), limits, begin)
            : gw::count_runs(gw::csr_view<int32_t>(*a), limits, begin);
  });
}

// runs [begin[num_rows]]: relation and number of edges, 32 bits each.
GW_API int gw_relation_runs(const gw_adjacency* a, int64_t relations, const int64_t* bounds, const int64_t* begin,
                            void* runs) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr, "gw_relation_runs: no structure");
    const std::vector<int64_t> limits = gw::relation_bounds(relations, bounds);
    auto* const out = static_cast<gw::relation_run*>(runs);
    a->wide ? gw::write_runs(gw::csr_view<int64_t>(*a), limits, begin, out)
            : gw::write_runs(gw::csr_view<int32_t>(*a), limits, begin, out);
  });
}

// A sampler over a square structure whose edge ids ascend in every row. places and times as gw_order_by_time gives
// them, or null; run_begin and runs as gw_relation_runs does, where there are several relations; they outlive it.
// trees: every seed has nodes of its own. dense: numbers in an array over all nodes.
GW_API int gw_segment_sampler_new(const gw_adjacency* a, int64_t relations, const int64_t* bounds,
                                  const uint32_t* places, const int64_t* times, const int64_t* run_begin,
                                  const void* runs, int32_t trees, int32_t dense, void** out) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr && a->num_rows == a->num_cols,
                "gw_segment_sampler_new: not square");
    gw::require(relations == 1 || run_begin != nullptr, "gw_segment_sampler_new: no runs");
    const std::vector<int64_t> limits = gw::relation_bounds(relations, bounds);
    const gw::time_order order{places, times};
    const gw::row_cuts cuts{run_begin, static_cast<const gw::relation_run*>(runs)};
    *out = (a->wide ? gw::make_segment_sampler<int64_t>(*a, order, cuts, limits, trees != 0, dense != 0)
                    : gw::make_segment_sampler<int32_t>(*a, order, cuts, limits, trees != 0, dense != 0))
               .release();
  });
}

GW_API int gw_segment_sampler_free(void* sampler) {
  return gw::guarded([&] { delete static_cast<gw::segment_sampler_base*>(sampler); });
}

// Draws a batch. keys [count]: what the draws of a seed's tree are keyed by, null without trees. low, high [count]:
// times that a tree's edges may have, null without times; without trees all seeds have those of the first. fanouts
// [hops, relations], negative: all; they are read until gw_segment_finish. Edges left out: (tree, relation, src, dst).
// Out: rows [hops] and edges [hops] of the blocks; totals: nodes, edges, runs.
GW_API int gw_segment_begin(void* sampler, int64_t count, const int64_t* seeds, const int64_t* keys, const int64_t* low,
                            const int64_t* high, int64_t hops, const int64_t* fanouts, int32_t replace, int32_t recent,
                            uint64_t seed, uint64_t epoch, uint64_t stage, int64_t left_out, const int64_t* left_tree,
                            const int64_t* left_relation, const int64_t* left_src, const int64_t* left_dst,
                            int64_t* rows, int64_t* edges, int64_t* totals) {
  return gw::guarded([&] {
    gw::require(sampler != nullptr && count >= 0 && hops > 0 && left_out >= 0, "gw_segment_begin: negative size");
    gw::segment_request request{count, seeds,   keys,         low,         high,
                                hops,  fanouts, replace != 0, recent != 0, gw::sample_seed(seed, epoch, stage),
                                {}};
    for (int64_t i = 0; i < left_out; ++i)
      request.left_out.push_back({left_tree[i], left_dst[i], left_relation[i], left_src[i]});
    static_cast<gw::segment_sampler_base*>(sampler)->begin(request, rows, edges, totals);
  });
}

// Writes the batch that gw_segment_begin has drawn: nodes, their trees (null: not wanted), the drawn edges of all rows,
// the blocks whose arrays are not null, and the runs of all rows' drawn edges, as gw_relation_runs does (null: not
// wanted).
GW_API int gw_segment_finish(void* sampler, int64_t* n_id, int64_t* tree, int64_t* indptr, int32_t* indices,
                             uint32_t* offsets, int64_t* const* block_indptr, int32_t* const* block_indices,
                             uint32_t* const* block_offsets, int64_t* run_begin, void* runs) {
  return gw::guarded([&] {
    gw::require(sampler != nullptr, "gw_segment_finish: no sampler");
    static_cast<gw::segment_sampler_base*>(sampler)->finish({n_id, tree, indptr, indices, offsets, block_indptr,
                                                             block_indices, block_offsets, run_begin,
                                                             static_cast<gw::relation_run*>(runs)});
  });
}
}
