// Sparse node features: entry points over features.h. `wide_values`: 1 float64, 0 float32.
#include "graphweft/features.h"

#include <type_traits>

#include "graphweft/abi.h"
#include "graphweft/id_type.h"
#include "graphweft/int8_rows.h"

namespace {

// body(typed pointer) for float32 or float64 values.
template <class Body>
void with_values(int32_t wide_values, const void* values, Body&& body) {
  wide_values ? body(static_cast<const double*>(values)) : body(static_cast<const float*>(values));
}

// body(view, values) for each width of ids and of values.
template <class Body>
int with_features(const gw_adjacency* a, int32_t wide_values, const void* values, Body&& body) {
  return gw::guarded([&] {
    gw::require(a != nullptr && a->indptr != nullptr, "features: null array");
    with_values(wide_values, values, [&](const auto* typed) {
      gw::with_id_type(a->wide != 0, [&](auto id) { body(gw::csr_view<decltype(id)>(*a), typed); });
    });
  });
}

template <class T>
T* like(void* pointer, const T*) {
  return static_cast<T*>(pointer);
}

}  // namespace

extern "C" {

// out[n, width] = rows `ids` [n], or the first n where that is null, of a table of 8-bit levels [rows, width], each
// number level * scale[column] + offset[column].
GW_API int gw_gather_int8_rows(const int8_t* levels, int64_t rows, int64_t width, int64_t ld, const float* scale,
                               const float* offset, const int64_t* ids, int64_t n, float* out) {
  return gw::guarded([&] {
    gw::require(rows >= 0 && width >= 0 && ld >= width && n >= 0, "gw_gather_int8_rows: bad shape");
    gw::require(ids != nullptr || n <= rows, "gw_gather_int8_rows: more rows than the table has");
    gw::gather_int8_rows({levels, rows, width, ld, scale, offset}, ids, n, out);
  });
}

// Non-zero elements of each row of x [rows, width], ld elements between rows.
GW_API int gw_dense_count_nonzero(int32_t wide_values, int64_t rows, int64_t width, int64_t ld, const void* x,
                                  int64_t* counts) {
  return gw::guarded([&] {
    gw::require(rows >= 0 && width >= 0 && ld >= width, "gw_dense_count_nonzero: bad shape");
    with_values(wide_values, x, [&](const auto* typed) { gw::count_nonzero(typed, rows, width, ld, counts); });
  });
}

// Fills the compressed form of x; indptr holds offsets.
GW_API int gw_csr_from_dense(int32_t wide_values, int64_t rows, int64_t width, int64_t ld, const void* x,
                             const int64_t* indptr, int32_t wide, void* indices, void* values) {
  return gw::guarded([&] {
    gw::require(rows >= 0 && width >= 0 && ld >= width, "gw_csr_from_dense: bad shape");
    with_values(wide_values, x, [&](const auto* typed) {
      gw::with_id_type(wide != 0, [&](auto id) {
        gw::compress_dense(typed, rows, width, ld, indptr, static_cast<decltype(id)*>(indices), like(values, typed));
      });
    });
  });
}

// Adds the entries to out [num_rows, ld], which holds zeros.
GW_API int gw_csr_to_dense(const gw_adjacency* a, int32_t wide_values, const void* values, int64_t ld, void* out) {
  return with_features(a, wide_values, values, [&](const auto& view, const auto* typed) {
    gw::expand_dense(view, typed, ld, like(out, typed));
  });
}

GW_API int gw_require_finite(int32_t wide_values, int64_t n, const void* values) {
  return gw::guarded(
      [&] { with_values(wide_values, values, [&](const auto* typed) { gw::require_finite(typed, n); }); });
}

// Equal columns added up, zeros left out; columns ascend. indices null: counts per row into indptr.
GW_API int gw_csr_merge_equal(const gw_adjacency* a, int32_t wide_values, const void* values, int64_t* indptr,
                              void* indices, void* out) {
  return with_features(a, wide_values, values, [&](const auto& view, const auto* typed) {
    using I = std::remove_const_t<std::remove_pointer_t<decltype(view.indices)>>;
    gw::merge_equal(view, typed, indptr, static_cast<I*>(indices), like(out, typed));
  });
}

GW_API int gw_csr_normalize_rows(const gw_adjacency* a, int32_t wide_values, const void* values, void* out) {
  return with_features(a, wide_values, values,
                       [&](const auto& view, const auto* typed) { gw::normalize_rows(view, typed, like(out, typed)); });
}

// out [rows, width] may be x, where ld is width.
GW_API int gw_dense_normalize_rows(int32_t wide_values, int64_t rows, int64_t width, int64_t ld, const void* x,
                                   void* out) {
  return gw::guarded([&] {
    gw::require(rows >= 0 && width >= 0 && ld >= width, "gw_dense_normalize_rows: bad shape");
    with_values(wide_values, x,
                [&](const auto* typed) { gw::normalize_dense_rows(typed, rows, width, ld, like(out, typed)); });
  });
}
}
