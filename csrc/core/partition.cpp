// Partitions of a graph's nodes: entry points over partition.h. The caller has checked labels and parts.
#include "graphweft/partition.h"

#include "graphweft/abi.h"

namespace {

template <class Body>
int over_square(const gw_adjacency* a, int64_t k, const void* part, Body&& body) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr && a->num_rows == a->num_cols, "partition: not square");
    gw::require(k > 0 && k < int64_t{1} << 30 && (part != nullptr || a->num_rows == 0), "partition: no parts");
    a->wide ? body(gw::csr_view<int64_t>(*a)) : body(gw::csr_view<int32_t>(*a));
  });
}

}  // namespace

extern "C" {

// One pass of algorithm 2. part [n] in and out, -1: none yet; labels [n] or null; steps [3]: entries, tree nodes,
// scores.
GW_API int gw_partition_stream(const gw_adjacency* a, int64_t k, int64_t num_labels, const int32_t* labels,
                               double scale, int32_t exhaustive, int32_t* part, int64_t* steps) {
  return over_square(a, k, part, [&](const auto& graph) {
    gw::require(num_labels > 0, "gw_partition_stream: no labels");
    const gw::stream_steps done = gw::stream_partition(graph, k, num_labels, labels, scale, exhaustive != 0, part);
    steps[0] = done.entries;
    steps[1] = done.tree_nodes;
    steps[2] = done.scores;
  });
}

// cut [1]: entries between parts; halo [k]: nodes outside a part with an edge into it.
GW_API int gw_partition_measure(const gw_adjacency* a, int64_t k, const int32_t* part, int64_t* cut, int64_t* halo) {
  return over_square(a, k, part, [&](const auto& graph) { *cut = gw::measure_partition(graph, k, part, halo); });
}
}
