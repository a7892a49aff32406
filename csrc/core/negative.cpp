// Negative sampling: entry points over negative.h.
#include "graphweft/negative.h"

#include "graphweft/abi.h"
#include "graphweft/pick.h"

namespace gw {
namespace {

void check_ids(const char* name, int64_t count, const int64_t* ids, int64_t bound) {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= bound)
      throw error(out_of_range, std::string("expected ") + name + " ids in [0, " + std::to_string(bound) + "), got " +
                                    std::to_string(ids[i]) + " at position " + std::to_string(i));
}

template <class Body>
int with_non_edges(const gw_adjacency* a, const int64_t* ranges, int32_t loops, Body&& body) {
  return guarded([&] {
    require(a != nullptr && a->indptr != nullptr, "negative sampling: no structure");
    const pair_ranges limits{ranges[0], ranges[1], ranges[2], ranges[3], loops != 0};
    require(0 <= limits.src_begin && limits.src_begin <= limits.src_end && limits.src_end <= a->num_cols &&
                0 <= limits.dst_begin && limits.dst_begin <= limits.dst_end && limits.dst_end <= a->num_rows,
            "negative sampling: a range of nodes is none");
    if (a->wide)
      body(non_edges<int64_t>(csr_view<int64_t>(*a), limits));
    else
      body(non_edges<int32_t>(csr_view<int32_t>(*a), limits));
  });
}

}  // namespace
}  // namespace gw

extern "C" {

// `per` pairs (src, dst) without an edge for each of `count` keys, uniform over all of them. Columns of `a` ascend in
// every row; ranges: first and last source, first and last destination; loops: a node and itself are a pair too.
GW_API int gw_negative_pairs(const gw_adjacency* a, const int64_t* ranges, int32_t loops, int64_t count,
                             const int64_t* keys, int64_t per, uint64_t seed, uint64_t epoch, uint64_t stage,
                             int64_t* src, int64_t* dst) {
  return gw::with_non_edges(a, ranges, loops, [&](auto&& space) {
    gw::require(count >= 0 && per > 0, "gw_negative_pairs: negative size");
    space.pairs(count, keys, per, gw::sample_seed(seed, epoch, stage), src, dst);
  });
}

// For each of `count` sources `per` destinations without an edge from it, dst [count, per].
GW_API int gw_negative_tails(const gw_adjacency* a, const int64_t* ranges, int32_t loops, int64_t count,
                             const int64_t* keys, int64_t per, uint64_t seed, uint64_t epoch, uint64_t stage,
                             const int64_t* src, int64_t* dst) {
  return gw::with_non_edges(a, ranges, loops, [&](auto&& space) {
    gw::require(count >= 0 && per > 0, "gw_negative_tails: negative size");
    gw::check_ids("source", count, src, a->num_cols);
    space.tails(count, keys, per, gw::sample_seed(seed, epoch, stage), src, dst);
  });
}

// found [count]: 1 where src[i] -> dst[i] is an edge.
GW_API int gw_has_edges(const gw_adjacency* a, int64_t count, const int64_t* src, const int64_t* dst, uint8_t* found) {
  const int64_t ranges[4] = {0, 0, 0, 0};
  return gw::with_non_edges(a, ranges, 1, [&](auto&& space) {
    gw::require(count >= 0, "gw_has_edges: negative size");
    gw::check_ids("source", count, src, a->num_cols);
    gw::check_ids("destination", count, dst, a->num_rows);
    gw::parallel_ranges(count, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) found[i] = space.is_edge(src[i], dst[i]);
    });
  });
}

// mask [num_src, num_dst]: 1 where src[i] and dst[j] have no edge (and, without loops, differ).
GW_API int gw_negative_mask(const gw_adjacency* a, const int64_t* ranges, int32_t loops, int64_t num_src,
                            const int64_t* src, int64_t num_dst, const int64_t* dst, uint8_t* mask) {
  return gw::with_non_edges(a, ranges, loops, [&](auto&& space) {
    gw::require(num_src >= 0 && num_dst >= 0, "gw_negative_mask: negative size");
    gw::check_ids("source", num_src, src, a->num_cols);
    gw::check_ids("destination", num_dst, dst, a->num_rows);
    space.mask(num_src, src, num_dst, dst, mask);
  });
}
}
