// Maximum and minimum over neighbours and their gradient: checks, then spmm_max.h.
#include "graphweft/spmm_max.h"

#include "graphweft/id_type.h"

namespace {

void check(const gw_adjacency* adj, int64_t width) {
  gw::require(adj && adj->num_rows >= 0 && adj->num_cols >= 0 && adj->num_edges >= 0 && width >= 0,
              "spmm_max: expected an adjacency and a width >= 0");
  gw::require((adj->indptr || adj->num_rows == 0) && (adj->indices || adj->stretches || adj->num_edges == 0),
              "spmm_max: expected indptr and indices, got null");
}

template <class E, class Index>
void extremum(const gw_adjacency& adj, const typename E::stored* x, int64_t ldx, int64_t width, bool minimum,
              typename E::stored* panel, typename E::stored* y, int64_t ldy, void* arg, int64_t ldarg) {
  const int64_t widest = panel ? gw::widest_panel<E> : 256 / int64_t(sizeof(*x));
  const int ahead = gw::prefetch_distance(adj.num_cols, std::min(widest, width) * int64_t(sizeof(*x)));
  gw::spmm_extremum<E, Index>(adj, {x, ldx, ahead, minimum, y, ldy, static_cast<Index*>(arg), ldarg, panel}, width);
}

template <class E>
int run(const gw_adjacency* adj, const typename E::stored* x, int64_t ldx, int64_t width, int32_t minimum,
        typename E::stored* panel, typename E::stored* y, int64_t ldy, void* arg, int64_t ldarg) {
  return gw::guarded([&] {
    check(adj, width);
    if (width == 0 || adj->num_rows == 0) return;
    gw::with_id_type(adj->wide != 0, [&](auto id) {
      extremum<E, decltype(id)>(*adj, x, ldx, width, minimum != 0, panel, y, ldy, arg, ldarg);
    });
  });
}

template <class E, class Index>
void route(const gw_adjacency& adj, const void* arg, int64_t ldarg, const typename E::stored* dy, int64_t lddy,
           int64_t width, typename E::stored* dx, int64_t lddx) {
  const int64_t row_bytes = width * int64_t(sizeof(*dy) + sizeof(Index));
  const int ahead = gw::prefetch_distance(adj.num_cols, std::min<int64_t>(512, row_bytes));
  gw::route_to_extremum<E, Index>(adj, {static_cast<const Index*>(arg), ldarg, dy, lddy, ahead, dx, lddx}, width);
}

template <class E>
int run_grad(const gw_adjacency* adj, const void* arg, int64_t ldarg, const typename E::stored* dy, int64_t lddy,
             int64_t width, typename E::stored* dx, int64_t lddx) {
  return gw::guarded([&] {
    check(adj, width);
    if (width == 0 || adj->num_rows == 0) return;
    gw::with_id_type(adj->wide != 0,
                     [&](auto id) { route<E, decltype(id)>(*adj, arg, ldarg, dy, lddy, width, dx, lddx); });
  });
}

template <class E>
int run_winners(const void* arg, int32_t wide, int64_t ldarg, const typename E::stored* dy, int64_t lddy,
                int64_t num_rows, int64_t width, typename E::stored* dx, int64_t lddx, int64_t num_cols) {
  return gw::guarded([&] {
    gw::require(num_rows >= 0 && num_cols >= 0 && width >= 0, "spmm_max_winners: expected sizes >= 0");
    if (width == 0 || num_cols == 0) return;
    gw::with_id_type(wide != 0, [&](auto id) {
      using Index = decltype(id);
      gw::add_winners<E, Index>({static_cast<const Index*>(arg), ldarg, dy, lddy, num_rows, dx, lddx, num_cols}, width);
    });
  });
}

}  // namespace

extern "C" {

// y[i] = elementwise maximum (`minimum`: minimum) of x[j] over j in row i, 0 for an empty row. `arg`, as wide as
// indices or null: the column of the first edge that attains it, -1 for an empty row. `panel`: null, or room for
// num_cols rows of 192 bytes, as gw_spmm_f32 has it.
GW_API int gw_spmm_max_f32(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, int32_t minimum,
                           float* panel, float* y, int64_t ldy, void* arg, int64_t ldarg) {
  return run<gw::f32>(adj, x, ldx, width, minimum, panel, y, ldy, arg, ldarg);
}
#ifndef GW_ONLY_F32
GW_API int gw_spmm_max_f64(const gw_adjacency* adj, const double* x, int64_t ldx, int64_t width, int32_t minimum,
                           double* panel, double* y, int64_t ldy, void* arg, int64_t ldarg) {
  return run<gw::f64>(adj, x, ldx, width, minimum, panel, y, ldy, arg, ldarg);
}
GW_API int gw_spmm_max_bf16(const gw_adjacency* adj, const uint16_t* x, int64_t ldx, int64_t width, int32_t minimum,
                            uint16_t* panel, uint16_t* y, int64_t ldy, void* arg, int64_t ldarg) {
  return run<gw::bf16>(adj, x, ldx, width, minimum, panel, y, ldy, arg, ldarg);
}
#endif

// dx[j, f] = sum of dy[i, f] over the distinct columns i of row j with arg[i, f] == j; `transposed` has sources as rows
// and in each row parallel edges side by side.
GW_API int gw_spmm_max_grad_f32(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const float* dy,
                                int64_t lddy, int64_t width, float* dx, int64_t lddx) {
  return run_grad<gw::f32>(transposed, arg, ldarg, dy, lddy, width, dx, lddx);
}
#ifndef GW_ONLY_F32
GW_API int gw_spmm_max_grad_f64(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const double* dy,
                                int64_t lddy, int64_t width, double* dx, int64_t lddx) {
  return run_grad<gw::f64>(transposed, arg, ldarg, dy, lddy, width, dx, lddx);
}
GW_API int gw_spmm_max_grad_bf16(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const uint16_t* dy,
                                 int64_t lddy, int64_t width, uint16_t* dx, int64_t lddx) {
  return run_grad<gw::bf16>(transposed, arg, ldarg, dy, lddy, width, dx, lddx);
}
#endif

// dx[j, f] = sum of dy[i, f] over the rows i with arg[i, f] == j, for j < num_cols; `arg` has ids of 64 bits where
// `wide`, of 32 else. No other id is added anywhere.
GW_API int gw_spmm_max_winners_f32(const void* arg, int32_t wide, int64_t ldarg, const float* dy, int64_t lddy,
                                   int64_t num_rows, int64_t width, float* dx, int64_t lddx, int64_t num_cols) {
  return run_winners<gw::f32>(arg, wide, ldarg, dy, lddy, num_rows, width, dx, lddx, num_cols);
}
#ifndef GW_ONLY_F32
GW_API int gw_spmm_max_winners_f64(const void* arg, int32_t wide, int64_t ldarg, const double* dy, int64_t lddy,
                                   int64_t num_rows, int64_t width, double* dx, int64_t lddx, int64_t num_cols) {
  return run_winners<gw::f64>(arg, wide, ldarg, dy, lddy, num_rows, width, dx, lddx, num_cols);
}
GW_API int gw_spmm_max_winners_bf16(const void* arg, int32_t wide, int64_t ldarg, const uint16_t* dy, int64_t lddy,
                                    int64_t num_rows, int64_t width, uint16_t* dx, int64_t lddx, int64_t num_cols) {
  return run_winners<gw::bf16>(arg, wide, ldarg, dy, lddy, num_rows, width, dx, lddx, num_cols);
}
#endif
}
