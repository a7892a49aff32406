// Entry points of the grouping of typed edges and of typed parts: checks, then typed_group.h and typed_part.h. Ids are
// int64 where `wide`, else int32; the caller has checked that they fit, and that offsets ascend from 0 to the number of
// edges.
#include "graphweft/typed_group.h"

#include "graphweft/typed_part.h"

namespace {

template <class Body>
int with_ids(int32_t wide, int64_t types, const int64_t* offsets, Body&& body) {
  return gw::guarded([&] {
    gw::require(types >= 0 && offsets != nullptr, "typed_group: expected offsets of relations, got null");
    const gw::edge_stretches stretches{types, offsets};
    wide ? body(stretches, int64_t{}) : body(stretches, int32_t{});
  });
}

void require_edges(const gw_adjacency* adj, const gw::edge_stretches& types) {
  gw::require(adj && adj->indptr && adj->num_rows == adj->num_cols, "typed_group: expected a square adjacency");
  gw::require(adj->num_edges == types.edges(), "typed_group: expected offsets of all edges");
}

}  // namespace

extern "C" {

// rows[e], cols[e] of every edge of `adj`, and the edges grouped: see group_edges. `turned`: rows are sources.
GW_API int gw_typed_group(const gw_adjacency* adj, int32_t turned, int64_t types, const int64_t* offsets, int32_t wide,
                          void* src, void* dst, uint8_t* on_dst, int64_t* pairs, void* other, void* edge) {
  return with_ids(wide, types, offsets, [&](const gw::edge_stretches& stretches, auto id) {
    using I = decltype(id);
    require_edges(adj, stretches);
    auto *from = static_cast<I*>(src), *to = static_cast<I*>(dst);
    gw::edge_ends(*adj, turned ? from : to, turned ? to : from);
    gw::group_edges(stretches, adj->num_rows, from, to, on_dst, pairs, static_cast<I*>(other), static_cast<I*>(edge));
  });
}

// Pairs and row sums after gw_typed_group, from its `src` and `dst`, which are used up. `sums`: for destinations, then
// sources, the arrays indptr [nodes + 1], pair and edge.
GW_API int gw_typed_list(int64_t nodes, int64_t types, const int64_t* offsets, int32_t wide, const uint8_t* on_dst,
                         const int64_t* first_pair, const void* edge, void* src, void* dst, void* node,
                         int64_t* entries, void* const* sums) {
  return with_ids(wide, types, offsets, [&](const gw::edge_stretches& stretches, auto id) {
    using I = decltype(id);
    auto *from = static_cast<I*>(src), *to = static_cast<I*>(dst), *ends = static_cast<I*>(node);
    gw::list_pairs(stretches, on_dst, first_pair, static_cast<const I*>(edge), from, to, ends, entries);
    gw::parallel_chunks(2, [&](int64_t side) {
      void* const* out = sums + 3 * side;
      gw::list_sums(stretches, on_dst, first_pair, ends, side ? from : to, side ? to : from, side == 0, nodes,
                    static_cast<int64_t*>(out[0]), static_cast<I*>(out[1]), static_cast<I*>(out[2]));
    });
  });
}

// out[e]: how many edges of e's relation have its destination; float32 (bytes 4) or float64 (8). `ends`: room for an
// id an edge.
GW_API int gw_typed_degrees(const gw_adjacency* adj, int32_t turned, int64_t types, const int64_t* offsets,
                            int32_t wide, int32_t bytes, void* ends, void* out) {
  return with_ids(wide, types, offsets, [&](const gw::edge_stretches& stretches, auto id) {
    using I = decltype(id);
    require_edges(adj, stretches);
    gw::require(bytes == 4 || bytes == 8, "typed_degrees: expected float32 or float64");
    auto* to = static_cast<I*>(ends);
    gw::edge_ends<I>(*adj, turned ? nullptr : to, turned ? to : nullptr);
    if (bytes == 4)
      gw::same_type_counts(stretches, adj->num_rows, to, static_cast<float*>(out));
    else
      gw::same_type_counts(stretches, adj->num_rows, to, static_cast<double*>(out));
  });
}

// ids[i] sorted by the stretch of `bounds` [types + 1] that they lie in, those of one type as they come: order[place]
// is the i, place[i] its inverse; counts [types].
GW_API int gw_typed_sort(int64_t count, const int64_t* ids, int64_t types, const int64_t* bounds, int64_t* order,
                         int64_t* place, int64_t* counts) {
  return gw::guarded([&] {
    gw::require(count >= 0 && types >= (count > 0) && bounds != nullptr && (place != nullptr || count == 0),
                "typed_sort: expected bounds of types and room for places, got null");
    gw::sort_by_type(count, ids, types, bounds, order, place, counts);
  });
}

// src[i], dst[i] (or both int64 where `wide`) = the places of the ends of edge order[i].
GW_API int gw_typed_ends(int64_t edges, const int64_t* order, const int64_t* place, const int64_t* from,
                         const int64_t* to, int32_t wide, void* src, void* dst) {
  return gw::guarded([&] {
    gw::require(edges >= 0, "typed_ends: expected edges");
    const auto run = [&](auto id) {
      using I = decltype(id);
      gw::place_ends(edges, order, place, from, to, static_cast<I*>(src), static_cast<I*>(dst));
    };
    wide ? run(int64_t{}) : run(int32_t{});
  });
}

// A block, whose edges are numbered as they lie, as rows of all its sources in the order of gw_typed_sort: indptr
// [num_src + 1], indices and edge ids, int64 where `wide`.
GW_API int gw_typed_rows(const gw_adjacency* block, int64_t num_src, const int64_t* order, const int64_t* place,
                         const int64_t* edge_order, const int64_t* edge_place, int32_t wide, int64_t* indptr,
                         void* indices, void* ids) {
  return gw::guarded([&] {
    gw::require(block && block->indptr && !block->edge_ids && block->num_rows <= num_src,
                "typed_rows: expected a block with its edges as they lie");
    const auto run = [&](auto id) {
      using I = decltype(id);
      gw::rows_by_type(*block, num_src, order, place, edge_order, edge_place, indptr, static_cast<I*>(indices),
                       static_cast<I*>(ids));
    };
    wide ? run(int64_t{}) : run(int32_t{});
  });
}

// The same for a block whose rows are runs of one relation each (run_begin, runs: see gw_relation_runs), of which it
// keeps limits[relation] edges at most (null, or negative: all). Also writes counts [relations].
GW_API int gw_typed_run_rows(const gw_adjacency* block, const int64_t* run_begin, const void* runs,
                             const int64_t* limits, int64_t num_src, int64_t relations, const int64_t* order,
                             const int64_t* place, int32_t wide, int64_t* counts, int64_t* indptr, void* indices,
                             void* ids) {
  return gw::guarded([&] {
    gw::require(block && block->indptr && !block->edge_ids && block->num_rows <= num_src && relations > 0,
                "typed_run_rows: expected a block with its edges as they lie");
    const gw::block_runs cut{run_begin, static_cast<const gw::relation_run*>(runs), limits};
    const auto run = [&](auto id) {
      using I = decltype(id);
      const auto fill = [&](const auto* columns) {
        gw::rows_by_runs(*block, columns, cut, num_src, relations, order, place, counts, indptr,
                         static_cast<I*>(indices), static_cast<I*>(ids));
      };
      block->wide ? fill(static_cast<const int64_t*>(block->indices))
                  : fill(static_cast<const int32_t*>(block->indices));
    };
    wide ? run(int64_t{}) : run(int32_t{});
  });
}
}
