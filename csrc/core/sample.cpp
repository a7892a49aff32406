// Sampling of neighbourhoods: entry points over sample.h.
#include "graphweft/sample.h"

#include "graphweft/abi.h"
#include "graphweft/id_type.h"
#include "graphweft/sample_steps.h"

namespace gw {
namespace {

template <class I>
std::unique_ptr<sampler> make_sampler(const gw_adjacency& adjacency, const float* weights, bool dense) {
  const csr_view<I> graph(adjacency);
  parallel_ranges(graph.num_rows, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      require(graph.indptr[row + 1] - graph.indptr[row] < int64_t(UINT32_MAX), "sampler: a row has 2^32 entries");
  });
  // ids of 64 bits are rare, and numbers are the same either way: one form is compiled for them
  if constexpr (sizeof(I) == 4)
    if (dense) return std::make_unique<stepped_sampler<I, dense_renumbering<I>>>(graph, weights);
  return std::make_unique<stepped_sampler<I, hashed_renumbering<I>>>(graph, weights);
}

// The sampled edges of rows [first, first + count) of a batch, row r listing indptr[r] .. indptr[r + 1], as ends in
// batch numbering and ids of the graph's edges; null outputs are not wanted.
template <class I>
void list_edges(const csr_view<I>& graph, const int64_t* nodes, int64_t first, int64_t count, const int64_t* indptr,
                const int32_t* indices, const uint32_t* offsets, int64_t* src, int64_t* dst, int64_t* ids) {
  const int64_t base = indptr[first];
  parallel_ranges(count, 2048, [&](int64_t begin, int64_t end) {
    for (int64_t row = first + begin; row < first + end; ++row) {
      if (ids != nullptr) {
        if (row + 16 < first + end) __builtin_prefetch(graph.indptr + nodes[row + 16]);
        const int64_t at = graph.indptr[nodes[row]];
        for (int64_t p = indptr[row]; p < indptr[row + 1]; ++p) ids[p - base] = graph.id(at + int64_t(offsets[p]));
      }
      if (src != nullptr)
        for (int64_t p = indptr[row]; p < indptr[row + 1]; ++p) src[p - base] = indices[p];
      if (dst != nullptr) std::fill(dst + (indptr[row] - base), dst + (indptr[row + 1] - base), row);
    }
  });
}

// A sampler as its steps.
sampler_steps& steps_of(void* handle) {
  auto* const steps = dynamic_cast<sampler_steps*>(static_cast<sampler*>(handle));
  require(steps != nullptr, "gw_steps: not a sampler of neighbours");
  return *steps;
}

std::vector<int64_t> checked_widths(const int64_t* fanouts, int64_t hops, int32_t replace) {
  std::vector<int64_t> widths(fanouts, fanouts + hops);
  for (const int64_t width : widths)
    require(width > 0 || (width < 0 && !replace), "fan-outs: one is 0, or all with replacement");
  return widths;
}

void tell(const hop_sizes& sizes, int64_t* out) {
  out[0] = sizes.nodes;
  out[1] = sizes.block_edges;
  out[2] = sizes.inner_edges;
}

}  // namespace
}  // namespace gw

extern "C" {

// A sampler of in-edges over a square structure; `weights` [num_edges] by position, or null. Both must outlive it.
// dense: numbers in an array over all nodes, else in a hash table as large as a batch.
GW_API int gw_sampler_new(const gw_adjacency* a, const float* weights, int32_t dense, void** out) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr && a->num_rows == a->num_cols, "gw_sampler_new: not square");
    gw::with_id_type(a->wide != 0,
                     [&](auto id) { *out = gw::make_sampler<decltype(id)>(*a, weights, dense != 0).release(); });
  });
}

GW_API int gw_sampler_free(void* sampler) {
  return gw::guarded([&] { delete static_cast<gw::sampler*>(sampler); });
}

// Draws of node v are keyed by names[v], as many as nodes: ids in the graph that this one is a part of. They must
// outlive the sampler.
GW_API int gw_sampler_name(void* sampler, const int64_t* names) {
  return gw::guarded([&] {
    gw::require(sampler != nullptr, "gw_sampler_name: no sampler");
    static_cast<gw::sampler*>(sampler)->name(names);
  });
}

// The next batch of `sampler` has no edge src[i] -> dst[i], i < count, whose destination is one of its seeds.
GW_API int gw_sampler_exclude(void* sampler, int64_t count, const int64_t* src, const int64_t* dst) {
  return gw::guarded([&] {
    gw::require(sampler != nullptr && count >= 0, "gw_sampler_exclude: negative size");
    static_cast<gw::sampler*>(sampler)->exclude(count, src, dst);
  });
}

// The next batch of `sampler` is a part of a larger one, which reaches nodes ids[ends[h - 1]] up to ids[ends[h]] in hop
// h < hops for the first time; its nodes draw as there. All but the last two hops of the larger one are wanted.
GW_API int gw_sampler_reach(void* sampler, int64_t hops, const int64_t* ends, const int64_t* ids) {
  return gw::guarded([&] {
    gw::require(sampler != nullptr && hops >= 0, "gw_sampler_reach: negative size");
    static_cast<gw::sampler*>(sampler)->reach(hops, ends, ids);
  });
}

