// Entry points of the element-wise row kernels, float32.
#include "graphweft/rows.h"

#include <cmath>

#include "graphweft/csr.h"
#include "graphweft/gather.h"
#include "graphweft/row_sums.h"

extern "C" {

// y[n, f] = epilogue(x[n, f]); y may be x. With `rows` [n], row i of x is row rows[i] of a table of table_rows rows.
GW_API int gw_rows_apply_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const gw_epilogue_f32* epilogue,
                             float* y, int64_t ldy, const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require(n >= 0 && f >= 0 && epilogue, "gw_rows_apply_f32: a size is negative or the epilogue is missing");
    if (rows) gw::require_ids("gather_rows: expected ids", rows, n, table_rows);
    gw::apply_rows<gw::f32>(n, f, x, ldx, *epilogue, y, ldy, rows);
  });
}

#ifndef GW_ONLY_F32
// The same of rows stored in bfloat16.
GW_API int gw_rows_apply_half_f32(int64_t n, int64_t f, const uint16_t* x, int64_t ldx, const gw_epilogue_f32* epilogue,
                                  float* y, int64_t ldy, const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require(n >= 0 && f >= 0 && epilogue, "gw_rows_apply_half_f32: a size is negative or the epilogue is missing");
    if (rows) gw::require_ids("gather_rows: expected ids", rows, n, table_rows);
    gw::apply_rows<gw::bf16>(n, f, x, ldx, *epilogue, y, ldy, rows);
  });
}
#endif

// out[f] = column sums of x[n, f], in an order that does not depend on threads.
GW_API int gw_col_sum_f32(int64_t n, int64_t f, const float* x, int64_t ldx, float* out) {
  return gw::guarded([&] {
    gw::require(n >= 0 && f >= 0, "gw_col_sum_f32: a size is negative");
    gw::sum_columns(n, f, x, ldx, out);
  });
}

// out = <x, y> over `count` elements, in an order that does not depend on threads.
GW_API int gw_dot_f32(int64_t count, const float* x, const float* y, float* out) {
  return gw::guarded([&] {
    gw::require(count >= 0, "gw_dot_f32: a size is negative");
    *out = gw::dot_elements(count, x, y);
  });
}

// out[n] = sums of the rows of x[n, f].
GW_API int gw_row_sum_f32(int64_t n, int64_t f, const float* x, int64_t ldx, float* out) {
  return gw::guarded([&] {
    gw::require(n >= 0 && f >= 0, "gw_row_sum_f32: a size is negative");
    gw::sum_rows(n, f, x, ldx, out);
  });
}

// y[n, f] = sums of the `parts` stretches of f columns of each row of x, in order.
GW_API int gw_part_sum_f32(int64_t n, int64_t parts, int64_t f, const float* x, float* y) {
  return gw::guarded([&] {
    gw::require(n >= 0 && parts >= 0 && f >= 0, "gw_part_sum_f32: a size is negative");
    gw::sum_parts(n, parts, f, x, y);
  });
}

// y = (x + shift)^exponent over `count` elements, 0 where x + shift is 0; y may be x.
GW_API int gw_power_f32(int64_t count, const float* x, double shift, double exponent, float* y) {
  return gw::guarded([&] {
    const double halves = -2.0 * exponent;
    gw::require(count >= 0, "gw_power_f32: a size is negative");
    gw::require(halves == 1.0 || halves == 2.0 || halves == 3.0,
                "gw_power_f32: expected the exponent -1/2, -1 or -3/2");
    gw::negative_power(count, x, float(shift), int(halves), y);
  });
}

// Dropout of x[n, f] with probability p, resolved to 1 / 65536; the same call on the gradient is its backward. A pure
// function of (seed, stream, element index): y may be x. `rows` as above.
GW_API int gw_dropout_f32(int64_t n, int64_t f, const float* x, int64_t ldx, double p, uint64_t seed, uint64_t stream,
                          float* y, int64_t ldy, const int64_t* rows, int64_t table_rows) {
  return gw::guarded([&] {
    gw::require(n >= 0 && f >= 0, "gw_dropout_f32: a size is negative");
    gw::require(p >= 0.0 && p <= 1.0, "gw_dropout_f32: expected a probability in [0, 1]");
    if (rows) gw::require_ids("gather_dropout: expected ids", rows, n, table_rows);
    const auto threshold = uint32_t(std::lround(p * 65536.0));
    gw::drop_elements(n, f, x, ldx, threshold, p < 1.0 ? float(1.0 / (1.0 - p)) : 0.0f, seed, stream, y, ldy, rows);
  });
}

// Rows ids[i] of a table of rows of `bytes` bytes, `stride` bytes apart, one after the other. Ids are checked.
GW_API int gw_gather_rows(const void* table, int64_t rows, int64_t stride, int64_t bytes, const int64_t* ids, int64_t n,
                          void* out) {
  return gw::guarded([&] {
    gw::require(rows >= 0 && stride >= bytes && bytes >= 0 && n >= 0, "gw_gather_rows: negative size");
    gw::gather_rows(static_cast<const char*>(table), rows, stride, bytes, ids, n, static_cast<char*>(out));
  });
}
}
