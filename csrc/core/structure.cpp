// Questions about compressed structures and edits of them: entry points over
// structure.h. The caller has checked its ids.
#include "graphweft/structure.h"

#include <type_traits>

#include "graphweft/abi.h"
#include "graphweft/id_type.h"

namespace {

template <class Body>
int with_view(const gw_adjacency* a, Body&& body) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr, "adjacency: null array");
    gw::with_id_type(a->wide != 0, [&](auto id) { body(gw::csr_view<decltype(id)>(*a)); });
  });
}

template <class I>
I* as(void* pointer, const gw::csr_view<I>&) {
  return static_cast<I*>(pointer);
}

}  // namespace

extern "C" {

GW_API int gw_csr_has_loops(const gw_adjacency* a, int32_t* out) {
  return with_view(a, [&](const auto& view) { *out = gw::has_loops(view); });
}

GW_API int gw_csr_is_symmetric(const gw_adjacency* a, int32_t* out) {
  return with_view(a, [&](const auto& view) { *out = gw::is_symmetric(view); });
}

// Columns ascend inside every row (strictly: no column twice).
GW_API int gw_csr_columns_ascend(const gw_adjacency* a, int32_t strict, int32_t* out) {
  return with_view(
      a, [&](const auto& view) { *out = gw::rows_ascend(view.indptr, view.num_rows, view.indices, strict != 0); });
}

// Edge ids ascend inside every row.
GW_API int gw_csr_ids_ascend(const gw_adjacency* a, int32_t* out) {
  return with_view(a, [&](const auto& view) {
    *out = !view.edge_ids || gw::rows_ascend(view.indptr, view.num_rows, view.edge_ids, false);
  });
}

// How often every column occurs.
GW_API int gw_csr_count_columns(const gw_adjacency* a, int64_t* counts) {
  return with_view(a, [&](const auto& view) { gw::count_ids(view.indices, view.num_edges, view.num_cols, counts); });
}

// Entries of every row, or with `inverse` 1 over them and 0 for a row without any.
GW_API int gw_csr_row_degrees(const gw_adjacency* a, int32_t inverse, float* out) {
  return with_view(a, [&](const auto& view) { gw::row_degrees(view.indptr, view.num_rows, inverse != 0, out); });
}

GW_API int gw_csr_to_coo(const gw_adjacency* a, int64_t* rows, int64_t* cols) {
  return with_view(a, [&](const auto& view) { gw::to_coo(view, rows, cols); });
}

// Rows `rows` of `a`; the payload (4 or 8 bytes; null payload_in: edge ids as
// wide as indices) goes along if wanted.
GW_API int gw_csr_take_rows(const gw_adjacency* a, int64_t n, const int64_t* rows, const int64_t* indptr,
                            int32_t payload_bytes, const void* payload_in, void* indices, void* payload) {
  return with_view(a, [&](const auto& view) {
    auto* out = as(indices, view);
    if (payload == nullptr || payload_in == nullptr)
      return gw::take_rows(view, rows, n, indptr, static_cast<decltype(out)>(nullptr), out,
                           static_cast<decltype(out)>(payload));
    if (payload_bytes == 4)
      return gw::take_rows(view, rows, n, indptr, static_cast<const uint32_t*>(payload_in), out,
                           static_cast<uint32_t*>(payload));
    gw::require(payload_bytes == 8, "gw_csr_take_rows: payload is neither 4 nor 8 bytes wide");
    gw::take_rows(view, rows, n, indptr, static_cast<const uint64_t*>(payload_in), out,
                  static_cast<uint64_t*>(payload));
  });
}

// Rows `rows` [n] of `a` with columns place[column], as wide as indices; edge_ids null: not wanted.
GW_API int gw_csr_renumber(const gw_adjacency* a, int64_t n, const int64_t* rows, const void* place,
                           const int64_t* indptr, void* indices, void* edge_ids) {
  return with_view(a, [&](const auto& view) {
    auto* out = as(indices, view);
    gw::renumber_rows(view, rows, n, static_cast<decltype(out)>(const_cast<void*>(place)), indptr, out,
                      as(edge_ids, view));
  });
}

// At most `most` entries of every row; indptr has their offsets.
GW_API int gw_csr_thin(const gw_adjacency* a, int64_t most, const int64_t* indptr, void* indices) {
  return with_view(a, [&](const auto& view) { gw::thin_rows(view, most, indptr, as(indices, view)); });
}

// member[id] = 0 for every self-loop.
GW_API int gw_csr_clear_loops(const gw_adjacency* a, uint8_t* member) {
  return with_view(a, [&](const auto& view) { gw::clear_loops(view, member); });
}

// The edges with member[id] != 0, renumbered. indices null: counts per row into
// indptr.
GW_API int gw_csr_filter(const gw_adjacency* a, const uint8_t* member, int64_t* indptr, void* indices, void* edge_ids) {
  return with_view(a, [&](const auto& view) {
    const gw::ranked_set keep(member, view.num_edges);
    gw::filter_edges(view, keep, indptr, as(indices, view), as(edge_ids, view));
  });
}

// Row by row the union with every column once; columns ascend in both. indices
// null: counts per row into indptr.
GW_API int gw_csr_unite(const gw_adjacency* a, const gw_adjacency* b, int64_t* indptr, void* indices) {
  return with_view(a, [&](const auto& view) {
    gw::require(a->wide == b->wide && a->num_rows == b->num_rows, "gw_csr_unite: structures differ in kind");
    gw::unite_rows(view, std::decay_t<decltype(view)>(*b), indptr, as(indices, view));
  });
}

// member[id] = 0 for as many edges of `a` as `b` has copies of them, the
// youngest first; columns ascend in both.
GW_API int gw_csr_clear_common(const gw_adjacency* a, const gw_adjacency* b, uint8_t* member) {
  return with_view(a, [&](const auto& view) {
    gw::require(a->wide == b->wide && a->num_rows == b->num_rows, "gw_csr_clear_common: structures differ in kind");
    gw::clear_common(view, std::decay_t<decltype(view)>(*b), member);
  });
}

// Row by row the entries of `a`, then those of `b`, whose ids follow those of `a` where edge_ids is not null; indptr
// holds offsets.
GW_API int gw_csr_concat(const gw_adjacency* a, const gw_adjacency* b, const int64_t* indptr, void* indices,
                         void* edge_ids) {
  return with_view(a, [&](const auto& view) {
    gw::require(a->wide == b->wide && a->num_rows == b->num_rows, "gw_csr_concat: structures differ in kind");
    gw::concat_rows(view, std::decay_t<decltype(view)>(*b), indptr, as(indices, view), as(edge_ids, view));
  });
}
}
