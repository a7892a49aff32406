// Edges by part: entry points over edge_deal.h. The caller has checked ids and parts.
#include "graphweft/edge_deal.h"

#include "graphweft/abi.h"
#include "graphweft/id_type.h"

extern "C" {

// src and dst [n]; part [nodes] of 1, 2 or 4 bytes; new_id [nodes] or null; cuts [parts + 1] and pairs [n, 2] out.
GW_API int gw_deal_edges(const int64_t* src, const int64_t* dst, int64_t n, const void* part, int32_t part_bytes,
                         const void* new_id, int32_t wide, int64_t parts, int64_t* cuts, void* pairs) {
  return gw::guarded([&] {
    gw::require(n >= 0 && parts > 0, "gw_deal_edges: no parts");
    gw::require(part_bytes == 1 || part_bytes == 2 || part_bytes == 4,
                "gw_deal_edges: expected parts of 1, 2 or 4 bytes");
    gw::with_id_type(wide != 0, [&](auto id) {
      using I = decltype(id);
      const auto* ids = static_cast<const I*>(new_id);
      auto* to = static_cast<I*>(pairs);
      if (part_bytes == 1) {
        gw::deal_edges(src, dst, n, static_cast<const uint8_t*>(part), ids, parts, cuts, to);
      } else if (part_bytes == 2) {
        gw::deal_edges(src, dst, n, static_cast<const uint16_t*>(part), ids, parts, cuts, to);
      } else {
        gw::deal_edges(src, dst, n, static_cast<const uint32_t*>(part), ids, parts, cuts, to);
      }
    });
  });
}

// pairs [n, 2] with destinations in [first, first + rows); indptr [rows + 1] and sources [n] out, with `once` fewer.
GW_API int gw_compress_pairs(const void* pairs, int64_t n, int64_t first, int64_t rows, int32_t wide, int32_t once,
                             int64_t* indptr, void* sources) {
  return gw::guarded([&] {
    gw::require(n >= 0 && rows >= 0, "gw_compress_pairs: negative size");
    gw::with_id_type(wide != 0, [&](auto id) {
      using I = decltype(id);
      gw::compress_pairs(static_cast<const I*>(pairs), n, first, rows, once != 0, indptr, static_cast<I*>(sources));
    });
  });
}
}
