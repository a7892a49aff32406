// Stands for the kernels of kernels.json in a library that is compiled without them: see first_use.h.
// Written by csrc/bindings.py from the sources of csrc/core.
#include <cstring>

#include "graphweft/entry_points.h"
#include "graphweft/first_use.h"

namespace {
gw::first_use_entry first_use_table[] = {
    // clang-format off
    {"gw_head_dots_f32", "attention"}, {"gw_head_products_f32", "attention"}, {"gw_head_sums_f32", "attention"},
    {"gw_attend_f32", "attention"}, {"gw_attend_grad_f32", "attention"}, {"gw_half_unit", "bfloat16"},
    {"gw_gemm_nn_f32_bf16", "bfloat16"}, {"gw_gemm_terms_f32_bf16", "bfloat16"}, {"gw_gemm_tn_f32_bf16", "bfloat16"},
    {"gw_gemm_tn_half_f32_bf16", "bfloat16"}, {"gw_gemm_tn_terms_f32_bf16", "bfloat16"}, {"gw_spmm_bf16", "bfloat16"},
    {"gw_spmm_f32_bf16", "bfloat16"}, {"gw_edge_margins_f32", "edge"}, {"gw_edge_margins_f64", "edge"},
    {"gw_edge_margins_grad_f32", "edge"}, {"gw_edge_margins_grad_f64", "edge"}, {"gw_sddmm_dot_f32", "edge"},
    {"gw_sddmm_dot_f64", "edge"}, {"gw_sparse_dropout_f32", "edge"}, {"gw_spmm_max_f32", "extrema"},
    {"gw_spmm_max_f64", "extrema"}, {"gw_spmm_max_bf16", "extrema"}, {"gw_spmm_max_grad_f32", "extrema"},
    {"gw_spmm_max_grad_f64", "extrema"}, {"gw_spmm_max_grad_bf16", "extrema"}, {"gw_spmm_max_winners_f32", "extrema"},
    {"gw_spmm_max_winners_f64", "extrema"}, {"gw_spmm_max_winners_bf16", "extrema"}, {"gw_spmm_f64", "float64"},
    {"gw_batch_norm_f32", "normalisation"}, {"gw_normalise_f32", "normalisation"},
    {"gw_batch_norm_grad_f32", "normalisation"}, {"gw_track_moments_f32", "normalisation"},
    {"gw_track_norms_f32", "normalisation"}, {"gw_deal_edges", "parts"}, {"gw_compress_pairs", "parts"},
    {"gw_multilevel_cluster", "parts"}, {"gw_multilevel_contract", "parts"}, {"gw_multilevel_merge", "parts"},
    {"gw_multilevel_place", "parts"}, {"gw_partition_stream", "parts"}, {"gw_partition_measure", "parts"},
    {"gw_read_rows_f32", "parts"}, {"gw_row_sample_sizes", "sampling"}, {"gw_row_sample", "sampling"},
    {"gw_draw_nodes", "sampling"}, {"gw_draw_items", "sampling"}, {"gw_running_sums", "sampling"},
    {"gw_random_walk", "sampling"}, {"gw_permutation", "sampling"}, {"gw_negative_pairs", "sampling"},
    {"gw_negative_tails", "sampling"}, {"gw_has_edges", "sampling"}, {"gw_negative_mask", "sampling"},
    {"gw_sample_compose", "sampling"}, {"gw_sampler_new", "sampling"}, {"gw_sampler_free", "sampling"},
    {"gw_sampler_name", "sampling"}, {"gw_sampler_exclude", "sampling"}, {"gw_sampler_reach", "sampling"},
    {"gw_sample_begin", "sampling"}, {"gw_sample_finish", "sampling"}, {"gw_sample_times", "sampling"},
    {"gw_steps_first", "sampling"}, {"gw_steps_place", "sampling"}, {"gw_steps_draw", "sampling"},
    {"gw_steps_number", "sampling"}, {"gw_steps_ids", "sampling"}, {"gw_steps_settle", "sampling"},
    {"gw_steps_inner", "sampling"}, {"gw_sample_edges", "sampling"}, {"gw_subset_new", "sampling"},
    {"gw_subset_free", "sampling"}, {"gw_subset_distinct", "sampling"}, {"gw_subset_slice", "sampling"},
    {"gw_subset_write_slice", "sampling"}, {"gw_subset_candidates", "sampling"},
    {"gw_subset_write_candidates", "sampling"}, {"gw_ego_new", "sampling"}, {"gw_ego_free", "sampling"},
    {"gw_ego_draw", "sampling"}, {"gw_ego_group", "sampling"}, {"gw_ego_write", "sampling"},
    {"gw_gemm_nn_f32_split", "split"}, {"gw_gemm_terms_f32_split", "split"}, {"gw_gemm_tn_f32_split", "split"},
    {"gw_gemm_tn_terms_f32_split", "split"}, {"gw_order_by_time", "temporal"}, {"gw_relation_runs_count", "temporal"},
    {"gw_relation_runs", "temporal"}, {"gw_segment_sampler_new", "temporal"}, {"gw_segment_sampler_free", "temporal"},
    {"gw_segment_begin", "temporal"}, {"gw_segment_finish", "temporal"}, {"gw_flat_count", "typed"},
    {"gw_flat_cuts_of", "typed"}, {"gw_flat_matmul_f32", "typed"}, {"gw_flat_contract_f32", "typed"},
    {"gw_typed_weight_room", "typed"}, {"gw_typed_outer_room", "typed"}, {"gw_typed_matmul_f32", "typed"},
    {"gw_typed_row_sums_f32", "typed"}, {"gw_edge_softmax_f32", "typed"}, {"gw_edge_softmax_grad_f32", "typed"},
    {"gw_typed_outer_rows_f32", "typed"}, {"gw_typed_spmm_f32", "typed"}, {"gw_typed_outer_f32", "typed"},
    {"gw_typed_dots_f32", "typed"}, {"gw_typed_group", "typed"}, {"gw_typed_list", "typed"},
    {"gw_typed_degrees", "typed"}, {"gw_typed_sort", "typed"}, {"gw_typed_ends", "typed"}, {"gw_typed_rows", "typed"},
    {"gw_typed_run_rows", "typed"},
    // clang-format on
};
}  // namespace

