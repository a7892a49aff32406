// Edges by stretches of columns, made once for all sums and maxima over them.
#include "graph.h"
#include "kernels.h"

extern "C" {
GW_API int gw_stretches_sizes(const gw_adjacency* adj, int64_t width, int64_t count, int64_t* columns, int64_t* pieces,
                              int64_t* rows);
GW_API int gw_stretches_fill(const gw_adjacency* adj, int64_t width, int64_t count, int64_t columns, int64_t* rows,
                             int64_t* entries, uint16_t* lengths, int32_t* behind, uint16_t* inside, int32_t* made);
}

namespace program {

namespace {

// Where stretches can be made, edges are read by them alone.
gw_adjacency by_stretches(const Compressed& form) {
  gw_adjacency native = form.native();
  if (native.stretches)
    native.indices = native.edge_ids = nullptr;
  else
    form.is_read = true;
  return native;
}

void cut_into_stretches(const Compressed& form, int64_t count) {
  if (form.stretches) return;
  constexpr int64_t width = 1;  // of products that are cut alike; those of many edges are for every width
  const gw_adjacency edges = form.native();
  auto made = std::make_shared<Stretches>();
  int64_t columns = 0, pieces = 0, rows = 0;
  check(gw_stretches_sizes(&edges, width, count, &columns, &pieces, &rows));
  made->rows.resize(size_t(pieces) + 1);
  made->entries.resize(size_t(count * pieces));
  made->lengths.resize(size_t(count * rows));
  made->behind.resize(size_t(rows));
  made->inside.resize(size_t(edges.num_edges));
  int32_t fits = 0;
  check(gw_stretches_fill(&edges, width, count, columns, made->rows.data(), made->entries.data(), made->lengths.data(),
                          made->behind.data(), made->inside.data(), &fits));
  if (!fits) return;
  made->native = {edges.indptr,
                  count,
                  columns,
                  pieces,
                  made->rows.data(),
                  made->entries.data(),
                  made->lengths.data(),
                  made->behind.data(),
                  made->inside.data()};
  form.stretches = std::move(made);
}

}  // namespace

gw_adjacency Graph::in_edges_by_stretches(int64_t count) const {
  const Form form = summed();
  cut_into_stretches(*form, count);
  gw_adjacency native = by_stretches(*form);
  native.edge_ids = nullptr;
  return native;
}

gw_adjacency Graph::in_edges_in_order_by_stretches(int64_t count) const {
  const Form form = full(side_);
  cut_into_stretches(*form, count);
  return by_stretches(*form);
}

}  // namespace program
