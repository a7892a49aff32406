// Entry points over side_by_side.h. The caller has checked its ids.
#include "graphweft/side_by_side.h"

#include "graphweft/abi.h"

extern "C" {

// Offsets of the ranges `ids` of two offset arrays, n + 1 numbers each.
GW_API int gw_parts_offsets(int64_t n, const int64_t* ids, const int64_t* ptr, const int64_t* edge_ptr,
                            int64_t* out_ptr, int64_t* out_edge_ptr) {
  return gw::guarded([&] {
    gw::part_offsets(ptr, ids, n, out_ptr);
    gw::part_offsets(edge_ptr, ids, n, out_edge_ptr);
  });
}

// Places in ranges that were laid one after the other; places or owners may be null.
GW_API int gw_parts_places(int64_t n, const int64_t* ids, const int64_t* ptr, const int64_t* out_ptr, int64_t* places,
                           int64_t* owners) {
  return gw::guarded([&] { gw::part_places(ptr, ids, n, out_ptr, places, owners); });
}

// Rows of `bytes` bytes of the ranges `ids` of a table, one range after the other.
GW_API int gw_parts_rows(int64_t n, const int64_t* ids, const int64_t* ptr, const int64_t* out_ptr, const void* table,
                         int64_t bytes, void* out) {
  return gw::guarded([&] {
    gw::require(bytes >= 0, "gw_parts_rows: a size is negative");
    gw::part_rows(ptr, ids, n, out_ptr, static_cast<const char*>(table), bytes, static_cast<char*>(out));
  });
}

// The structure of the parts `ids` of a block-diagonal one; edge_ids is null where a has none.
GW_API int gw_parts_take(const gw_adjacency* a, int64_t n, const int64_t* ids, const int64_t* ptr,
                         const int64_t* out_ptr, const int64_t* out_entries, int64_t* indptr, void* indices,
                         void* edge_ids) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr, "gw_parts_take: null array");
    gw::require(edge_ids == nullptr || a->edge_ids != nullptr, "gw_parts_take: edge ids of a structure without");
    if (a->wide)
      gw::take_parts(gw::csr_view<int64_t>(*a), ptr, ids, n, out_ptr, out_entries, indptr,
                     static_cast<int64_t*>(indices), static_cast<int64_t*>(edge_ids));
    else
      gw::take_parts(gw::csr_view<int32_t>(*a), ptr, ids, n, out_ptr, out_entries, indptr,
                     static_cast<int32_t*>(indices), static_cast<int32_t*>(edge_ids));
  });
}

}  // extern "C"
