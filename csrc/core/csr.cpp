// Compression of edge lists and transposition: entry points over csr.h.
#include "graphweft/csr.h"

#include <string>

#include "graphweft/abi.h"
#include "graphweft/id_type.h"

namespace gw {
namespace {

void require_adjacency(const gw_adjacency* a) {
  require(a != nullptr && a->num_rows >= 0 && a->num_cols >= 0 && a->num_edges >= 0, "adjacency: negative size");
  require(a->indptr != nullptr && (a->num_edges == 0 || a->indices != nullptr), "adjacency: null array");
}

template <class K, class I>
void compress_coo(int64_t num_edges, const K* rows, const K* cols, int64_t num_rows, int64_t* indptr, I* indices,
                  I* edge_ids, bool ascending) {
  const coo_entries<K> entries{rows, cols};
  if (!edge_ids && !ascending)
    return compress(entries, num_edges, num_rows, no_payload{}, indptr, indices, static_cast<uint8_t*>(nullptr));
  if (edge_ids) return compress(entries, num_edges, num_rows, position_payload<I>{}, indptr, indices, edge_ids);
  offsets_of_sorted(rows, num_edges, num_rows, indptr);
  if (static_cast<const void*>(indices) == static_cast<const void*>(cols)) return;
  parallel_ranges(num_edges, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) indices[p] = I(cols[p]);
  });
}

template <class K>
void compress_checked(int64_t num_edges, const void* rows_, const void* cols_, int64_t num_rows, int64_t num_cols,
                      int32_t wide_out, int64_t* indptr, void* indices, void* edge_ids) {
  const auto* rows = static_cast<const K*>(rows_);
  const auto* cols = static_cast<const K*>(cols_);
  const id_summary all = summarize_ids(rows, num_edges);
  if (all.low < 0 || all.high >= num_rows) require_ids("expected rows", rows, num_edges, num_rows);
  require_ids("expected columns", cols, num_edges, num_cols);
  with_id_type(wide_out != 0, [&](auto id) {
    using I = decltype(id);
    compress_coo(num_edges, rows, cols, num_rows, indptr, static_cast<I*>(indices), static_cast<I*>(edge_ids),
                 all.ascending);
  });
}

template <class I, class Payload>
void transpose(const csr_view<I>& a, const Payload& payload_of, int64_t* indptr, void* indices, void* payload) {
  const turned_entries<I> entries{a.indptr, a.num_rows, a.indices};
  compress(entries, a.num_edges, a.num_cols, payload_of, indptr, static_cast<I*>(indices),
           static_cast<typename Payload::type*>(payload));
}

template <class I>
void transpose(const gw_adjacency& adjacency, int32_t payload_bytes, const void* payload_in, int64_t* indptr,
               void* indices, void* payload) {
  const csr_view<I> a(adjacency);
  if (payload == nullptr) return transpose(a, no_payload{}, indptr, indices, payload);
  if (payload_in == nullptr) {
    if (a.edge_ids == nullptr) return transpose(a, position_payload<I>{}, indptr, indices, payload);
    return transpose(a, array_payload<I>{a.edge_ids}, indptr, indices, payload);
  }
  if (payload_bytes == 4)
    return transpose(a, array_payload<uint32_t>{static_cast<const uint32_t*>(payload_in)}, indptr, indices, payload);
  require(payload_bytes == 8, "gw_csr_transpose: payload is neither 4 nor 8 bytes wide");
  transpose(a, array_payload<uint64_t>{static_cast<const uint64_t*>(payload_in)}, indptr, indices, payload);
}