// Draws all hops but the last. fanouts [hops]: most in-edges a node draws in each hop, negative: all. Out: rows [hops]
// and block_edges [hops], the sizes of every hop's block; totals: edges of the inner rows, and a bound on the nodes.
GW_API int gw_sample_begin(void* sampler, int64_t count, const int64_t* seeds, int64_t hops, const int64_t* fanouts,
                           int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t* rows,
                           int64_t* block_edges, int64_t* totals) {
  return gw::guarded([&] {
    gw::require(sampler != nullptr && count >= 0 && hops > 0, "gw_sample_begin: negative size");
    const auto widths = gw::checked_widths(fanouts, hops, replace);
    const gw::batch_sizes sizes = static_cast<gw::sampler*>(sampler)->begin(seeds, count, widths, replace != 0,
                                                                            gw::sample_seed(seed, epoch, stage));
    std::copy(sizes.rows.begin(), sizes.rows.end(), rows);
    std::copy(sizes.block_edges.begin(), sizes.block_edges.end(), block_edges);
    totals[0] = sizes.inner_edges;
    totals[1] = sizes.most_nodes;
  });
}

// Draws the last hop and writes the batch that gw_sample_begin has sized. n_id has room for the bound on the nodes; a
// block whose array of offsets is null is left out, but for the last. With `open`, room for the last block's columns in
// the graph's index type, that block names nodes of the whole graph, and its sources get no numbers.
GW_API int gw_sample_finish(void* sampler, int64_t* n_id, int64_t* inner_indptr, int32_t* inner_indices,
                            uint32_t* inner_offsets, int64_t* const* block_indptr, int32_t* const* block_indices,
                            uint32_t* const* block_offsets, void* open, int64_t* num_nodes) {
  return gw::guarded([&] {
    *num_nodes = static_cast<gw::sampler*>(sampler)->finish(
        {n_id, inner_indptr, inner_indices, inner_offsets, block_indptr, block_indices, block_offsets, open});
  });
}

// When the hops of the sampler's last batch began and ended, times [hops, 2] in ns of the steady clock.
GW_API int gw_sample_times(void* sampler, int64_t hops, int64_t* times) {
  return gw::guarded([&] {
    const auto& taken = static_cast<gw::sampler*>(sampler)->times();
    gw::require(int64_t(taken.size()) == hops, "gw_sample_times: another number of hops");
    for (const gw::hop_times& time : taken) {
      *times++ = time.begun;
      *times++ = time.ended;
    }
  });
}

// A batch in steps, see sample_steps.h. sizes [3]: nodes so far, edges of the next hop's block, edges drawn before it.
// Rows are drawn in `parts` parts.
GW_API int gw_steps_first(void* sampler, int64_t count, const int64_t* seeds, int64_t hops, const int64_t* fanouts,
                          int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t parts,
                          int64_t* sizes) {
  return gw::guarded([&] {
    gw::require(sampler != nullptr && count >= 0 && hops > 0 && parts > 0, "gw_steps_first: negative size");
    const auto widths = gw::checked_widths(fanouts, hops, replace);
    const uint64_t key = gw::sample_seed(seed, epoch, stage);
    gw::tell(gw::steps_of(sampler).first(seeds, count, widths, replace != 0, key, parts), sizes);
  });
}

// Before a hop is drawn. For the last hop the arrays of its block, of which `open` replaces all but the offsets of
// rows.
GW_API int gw_steps_place(void* sampler, int64_t hop, int64_t* indptr, int32_t* indices, uint32_t* offsets,
                          void* open) {
  return gw::guarded([&] { gw::steps_of(sampler).place(hop, {indptr, indices, offsets, open}); });
}

GW_API int gw_steps_draw(void* sampler, int64_t hop, int64_t part) {
  return gw::guarded([&] { gw::steps_of(sampler).draw(hop, part); });
}

GW_API int gw_steps_number(void* sampler, int64_t hop, int64_t* sizes) {
  return gw::guarded([&] { gw::tell(gw::steps_of(sampler).number(hop), sizes); });
}

// Ids of the nodes [begin, end) of the batch.
GW_API int gw_steps_ids(void* sampler, int64_t begin, int64_t end, int64_t* out) {
  return gw::guarded([&] { gw::steps_of(sampler).ids(begin, end, out); });
}

// The block of a hop that is numbered, where the arrays are not null.
GW_API int gw_steps_settle(void* sampler, int64_t hop, int64_t* indptr, int32_t* indices, uint32_t* offsets) {
  return gw::guarded([&] { gw::steps_of(sampler).settle(hop, {indptr, indices, offsets, nullptr}); });
}

// The drawn edges of all hops but the last.
GW_API int gw_steps_inner(void* sampler, int64_t* indptr, int32_t* indices, uint32_t* offsets) {
  return gw::guarded([&] { gw::steps_of(sampler).inner({indptr, indices, offsets, nullptr}); });
}

// The edges of rows [first, first + count) of a batch whose row r is node nodes[r]: src and dst in batch numbering, ids
// as the graph has them; null where not wanted.
GW_API int gw_sample_edges(const gw_adjacency* a, const int64_t* nodes, int64_t first, int64_t count,
                           const int64_t* indptr, const int32_t* indices, const uint32_t* offsets, int64_t* src,
                           int64_t* dst, int64_t* ids) {
  return gw::guarded([&] {
    gw::require(a != nullptr && first >= 0 && count >= 0, "gw_sample_edges: negative size");
    gw::with_id_type(a->wide != 0, [&](auto id) {
      gw::list_edges(gw::csr_view<decltype(id)>(*a), nodes, first, count, indptr, indices, offsets, src, dst, ids);
    });
  });
}
}