extern "C" {
// Where the entry point `name` is from now on, and the last error of its library. 0 where there is none.
GW_API int gw_first_use_bind(const char* name, void* function, const char* (*last_error)()) {
  for (gw::first_use_entry& entry : first_use_table) {
    if (std::strcmp(entry.name, name) != 0) continue;
    entry.last_error.store(last_error, std::memory_order_relaxed);
    entry.function.store(function, std::memory_order_release);
    return 1;
  }
  return 0;
}
GW_API int gw_head_dots_f32(int64_t n, int64_t heads, int64_t channels, const float* x, const float* a, float* out) {
  return gw::call_first_use(first_use_table[0], &gw_head_dots_f32, n, heads, channels, x, a, out);
}
GW_API int gw_head_products_f32(int64_t n, int64_t heads, int64_t channels, const float* s, const float* a,
                                const float* x, float* y) {
  return gw::call_first_use(first_use_table[1], &gw_head_products_f32, n, heads, channels, s, a, x, y);
}
GW_API int gw_head_sums_f32(int64_t n, int64_t heads, int64_t channels, const float* s, const float* x, float* out) {
  return gw::call_first_use(first_use_table[2], &gw_head_sums_f32, n, heads, channels, s, x, out);
}
GW_API int gw_attend_f32(const gw_adjacency* adj, const gw_attention_f32* operands, float* out, float* stats) {
  return gw::call_first_use(first_use_table[3], &gw_attend_f32, adj, operands, out, stats);
}
GW_API int gw_attend_grad_f32(const gw_adjacency* adj, const gw_adjacency* transposed, const gw_attention_f32* operands,
                              const float* stats, const float* out, const float* dout,
                              const gw_attention_grad_f32* grad, float* room) {
  return gw::call_first_use(first_use_table[4], &gw_attend_grad_f32, adj, transposed, operands, stats, out, dout, grad,
                            room);
}
GW_API int gw_half_unit(int32_t most, int32_t* used) {
  return gw::call_first_use(first_use_table[5], &gw_half_unit, most, used);
}
GW_API int gw_gemm_nn_f32_bf16(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w,
                               int64_t ldw, int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y,
                               int64_t ldy, const int64_t* rows, int64_t table_rows) {
  return gw::call_first_use(first_use_table[6], &gw_gemm_nn_f32_bf16, n, k, m, x, ldx, w, ldw, w_transposed, epilogue,
                            y, ldy, rows, table_rows);
}
GW_API int gw_gemm_terms_f32_bf16(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                                  const gw_epilogue_f32* epilogue, void* y, int64_t ldy, int32_t half) {
  return gw::call_first_use(first_use_table[7], &gw_gemm_terms_f32_bf16, n, m, terms, num_terms, epilogue, y, ldy,
                            half);
}
GW_API int gw_gemm_tn_f32_bf16(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g,
                               int64_t ldg, const float* row_scale, float* dw, int64_t lddw, float* col_sum,
                               const int64_t* rows, int64_t table_rows) {
  return gw::call_first_use(first_use_table[8], &gw_gemm_tn_f32_bf16, n, k, m, x, ldx, g, ldg, row_scale, dw, lddw,
                            col_sum, rows, table_rows);
}
GW_API int gw_gemm_tn_half_f32_bf16(int64_t n, int64_t k, int64_t m, const void* x, int64_t ldx, int32_t half_x,
                                    const void* g, int64_t ldg, int32_t half_g, float* dw, int64_t lddw, float* col_sum,
                                    const int64_t* rows, int64_t table_rows) {
  return gw::call_first_use(first_use_table[9], &gw_gemm_tn_half_f32_bf16, n, k, m, x, ldx, half_x, g, ldg, half_g, dw,
                            lddw, col_sum, rows, table_rows);
}
GW_API int gw_gemm_tn_terms_f32_bf16(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                                     const void* x, int64_t ldx, int32_t half, const gw_epilogue_f32* epilogue) {
  return gw::call_first_use(first_use_table[10], &gw_gemm_tn_terms_f32_bf16, m, lefts, num_lefts, edges, x, ldx, half,
                            epilogue);
}
GW_API int gw_spmm_bf16(const gw_adjacency* adj, const uint16_t* x, int64_t ldx, int64_t width, const float* weight,
                        const float* src_scale, double self_coef, const float* self_factor, int32_t mean,
                        const gw_epilogue_f32* stages, int32_t prefetch, uint16_t* panel, int32_t plain, int32_t wide,
                        void* y, int64_t ldy) {
  return gw::call_first_use(first_use_table[11], &gw_spmm_bf16, adj, x, ldx, width, weight, src_scale, self_coef,
                            self_factor, mean, stages, prefetch, panel, plain, wide, y, ldy);
}
GW_API int gw_spmm_f32_bf16(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, const float* weight,
                            const float* src_scale, double self_coef, const float* self_factor, int32_t mean,
                            const gw_epilogue_f32* stages, int32_t prefetch, uint16_t* panel, float* y, int64_t ldy) {
  return gw::call_first_use(first_use_table[12], &gw_spmm_f32_bf16, adj, x, ldx, width, weight, src_scale, self_coef,
                            self_factor, mean, stages, prefetch, panel, y, ldy);
}
GW_API int gw_edge_margins_f32(const gw_adjacency* adj, const float* scores, int64_t heads, float* out) {
  return gw::call_first_use(first_use_table[13], &gw_edge_margins_f32, adj, scores, heads, out);
}
GW_API int gw_edge_margins_f64(const gw_adjacency* adj, const double* scores, int64_t heads, double* out) {
  return gw::call_first_use(first_use_table[14], &gw_edge_margins_f64, adj, scores, heads, out);
}
GW_API int gw_edge_margins_grad_f32(const gw_adjacency* adj, const float* scores, const float* dout, int64_t heads,
                                    int32_t closed, float* grad) {
  return gw::call_first_use(first_use_table[15], &gw_edge_margins_grad_f32, adj, scores, dout, heads, closed, grad);
}
GW_API int gw_edge_margins_grad_f64(const gw_adjacency* adj, const double* scores, const double* dout, int64_t heads,
                                    int32_t closed, double* grad) {
  return gw::call_first_use(first_use_table[16], &gw_edge_margins_grad_f64, adj, scores, dout, heads, closed, grad);
}
GW_API int gw_sddmm_dot_f32(const gw_adjacency* adj, const float* a, int64_t lda, const float* b, int64_t ldb,
                            int64_t width, float* out) {
  return gw::call_first_use(first_use_table[17], &gw_sddmm_dot_f32, adj, a, lda, b, ldb, width, out);
}
GW_API int gw_sddmm_dot_f64(const gw_adjacency* adj, const double* a, int64_t lda, const double* b, int64_t ldb,
                            int64_t width, double* out) {
  return gw::call_first_use(first_use_table[18], &gw_sddmm_dot_f64, adj, a, lda, b, ldb, width, out);
}
GW_API int gw_sparse_dropout_f32(const gw_adjacency* adj, const float* values, int64_t features, int32_t turned,
                                 double p, uint64_t seed, uint64_t stream, float* out) {
  return gw::call_first_use(first_use_table[19], &gw_sparse_dropout_f32, adj, values, features, turned, p, seed, stream,
                            out);
}
GW_API int gw_spmm_max_f32(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, int32_t minimum,
                           float* panel, float* y, int64_t ldy, void* arg, int64_t ldarg) {
  return gw::call_first_use(first_use_table[20], &gw_spmm_max_f32, adj, x, ldx, width, minimum, panel, y, ldy, arg,
                            ldarg);
}
GW_API int gw_spmm_max_f64(const gw_adjacency* adj, const double* x, int64_t ldx, int64_t width, int32_t minimum,
                           double* panel, double* y, int64_t ldy, void* arg, int64_t ldarg) {
  return gw::call_first_use(first_use_table[21], &gw_spmm_max_f64, adj, x, ldx, width, minimum, panel, y, ldy, arg,
                            ldarg);
}
GW_API int gw_spmm_max_bf16(const gw_adjacency* adj, const uint16_t* x, int64_t ldx, int64_t width, int32_t minimum,
                            uint16_t* panel, uint16_t* y, int64_t ldy, void* arg, int64_t ldarg) {
  return gw::call_first_use(first_use_table[22], &gw_spmm_max_bf16, adj, x, ldx, width, minimum, panel, y, ldy, arg,
                            ldarg);
}
GW_API int gw_spmm_max_grad_f32(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const float* dy,
                                int64_t lddy, int64_t width, float* dx, int64_t lddx) {
  return gw::call_first_use(first_use_table[23], &gw_spmm_max_grad_f32, transposed, arg, ldarg, dy, lddy, width, dx,
                            lddx);
}
GW_API int gw_spmm_max_grad_f64(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const double* dy,
                                int64_t lddy, int64_t width, double* dx, int64_t lddx) {
  return gw::call_first_use(first_use_table[24], &gw_spmm_max_grad_f64, transposed, arg, ldarg, dy, lddy, width, dx,
                            lddx);
}
GW_API int gw_spmm_max_grad_bf16(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const uint16_t* dy,
                                 int64_t lddy, int64_t width, uint16_t* dx, int64_t lddx) {
  return gw::call_first_use(first_use_table[25], &gw_spmm_max_grad_bf16, transposed, arg, ldarg, dy, lddy, width, dx,
                            lddx);
}
GW_API int gw_spmm_max_winners_f32(const void* arg, int32_t wide, int64_t ldarg, const float* dy, int64_t lddy,
                                   int64_t num_rows, int64_t width, float* dx, int64_t lddx, int64_t num_cols) {
  return gw::call_first_use(first_use_table[26], &gw_spmm_max_winners_f32, arg, wide, ldarg, dy, lddy, num_rows, width,
                            dx, lddx, num_cols);
}
GW_API int gw_spmm_max_winners_f64(const void* arg, int32_t wide, int64_t ldarg, const double* dy, int64_t lddy,
                                   int64_t num_rows, int64_t width, double* dx, int64_t lddx, int64_t num_cols) {
  return gw::call_first_use(first_use_table[27], &gw_spmm_max_winners_f64, arg, wide, ldarg, dy, lddy, num_rows, width,
                            dx, lddx, num_cols);
}
GW_API int gw_spmm_max_winners_bf16(const void* arg, int32_t wide, int64_t ldarg, const uint16_t* dy, int64_t lddy,
                                    int64_t num_rows, int64_t width, uint16_t* dx, int64_t lddx, int64_t num_cols) {
  return gw::call_first_use(first_use_table[28], &gw_spmm_max_winners_bf16, arg, wide, ldarg, dy, lddy, num_rows, width,
                            dx, lddx, num_cols);
}
GW_API int gw_spmm_f64(const gw_adjacency* adj, const double* x, int64_t ldx, int64_t width, const double* weight,
                       const double* src_scale, double self_coef, int32_t mean, int32_t prefetch, double* panel,
                       double* y, int64_t ldy) {
  return gw::call_first_use(first_use_table[29], &gw_spmm_f64, adj, x, ldx, width, weight, src_scale, self_coef, mean,
                            prefetch, panel, y, ldy);
}
GW_API int gw_batch_norm_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* weight, const float* bias,
                             double eps, int32_t relu, float* stats, float* y, int64_t ldy) {
  return gw::call_first_use(first_use_table[30], &gw_batch_norm_f32, n, f, x, ldx, weight, bias, eps, relu, stats, y,
                            ldy);
}
GW_API int gw_normalise_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* mean, const float* variance,
                            const float* weight, const float* bias, double eps, int32_t relu, float* y, int64_t ldy) {
  return gw::call_first_use(first_use_table[31], &gw_normalise_f32, n, f, x, ldx, mean, variance, weight, bias, eps,
                            relu, y, ldy);
}
GW_API int gw_batch_norm_grad_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* dy, int64_t lddy,
                                  const float* weight, const float* stats, double eps, float* dx, int64_t lddx,
                                  float* dweight, float* dbias) {
  return gw::call_first_use(first_use_table[32], &gw_batch_norm_grad_f32, n, f, x, ldx, dy, lddy, weight, stats, eps,
                            dx, lddx, dweight, dbias);
}
GW_API int gw_track_moments_f32(int64_t f, int64_t rows, const float* stats, double momentum, float* mean,
                                float* variance) {
  return gw::call_first_use(first_use_table[33], &gw_track_moments_f32, f, rows, stats, momentum, mean, variance);
}
GW_API int gw_track_norms_f32(const gw_tracked_norm_f32* table, int64_t norms, int64_t rows) {
  return gw::call_first_use(first_use_table[34], &gw_track_norms_f32, table, norms, rows);
}
GW_API int gw_deal_edges(const int64_t* src, const int64_t* dst, int64_t n, const void* part, int32_t part_bytes,
                         const void* new_id, int32_t wide, int64_t parts, int64_t* cuts, void* pairs) {
  return gw::call_first_use(first_use_table[35], &gw_deal_edges, src, dst, n, part, part_bytes, new_id, wide, parts,
                            cuts, pairs);
}
GW_API int gw_compress_pairs(const void* pairs, int64_t n, int64_t first, int64_t rows, int32_t wide, int32_t once,
                             int64_t* indptr, void* sources) {
  return gw::call_first_use(first_use_table[36], &gw_compress_pairs, pairs, n, first, rows, wide, once, indptr,
                            sources);
}
GW_API int gw_multilevel_cluster(const gw_adjacency* a, int64_t first, const int32_t* edge_weight,
                                 const int32_t* node_weight, const int32_t* labels, const int64_t* most,
                                 int32_t* cluster, int64_t* heavy, int64_t* moved) {
  return gw::call_first_use(first_use_table[37], &gw_multilevel_cluster, a, first, edge_weight, node_weight, labels,
                            most, cluster, heavy, moved);
}
GW_API int gw_multilevel_contract(const gw_adjacency* a, int64_t first, const int32_t* edge_weight,
                                  const int32_t* cluster, int64_t clusters, double kept, int64_t* indptr,
                                  int32_t* indices, int32_t* weights) {
  return gw::call_first_use(first_use_table[38], &gw_multilevel_contract, a, first, edge_weight, cluster, clusters,
                            kept, indptr, indices, weights);
}
GW_API int gw_multilevel_merge(const int64_t* a_indptr, const int32_t* a_indices, const int32_t* a_weights,
                               const int64_t* b_indptr, const int32_t* b_indices, const int32_t* b_weights,
                               int64_t clusters, double kept, int64_t* indptr, int32_t* indices, int32_t* weights) {
  return gw::call_first_use(first_use_table[39], &gw_multilevel_merge, a_indptr, a_indices, a_weights, b_indptr,
                            b_indices, b_weights, clusters, kept, indptr, indices, weights);
}
GW_API int gw_multilevel_place(const gw_adjacency* a, int64_t first, const int32_t* edge_weight,
                               const int32_t* node_weight, const int32_t* labels, const int64_t* order, int64_t k,
                               int64_t num_labels, const double* target, const int32_t* counted, const double* limits,
                               int32_t* part, int64_t* counts, double* spread, int64_t* moved) {
  return gw::call_first_use(first_use_table[40], &gw_multilevel_place, a, first, edge_weight, node_weight, labels,
                            order, k, num_labels, target, counted, limits, part, counts, spread, moved);
}
GW_API int gw_partition_stream(const gw_adjacency* a, int64_t k, int64_t num_labels, const int32_t* labels,
                               double scale, int32_t exhaustive, int32_t* part, int64_t* steps) {
  return gw::call_first_use(first_use_table[41], &gw_partition_stream, a, k, num_labels, labels, scale, exhaustive,
                            part, steps);
}
GW_API int gw_partition_measure(const gw_adjacency* a, int64_t k, const int32_t* part, int64_t* cut, int64_t* halo) {
  return gw::call_first_use(first_use_table[42], &gw_partition_measure, a, k, part, cut, halo);
}
GW_API int gw_read_rows_f32(const int32_t* handles, int32_t* direct, int64_t count, const int32_t* file,
                            const int64_t* begin, const int64_t* room, const int64_t* least, const int64_t* skip,
                            const int64_t* width, const int64_t* rows, const int64_t* row, const int64_t* place,
                            int32_t type, float* table, int64_t columns, int64_t threads, int64_t buffer_bytes,
                            int64_t* told) {
  return gw::call_first_use(first_use_table[43], &gw_read_rows_f32, handles, direct, count, file, begin, room, least,
                            skip, width, rows, row, place, type, table, columns, threads, buffer_bytes, told);
}
GW_API int gw_row_sample_sizes(const gw_adjacency* a, const float* weights, int64_t k, int32_t replace,
                               int64_t* indptr) {
  return gw::call_first_use(first_use_table[44], &gw_row_sample_sizes, a, weights, k, replace, indptr);
}
GW_API int gw_row_sample(const gw_adjacency* a, const float* weights, int64_t k, int32_t replace, const int64_t* nodes,
                         uint64_t seed, uint64_t epoch, uint64_t stage, uint32_t hop, const int64_t* indptr,
                         int64_t* positions, float* factors) {
  return gw::call_first_use(first_use_table[45], &gw_row_sample, a, weights, k, replace, nodes, seed, epoch, stage, hop,
                            indptr, positions, factors);
}
GW_API int gw_draw_nodes(int64_t n, const int64_t* ids, const double* weights, int64_t k, int32_t replace,
                         uint64_t seed, uint64_t epoch, uint64_t stage, uint32_t hop, int64_t* places, double* factors,
                         int64_t* count) {
  return gw::call_first_use(first_use_table[46], &gw_draw_nodes, n, ids, weights, k, replace, seed, epoch, stage, hop,
                            places, factors, count);
}
GW_API int gw_draw_items(int64_t count, const int64_t* items, int64_t n, const double* running, uint64_t seed,
                         uint64_t epoch, uint64_t stage, int64_t* out) {
  return gw::call_first_use(first_use_table[47], &gw_draw_items, count, items, n, running, seed, epoch, stage, out);
}
GW_API int gw_running_sums(const gw_adjacency* a, const float* weights, double* out) {
  return gw::call_first_use(first_use_table[48], &gw_running_sums, a, weights, out);
}
GW_API int gw_random_walk(const gw_adjacency* a, int64_t count, const int64_t* starts, const int64_t* items,
                          int64_t length, const double* running, double p, double q, double restart, uint64_t seed,
                          uint64_t epoch, uint64_t stage, int64_t* out) {
  return gw::call_first_use(first_use_table[49], &gw_random_walk, a, count, starts, items, length, running, p, q,
                            restart, seed, epoch, stage, out);
}
GW_API int gw_permutation(int64_t n, uint64_t seed, uint64_t epoch, int64_t* out) {
  return gw::call_first_use(first_use_table[50], &gw_permutation, n, seed, epoch, out);
}
GW_API int gw_negative_pairs(const gw_adjacency* a, const int64_t* ranges, int32_t loops, int64_t count,
                             const int64_t* keys, int64_t per, uint64_t seed, uint64_t epoch, uint64_t stage,
                             int64_t* src, int64_t* dst) {
  return gw::call_first_use(first_use_table[51], &gw_negative_pairs, a, ranges, loops, count, keys, per, seed, epoch,
                            stage, src, dst);
}
GW_API int gw_negative_tails(const gw_adjacency* a, const int64_t* ranges, int32_t loops, int64_t count,
                             const int64_t* keys, int64_t per, uint64_t seed, uint64_t epoch, uint64_t stage,
                             const int64_t* src, int64_t* dst) {
  return gw::call_first_use(first_use_table[52], &gw_negative_tails, a, ranges, loops, count, keys, per, seed, epoch,
                            stage, src, dst);
}
GW_API int gw_has_edges(const gw_adjacency* a, int64_t count, const int64_t* src, const int64_t* dst, uint8_t* found) {
  return gw::call_first_use(first_use_table[53], &gw_has_edges, a, count, src, dst, found);
}
GW_API int gw_negative_mask(const gw_adjacency* a, const int64_t* ranges, int32_t loops, int64_t num_src,
                            const int64_t* src, int64_t num_dst, const int64_t* dst, uint8_t* mask) {
  return gw::call_first_use(first_use_table[54], &gw_negative_mask, a, ranges, loops, num_src, src, num_dst, dst, mask);
}
GW_API int gw_sample_compose(int64_t rows, const int64_t* nodes, const int64_t* indptr, const uint32_t* places,
                             const int64_t* outer_indptr, const uint32_t* outer_places, uint32_t* out,
                             uint8_t* touched) {
  return gw::call_first_use(first_use_table[55], &gw_sample_compose, rows, nodes, indptr, places, outer_indptr,
                            outer_places, out, touched);
}
GW_API int gw_sampler_new(const gw_adjacency* a, const float* weights, int32_t dense, void** out) {
  return gw::call_first_use(first_use_table[56], &gw_sampler_new, a, weights, dense, out);
}
GW_API int gw_sampler_free(void* sampler) { return gw::call_first_use(first_use_table[57], &gw_sampler_free, sampler); }
GW_API int gw_sampler_name(void* sampler, const int64_t* names) {
  return gw::call_first_use(first_use_table[58], &gw_sampler_name, sampler, names);
}
GW_API int gw_sampler_exclude(void* sampler, int64_t count, const int64_t* src, const int64_t* dst) {
  return gw::call_first_use(first_use_table[59], &gw_sampler_exclude, sampler, count, src, dst);
}
GW_API int gw_sampler_reach(void* sampler, int64_t hops, const int64_t* ends, const int64_t* ids) {
  return gw::call_first_use(first_use_table[60], &gw_sampler_reach, sampler, hops, ends, ids);
}
GW_API int gw_sample_begin(void* sampler, int64_t count, const int64_t* seeds, int64_t hops, const int64_t* fanouts,
                           int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t* rows,
                           int64_t* block_edges, int64_t* totals) {
  return gw::call_first_use(first_use_table[61], &gw_sample_begin, sampler, count, seeds, hops, fanouts, replace, seed,
                            epoch, stage, rows, block_edges, totals);
}
GW_API int gw_sample_finish(void* sampler, int64_t* n_id, int64_t* inner_indptr, int32_t* inner_indices,
                            uint32_t* inner_offsets, int64_t* const* block_indptr, int32_t* const* block_indices,
                            uint32_t* const* block_offsets, void* open, int64_t* num_nodes) {
  return gw::call_first_use(first_use_table[62], &gw_sample_finish, sampler, n_id, inner_indptr, inner_indices,
                            inner_offsets, block_indptr, block_indices, block_offsets, open, num_nodes);
}
GW_API int gw_sample_times(void* sampler, int64_t hops, int64_t* times) {
  return gw::call_first_use(first_use_table[63], &gw_sample_times, sampler, hops, times);
}
GW_API int gw_steps_first(void* sampler, int64_t count, const int64_t* seeds, int64_t hops, const int64_t* fanouts,
                          int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t parts,
                          int64_t* sizes) {
  return gw::call_first_use(first_use_table[64], &gw_steps_first, sampler, count, seeds, hops, fanouts, replace, seed,
                            epoch, stage, parts, sizes);
}
GW_API int gw_steps_place(void* sampler, int64_t hop, int64_t* indptr, int32_t* indices, uint32_t* offsets,
                          void* open) {
  return gw::call_first_use(first_use_table[65], &gw_steps_place, sampler, hop, indptr, indices, offsets, open);
}
GW_API int gw_steps_draw(void* sampler, int64_t hop, int64_t part) {
  return gw::call_first_use(first_use_table[66], &gw_steps_draw, sampler, hop, part);
}
GW_API int gw_steps_number(void* sampler, int64_t hop, int64_t* sizes) {
  return gw::call_first_use(first_use_table[67], &gw_steps_number, sampler, hop, sizes);
}
GW_API int gw_steps_ids(void* sampler, int64_t begin, int64_t end, int64_t* out) {
  return gw::call_first_use(first_use_table[68], &gw_steps_ids, sampler, begin, end, out);
}
GW_API int gw_steps_settle(void* sampler, int64_t hop, int64_t* indptr, int32_t* indices, uint32_t* offsets) {
  return gw::call_first_use(first_use_table[69], &gw_steps_settle, sampler, hop, indptr, indices, offsets);
}
GW_API int gw_steps_inner(void* sampler, int64_t* indptr, int32_t* indices, uint32_t* offsets) {
  return gw::call_first_use(first_use_table[70], &gw_steps_inner, sampler, indptr, indices, offsets);
}
GW_API int gw_sample_edges(const gw_adjacency* a, const int64_t* nodes, int64_t first, int64_t count,
                           const int64_t* indptr, const int32_t* indices, const uint32_t* offsets, int64_t* src,
                           int64_t* dst, int64_t* ids) {
  return gw::call_first_use(first_use_table[71], &gw_sample_edges, a, nodes, first, count, indptr, indices, offsets,
                            src, dst, ids);
}
GW_API int gw_subset_new(const gw_adjacency* a, int32_t dense, void** out) {
  return gw::call_first_use(first_use_table[72], &gw_subset_new, a, dense, out);
}
GW_API int gw_subset_free(void* subset) { return gw::call_first_use(first_use_table[73], &gw_subset_free, subset); }
GW_API int gw_subset_distinct(void* subset, int64_t count, const int64_t* ids, int64_t* out, int64_t* places,
                              int64_t* made) {
  return gw::call_first_use(first_use_table[74], &gw_subset_distinct, subset, count, ids, out, places, made);
}
GW_API int gw_subset_slice(void* subset, int64_t num_rows, const int64_t* rows, int64_t num_columns,
                           const int64_t* columns, const int64_t* numbers, int64_t* edges) {
  return gw::call_first_use(first_use_table[75], &gw_subset_slice, subset, num_rows, rows, num_columns, columns,
                            numbers, edges);
}
GW_API int gw_subset_write_slice(const void* subset, int64_t* indptr, int32_t* indices, uint32_t* offsets) {
  return gw::call_first_use(first_use_table[76], &gw_subset_write_slice, subset, indptr, indices, offsets);
}
GW_API int gw_subset_candidates(void* subset, int64_t num_rows, const int64_t* rows, const double* factors,
                                const float* weights, int64_t* count) {
  return gw::call_first_use(first_use_table[77], &gw_subset_candidates, subset, num_rows, rows, factors, weights,
                            count);
}
GW_API int gw_subset_write_candidates(const void* subset, int64_t* ids, double* sums) {
  return gw::call_first_use(first_use_table[78], &gw_subset_write_candidates, subset, ids, sums);
}
GW_API int gw_ego_new(const gw_adjacency* a, const float* weights, int32_t ascending, int32_t dense, void** out) {
  return gw::call_first_use(first_use_table[79], &gw_ego_new, a, weights, ascending, dense, out);
}
GW_API int gw_ego_free(void* ego) { return gw::call_first_use(first_use_table[80], &gw_ego_free, ego); }
GW_API int gw_ego_draw(void* ego, int64_t count, const int64_t* roots, int64_t hops, const int64_t* fanouts,
                       int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t* sizes) {
  return gw::call_first_use(first_use_table[81], &gw_ego_draw, ego, count, roots, hops, fanouts, replace, seed, epoch,
                            stage, sizes);
}
GW_API int gw_ego_group(void* ego, int64_t count, const int64_t* starts, const int64_t* ids, int64_t* sizes) {
  return gw::call_first_use(first_use_table[82], &gw_ego_group, ego, count, starts, ids, sizes);
}
GW_API int gw_ego_write(const void* ego, int64_t* nodes, int64_t* owners, int64_t* indptr, int32_t* indices,
                        uint32_t* offsets) {
  return gw::call_first_use(first_use_table[83], &gw_ego_write, ego, nodes, owners, indptr, indices, offsets);
}
GW_API int gw_gemm_nn_f32_split(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w,
                                int64_t ldw, int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y,
                                int64_t ldy, const int64_t* rows, int64_t table_rows) {
  return gw::call_first_use(first_use_table[84], &gw_gemm_nn_f32_split, n, k, m, x, ldx, w, ldw, w_transposed, epilogue,
                            y, ldy, rows, table_rows);
}
GW_API int gw_gemm_terms_f32_split(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                                   const gw_epilogue_f32* epilogue, float* y, int64_t ldy) {
  return gw::call_first_use(first_use_table[85], &gw_gemm_terms_f32_split, n, m, terms, num_terms, epilogue, y, ldy);
}
GW_API int gw_gemm_tn_f32_split(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g,
                                int64_t ldg, const float* row_scale, float* dw, int64_t lddw, float* col_sum,
                                const int64_t* rows, int64_t table_rows) {
  return gw::call_first_use(first_use_table[86], &gw_gemm_tn_f32_split, n, k, m, x, ldx, g, ldg, row_scale, dw, lddw,
                            col_sum, rows, table_rows);
}
GW_API int gw_gemm_tn_terms_f32_split(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                                      const float* x, int64_t ldx, const gw_epilogue_f32* epilogue) {
  return gw::call_first_use(first_use_table[87], &gw_gemm_tn_terms_f32_split, m, lefts, num_lefts, edges, x, ldx,
                            epilogue);
}
GW_API int gw_order_by_time(const gw_adjacency* a, int64_t relations, const int64_t* bounds, const int64_t* times,
                            uint32_t* places, int64_t* sorted) {
  return gw::call_first_use(first_use_table[88], &gw_order_by_time, a, relations, bounds, times, places, sorted);
}
GW_API int gw_relation_runs_count(const gw_adjacency* a, int64_t relations, const int64_t* bounds, int64_t* begin) {
  return gw::call_first_use(first_use_table[89], &gw_relation_runs_count, a, relations, bounds, begin);
}
GW_API int gw_relation_runs(const gw_adjacency* a, int64_t relations, const int64_t* bounds, const int64_t* begin,
                            void* runs) {
  return gw::call_first_use(first_use_table[90], &gw_relation_runs, a, relations, bounds, begin, runs);
}
GW_API int gw_segment_sampler_new(const gw_adjacency* a, int64_t relations, const int64_t* bounds,
                                  const uint32_t* places, const int64_t* times, const int64_t* run_begin,
                                  const void* runs, int32_t trees, int32_t dense, void** out) {
  return gw::call_first_use(first_use_table[91], &gw_segment_sampler_new, a, relations, bounds, places, times,
                            run_begin, runs, trees, dense, out);
}
GW_API int gw_segment_sampler_free(void* sampler) {
  return gw::call_first_use(first_use_table[92], &gw_segment_sampler_free, sampler);
}
GW_API int gw_segment_begin(void* sampler, int64_t count, const int64_t* seeds, const int64_t* keys, const int64_t* low,
                            const int64_t* high, int64_t hops, const int64_t* fanouts, int32_t replace, int32_t recent,
                            uint64_t seed, uint64_t epoch, uint64_t stage, int64_t left_out, const int64_t* left_tree,
                            const int64_t* left_relation, const int64_t* left_src, const int64_t* left_dst,
                            int64_t* rows, int64_t* edges, int64_t* totals) {
  return gw::call_first_use(first_use_table[93], &gw_segment_begin, sampler, count, seeds, keys, low, high, hops,
                            fanouts, replace, recent, seed, epoch, stage, left_out, left_tree, left_relation, left_src,
                            left_dst, rows, edges, totals);
}
GW_API int gw_segment_finish(void* sampler, int64_t* n_id, int64_t* tree, int64_t* indptr, int32_t* indices,
                             uint32_t* offsets, int64_t* const* block_indptr, int32_t* const* block_indices,
                             uint32_t* const* block_offsets, int64_t* run_begin, void* runs) {
  return gw::call_first_use(first_use_table[94], &gw_segment_finish, sampler, n_id, tree, indptr, indices, offsets,
                            block_indptr, block_indices, block_offsets, run_begin, runs);
}
GW_API int gw_flat_count(const gw_flat_rows* x, int64_t columns, int64_t* by_row, int64_t* by_column) {
  return gw::call_first_use(first_use_table[95], &gw_flat_count, x, columns, by_row, by_column);
}
GW_API int gw_flat_cuts_of(const int64_t* indptr, int64_t rows, int64_t width, int64_t capacity, int64_t* row,
                           int64_t* at, int64_t* count) {
  return gw::call_first_use(first_use_table[96], &gw_flat_cuts_of, indptr, rows, width, capacity, row, at, count);
}
GW_API int gw_flat_matmul_f32(const gw_flat_rows* x, const gw_flat_cuts* cuts, int64_t first, int64_t columns,
                              const float* w, int64_t ldw, int64_t width, float* y, int64_t ldy) {
  return gw::call_first_use(first_use_table[97], &gw_flat_matmul_f32, x, cuts, first, columns, w, ldw, width, y, ldy);
}
GW_API int gw_flat_contract_f32(const gw_flat_rows* x, const gw_flat_cuts* cuts, int64_t columns, const float* g,
                                int64_t ldg, int64_t width, float* sums, int64_t* seen, float* ended, int32_t last) {
  return gw::call_first_use(first_use_table[98], &gw_flat_contract_f32, x, cuts, columns, g, ldg, width, sums, seen,
                            ended, last);
}
GW_API int gw_typed_weight_room(const gw_typed_weight* w, int64_t types, int64_t* floats) {
  return gw::call_first_use(first_use_table[99], &gw_typed_weight_room, w, types, floats);
}
GW_API int gw_typed_outer_room(const struct gw_typed_rows* rows, int64_t heads, int64_t in, int64_t out,
                               int64_t* floats) {
  return gw::call_first_use(first_use_table[100], &gw_typed_outer_room, rows, heads, in, out, floats);
}
GW_API int gw_typed_matmul_f32(const struct gw_typed_rows* rows, const gw_typed_weight* w, const float* bias,
                               const float* x, float* room, float* y) {
  return gw::call_first_use(first_use_table[101], &gw_typed_matmul_f32, rows, w, bias, x, room, y);
}
GW_API int gw_typed_row_sums_f32(const struct gw_typed_rows* rows, int64_t width, const float* x, float* room,
                                 float* out) {
  return gw::call_first_use(first_use_table[102], &gw_typed_row_sums_f32, rows, width, x, room, out);
}
GW_API int gw_edge_softmax_f32(const gw_adjacency* adj, int64_t heads, const float* x, float* out) {
  return gw::call_first_use(first_use_table[103], &gw_edge_softmax_f32, adj, heads, x, out);
}
GW_API int gw_edge_softmax_grad_f32(const gw_adjacency* adj, int64_t heads, const float* s, const float* g, float* dx) {
  return gw::call_first_use(first_use_table[104], &gw_edge_softmax_grad_f32, adj, heads, s, g, dx);
}
GW_API int gw_typed_outer_rows_f32(const struct gw_typed_rows* rows, int64_t heads, int64_t in, int64_t out,
                                   const float* x, const float* y, float* room, float* result) {
  return gw::call_first_use(first_use_table[105], &gw_typed_outer_rows_f32, rows, heads, in, out, x, y, room, result);
}
GW_API int gw_typed_spmm_f32(const gw_typed_pairs* pairs, int32_t turned, const float* x, const gw_typed_weight* w,
                             const float* weight, int64_t weight_heads, float* room, float* t, float* y) {
  return gw::call_first_use(first_use_table[106], &gw_typed_spmm_f32, pairs, turned, x, w, weight, weight_heads, room,
                            t, y);
}
GW_API int gw_typed_outer_f32(const gw_typed_pairs* pairs, int64_t heads, int64_t in, int64_t out, const float* src,
                              const float* dst, const float* weight, int64_t weight_heads, float* room, float* result) {
  return gw::call_first_use(first_use_table[107], &gw_typed_outer_f32, pairs, heads, in, out, src, dst, weight,
                            weight_heads, room, result);
}
GW_API int gw_typed_dots_f32(const gw_typed_pairs* pairs, const float* src, const float* dst, const gw_typed_weight* w,
                             int64_t out_heads, float* room, float* out) {
  return gw::call_first_use(first_use_table[108], &gw_typed_dots_f32, pairs, src, dst, w, out_heads, room, out);
}
GW_API int gw_typed_group(const gw_adjacency* adj, int32_t turned, int64_t types, const int64_t* offsets, int32_t wide,
                          void* src, void* dst, uint8_t* on_dst, int64_t* pairs, void* other, void* edge) {
  return gw::call_first_use(first_use_table[109], &gw_typed_group, adj, turned, types, offsets, wide, src, dst, on_dst,
                            pairs, other, edge);
}
GW_API int gw_typed_list(int64_t nodes, int64_t types, const int64_t* offsets, int32_t wide, const uint8_t* on_dst,
                         const int64_t* first_pair, const void* edge, void* src, void* dst, void* node,
                         int64_t* entries, void* const* sums) {
  return gw::call_first_use(first_use_table[110], &gw_typed_list, nodes, types, offsets, wide, on_dst, first_pair, edge,
                            src, dst, node, entries, sums);
}
GW_API int gw_typed_degrees(const gw_adjacency* adj, int32_t turned, int64_t types, const int64_t* offsets,
                            int32_t wide, int32_t bytes, void* ends, void* out) {
  return gw::call_first_use(first_use_table[111], &gw_typed_degrees, adj, turned, types, offsets, wide, bytes, ends,
                            out);
}
GW_API int gw_typed_sort(int64_t count, const int64_t* ids, int64_t types, const int64_t* bounds, int64_t* order,
                         int64_t* place, int64_t* counts) {
  return gw::call_first_use(first_use_table[112], &gw_typed_sort, count, ids, types, bounds, order, place, counts);
}
GW_API int gw_typed_ends(int64_t edges, const int64_t* order, const int64_t* place, const int64_t* from,
                         const int64_t* to, int32_t wide, void* src, void* dst) {
  return gw::call_first_use(first_use_table[113], &gw_typed_ends, edges, order, place, from, to, wide, src, dst);
}
GW_API int gw_typed_rows(const gw_adjacency* block, int64_t num_src, const int64_t* order, const int64_t* place,
                         const int64_t* edge_order, const int64_t* edge_place, int32_t wide, int64_t* indptr,
                         void* indices, void* ids) {
  return gw::call_first_use(first_use_table[114], &gw_typed_rows, block, num_src, order, place, edge_order, edge_place,
                            wide, indptr, indices, ids);
}
GW_API int gw_typed_run_rows(const gw_adjacency* block, const int64_t* run_begin, const void* runs,
                             const int64_t* limits, int64_t num_src, int64_t relations, const int64_t* order,
                             const int64_t* place, int32_t wide, int64_t* counts, int64_t* indptr, void* indices,
                             void* ids) {
  return gw::call_first_use(first_use_table[115], &gw_typed_run_rows, block, run_begin, runs, limits, num_src,
                            relations, order, place, wide, counts, indptr, indices, ids);
}
}
