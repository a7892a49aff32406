// Multilevel partitioning: entry points over multilevel.h. The caller has checked labels, weights and parts.
#include "graphweft/multilevel.h"

#include "graphweft/abi.h"

namespace {

template <class Body>
int over_rows(const gw_adjacency* a, int64_t first, const int32_t* edge_weight, const int32_t* node_weight,
              const int32_t* labels, Body&& body) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr && first >= 0 && first + a->num_rows <= a->num_cols,
                "multilevel: rows out of range");
    gw::require(a->num_cols < int64_t{1} << 31, "multilevel: too many nodes");
    if (a->wide) {
      body(gw::weighted_rows<int64_t>{gw::csr_view<int64_t>(*a), first, edge_weight, node_weight, labels});
    } else {
      body(gw::weighted_rows<int32_t>{gw::csr_view<int32_t>(*a), first, edge_weight, node_weight, labels});
    }
  });
}

}  // namespace

extern "C" {

// Nodes of some rows join clusters. most [labels]; cluster and heavy [nodes] in and out; moved [1].
GW_API int gw_multilevel_cluster(const gw_adjacency* a, int64_t first, const int32_t* edge_weight,
                                 const int32_t* node_weight, const int32_t* labels, const int64_t* most,
                                 int32_t* cluster, int64_t* heavy, int64_t* moved) {
  return over_rows(a, first, edge_weight, node_weight, labels,
                   [&](const auto& rows) { *moved = gw::join_clusters(rows, most, cluster, heavy); });
}

// Edges between clusters of some rows, of which a share is kept: indptr [clusters + 1] out where indices is null; else
// in, and indices and weights [indptr[clusters]] out.
GW_API int gw_multilevel_contract(const gw_adjacency* a, int64_t first, const int32_t* edge_weight,
                                  const int32_t* cluster, int64_t clusters, double kept, int64_t* indptr,
                                  int32_t* indices, int32_t* weights) {
  return over_rows(a, first, edge_weight, nullptr, nullptr, [&](const auto& rows) {
    gw::contract_rows(rows, cluster, clusters, kept, indptr, indices, weights);
  });
}

// Two graphs between the same clusters as one, of whose pairs a share is kept: the arrays of both, and indptr
// [clusters + 1] out where indices is null; else in, and indices and weights [indptr[clusters]] out.
GW_API int gw_multilevel_merge(const int64_t* a_indptr, const int32_t* a_indices, const int32_t* a_weights,
                               const int64_t* b_indptr, const int32_t* b_indices, const int32_t* b_weights,
                               int64_t clusters, double kept, int64_t* indptr, int32_t* indices, int32_t* weights) {
  return gw::guarded([&] {
    gw::require(clusters > 0 && clusters < int64_t{1} << 31, "gw_multilevel_merge: expected clusters");
    gw::merge_rows({a_indptr, a_indices, a_weights}, {b_indptr, b_indices, b_weights}, clusters, kept, indptr, indices,
                   weights);
  });
}

// Nodes of some rows move between k parts. order [rows] or null; target and counted [labels]; limits [5]: mean weight
// of a part, most weight, most spread, pull of labels, pull of weights; part [nodes], counts [labels + 1, k] and spread
// [k] in and out; moved [1].
GW_API int gw_multilevel_place(const gw_adjacency* a, int64_t first, const int32_t* edge_weight,
                               const int32_t* node_weight, const int32_t* labels, const int64_t* order, int64_t k,
                               int64_t num_labels, const double* target, const int32_t* counted, const double* limits,
                               int32_t* part, int64_t* counts, double* spread, int64_t* moved) {
  return over_rows(a, first, edge_weight, node_weight, labels, [&](const auto& rows) {
    gw::require(k > 0 && num_labels > 0, "gw_multilevel_place: no parts or labels");
    const gw::part_limits kept{k, num_labels, target, counted, limits[0], limits[1], limits[2], limits[3], limits[4]};
    *moved = gw::place_rows(rows, kept, gw::part_state{part, counts, spread}, order);
  });
}
}