// Offsets ascend from 0 to num_edges, columns lie in range, edge ids are a
// permutation.
template <class I>
void check(const gw_adjacency& adjacency) {
  const csr_view<I> a(adjacency);
  const auto at = [](int64_t value, int64_t position) {
    return std::to_string(value) + " at position " + std::to_string(position);
  };
  if (a.indptr[0] != 0) throw error(bad_argument, "expected indptr to start at 0, got " + at(a.indptr[0], 0));
  for (int64_t row = 0; row < a.num_rows; ++row)
    if (a.indptr[row + 1] < a.indptr[row])
      throw error(bad_argument, "expected indptr to ascend, got " + at(a.indptr[row + 1], row + 1) + " after " +
                                    std::to_string(a.indptr[row]));
  if (a.indptr[a.num_rows] != a.num_edges)
    throw error(bad_argument, "expected indptr to end at the number of indices, " + std::to_string(a.num_edges) +
                                  ", got " + at(a.indptr[a.num_rows], a.num_rows));
  require_ids("expected indices", a.indices, a.num_edges, a.num_cols);
  if (a.edge_ids == nullptr) return;
  require_ids("expected edge_ids", a.edge_ids, a.num_edges, a.num_edges);
  std::vector<bool> seen(size_t(a.num_edges), false);
  for (int64_t p = 0; p < a.num_edges; ++p) {
    if (seen[size_t(a.edge_ids[p])])
      throw error(bad_argument, "expected edge_ids without repetition, got " + at(a.edge_ids[p], p) + " again");
    seen[size_t(a.edge_ids[p])] = true;
  }
}

}  // namespace
}  // namespace gw

extern "C" {

// Smallest and largest id and whether they ascend (1); n > 0.
GW_API int gw_ids_summary(int32_t wide, int64_t n, const void* ids, int64_t* low, int64_t* high, int32_t* ascending) {
  return gw::guarded([&] {
    gw::require(n > 0 && ids != nullptr, "gw_ids_summary: no ids");
    const gw::id_summary all = gw::with_id_type(
        wide != 0, [&](auto id) { return gw::summarize_ids(static_cast<const decltype(id)*>(ids), n); });
    *low = all.low;
    *high = all.high;
    *ascending = all.ascending;
  });
}

// Fails with code out_of_range and "<what> in [0, bound), got <id> at position
// <p>" for the first id out of range.
GW_API int gw_ids_require(int32_t wide, int64_t n, const void* ids, int64_t bound, const char* what) {
  return gw::guarded([&] {
    gw::with_id_type(wide != 0,
                     [&](auto id) { gw::require_ids(what, static_cast<const decltype(id)*>(ids), n, bound); });
  });
}

// Compresses edges (rows[e], cols[e]) by row. edge_ids may be null: if rows
// ascend they are the positions, else nobody asks. Ids are checked. `indices` may be `cols` where rows ascend and ids
// are as wide.
GW_API int gw_coo_to_csr(int32_t wide_in, int64_t num_edges, const void* rows, const void* cols, int64_t num_rows,
                         int64_t num_cols, int32_t wide_out, int64_t* indptr, void* indices, void* edge_ids) {
  return gw::guarded([&] {
    gw::require(num_edges >= 0 && num_rows >= 0 && num_cols >= 0 && indptr, "gw_coo_to_csr: negative size");
    gw::require(wide_out || (num_cols <= INT32_MAX && (!edge_ids || num_edges <= INT32_MAX)),
                "gw_coo_to_csr: ids do not fit 32 bits");
    if (num_edges == 0) return std::fill(indptr, indptr + num_rows + 1, int64_t{0});
    gw::with_id_type(wide_in != 0, [&](auto id) {
      gw::compress_checked<decltype(id)>(num_edges, rows, cols, num_rows, num_cols, wide_out, indptr, indices,
                                         edge_ids);
    });
  });
}

// The transposed structure; indices as wide as those of `a`. What goes to
// `payload` (null: nothing) is payload_in[p], of 4 or 8 bytes, or for a null
// payload_in the edge id.
GW_API int gw_csr_transpose(const gw_adjacency* a, int32_t payload_bytes, const void* payload_in, int64_t* indptr,
                            void* indices, void* payload) {
  return gw::guarded([&] {
    gw::require_adjacency(a);
    gw::require(a->wide || (a->num_rows <= INT32_MAX && (payload_in || !payload || a->num_edges <= INT32_MAX)),
                "gw_csr_transpose: ids do not fit 32 bits");
    if (a->num_edges == 0) return std::fill(indptr, indptr + a->num_cols + 1, int64_t{0});
    gw::with_id_type(a->wide != 0, [&](auto id) {
      gw::transpose<decltype(id)>(*a, payload_bytes, payload_in, indptr, indices, payload);
    });
  });
}

// Fails with one line that names what is wrong in a structure that came from
// outside.
GW_API int gw_csr_check(const gw_adjacency* a) {
  return gw::guarded([&] {
    gw::require_adjacency(a);
    gw::with_id_type(a->wide != 0, [&](auto id) { gw::check<decltype(id)>(*a); });
  });
}
}
