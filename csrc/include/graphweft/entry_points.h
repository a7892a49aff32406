// The core's entry points, which csrc/core/*.cpp document, and a list of them in the order of their names.
// Written by csrc/bindings.py from these sources; read by replay.cpp and the tests.
#pragma once

#include <cstdint>

#include "graphweft/abi.h"
#include "graphweft/adjacency.h"
#include "graphweft/attention.h"
#include "graphweft/batch_norm.h"
#include "graphweft/flat_rows.h"
#include "graphweft/nest.h"
#include "graphweft/optim.h"
#include "graphweft/replay.h"
#include "graphweft/typed_rows.h"

extern "C" {
GW_API int gw_max_threads(void);
GW_API int gw_thread_width(int32_t threads);
GW_API int gw_leaky_relu_f32(int64_t n, double alpha, const float* x, float* y);
GW_API int gw_leaky_relu_grad_f32(int64_t n, double alpha, const float* x, const float* dy, float* dx);
GW_API int gw_elu_f32(int64_t n, double alpha, const float* x, float* y);
GW_API int gw_elu_grad_f32(int64_t n, double alpha, const float* y, const float* dy, float* dx);
GW_API int gw_head_dots_f32(int64_t n, int64_t heads, int64_t channels, const float* x, const float* a, float* out);
GW_API int gw_head_products_f32(int64_t n, int64_t heads, int64_t channels, const float* s, const float* a,
                                const float* x, float* y);
GW_API int gw_head_sums_f32(int64_t n, int64_t heads, int64_t channels, const float* s, const float* x, float* out);
GW_API int gw_attend_f32(const gw_adjacency* adj, const gw_attention_f32* operands, float* out, float* stats);
GW_API int gw_attend_grad_f32(const gw_adjacency* adj, const gw_adjacency* transposed, const gw_attention_f32* operands,
                              const float* stats, const float* out, const float* dout,
                              const gw_attention_grad_f32* grad, float* room);
GW_API int gw_batch_norm_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* weight, const float* bias,
                             double eps, int32_t relu, float* stats, float* y, int64_t ldy);
GW_API int gw_normalise_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* mean, const float* variance,
                            const float* weight, const float* bias, double eps, int32_t relu, float* y, int64_t ldy);
GW_API int gw_batch_norm_grad_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const float* dy, int64_t lddy,
                                  const float* weight, const float* stats, double eps, float* dx, int64_t lddx,
                                  float* dweight, float* dbias);
GW_API int gw_track_moments_f32(int64_t f, int64_t rows, const float* stats, double momentum, float* mean,
                                float* variance);
GW_API int gw_track_norms_f32(const gw_tracked_norm_f32* table, int64_t norms, int64_t rows);
GW_API int gw_ids_summary(int32_t wide, int64_t n, const void* ids, int64_t* low, int64_t* high, int32_t* ascending);
GW_API int gw_ids_require(int32_t wide, int64_t n, const void* ids, int64_t bound, const char* what);
GW_API int gw_coo_to_csr(int32_t wide_in, int64_t num_edges, const void* rows, const void* cols, int64_t num_rows,
                         int64_t num_cols, int32_t wide_out, int64_t* indptr, void* indices, void* edge_ids);
GW_API int gw_csr_transpose(const gw_adjacency* a, int32_t payload_bytes, const void* payload_in, int64_t* indptr,
                            void* indices, void* payload);
GW_API int gw_csr_check(const gw_adjacency* a);
GW_API int gw_row_sample_sizes(const gw_adjacency* a, const float* weights, int64_t k, int32_t replace,
                               int64_t* indptr);
GW_API int gw_row_sample(const gw_adjacency* a, const float* weights, int64_t k, int32_t replace, const int64_t* nodes,
                         uint64_t seed, uint64_t epoch, uint64_t stage, uint32_t hop, const int64_t* indptr,
                         int64_t* positions, float* factors);
GW_API int gw_draw_nodes(int64_t n, const int64_t* ids, const double* weights, int64_t k, int32_t replace,
                         uint64_t seed, uint64_t epoch, uint64_t stage, uint32_t hop, int64_t* places, double* factors,
                         int64_t* count);
GW_API int gw_draw_items(int64_t count, const int64_t* items, int64_t n, const double* running, uint64_t seed,
                         uint64_t epoch, uint64_t stage, int64_t* out);
GW_API int gw_running_sums(const gw_adjacency* a, const float* weights, double* out);
GW_API int gw_random_walk(const gw_adjacency* a, int64_t count, const int64_t* starts, const int64_t* items,
                          int64_t length, const double* running, double p, double q, double restart, uint64_t seed,
                          uint64_t epoch, uint64_t stage, int64_t* out);
GW_API int gw_permutation(int64_t n, uint64_t seed, uint64_t epoch, int64_t* out);
GW_API int gw_deal_edges(const int64_t* src, const int64_t* dst, int64_t n, const void* part, int32_t part_bytes,
                         const void* new_id, int32_t wide, int64_t parts, int64_t* cuts, void* pairs);
GW_API int gw_compress_pairs(const void* pairs, int64_t n, int64_t first, int64_t rows, int32_t wide, int32_t once,
                             int64_t* indptr, void* sources);
GW_API int gw_gather_int8_rows(const int8_t* levels, int64_t rows, int64_t width, int64_t ld, const float* scale,
                               const float* offset, const int64_t* ids, int64_t n, float* out);
GW_API int gw_dense_count_nonzero(int32_t wide_values, int64_t rows, int64_t width, int64_t ld, const void* x,
                                  int64_t* counts);
GW_API int gw_csr_from_dense(int32_t wide_values, int64_t rows, int64_t width, int64_t ld, const void* x,
                             const int64_t* indptr, int32_t wide, void* indices, void* values);
GW_API int gw_csr_to_dense(const gw_adjacency* a, int32_t wide_values, const void* values, int64_t ld, void* out);
GW_API int gw_require_finite(int32_t wide_values, int64_t n, const void* values);
GW_API int gw_csr_merge_equal(const gw_adjacency* a, int32_t wide_values, const void* values, int64_t* indptr,
                              void* indices, void* out);
GW_API int gw_csr_normalize_rows(const gw_adjacency* a, int32_t wide_values, const void* values, void* out);
GW_API int gw_dense_normalize_rows(int32_t wide_values, int64_t rows, int64_t width, int64_t ld, const void* x,
                                   void* out);
GW_API int gw_fingerprint(const void* memory, int64_t bytes, uint64_t* out);
GW_API int gw_flat_count(const gw_flat_rows* x, int64_t columns, int64_t* by_row, int64_t* by_column);
GW_API int gw_flat_cuts_of(const int64_t* indptr, int64_t rows, int64_t width, int64_t capacity, int64_t* row,
                           int64_t* at, int64_t* count);
GW_API int gw_flat_matmul_f32(const gw_flat_rows* x, const gw_flat_cuts* cuts, int64_t first, int64_t columns,
                              const float* w, int64_t ldw, int64_t width, float* y, int64_t ldy);
GW_API int gw_flat_contract_f32(const gw_flat_rows* x, const gw_flat_cuts* cuts, int64_t columns, const float* g,
                                int64_t ldg, int64_t width, float* sums, int64_t* seen, float* ended, int32_t last);
GW_API int gw_gemm_nn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w, int64_t ldw,
                          int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y, int64_t ldy,
                          const int64_t* rows, int64_t table_rows);
GW_API int gw_gemm_terms_f32(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                             const gw_epilogue_f32* epilogue, float* y, int64_t ldy);
GW_API int gw_gemm_tn_f32(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g, int64_t ldg,
                          const float* row_scale, float* dw, int64_t lddw, float* col_sum, const int64_t* rows,
                          int64_t table_rows);
GW_API int gw_gemm_tn_half_f32(int64_t n, int64_t k, int64_t m, const uint16_t* x, int64_t ldx, const float* g,
                               int64_t ldg, float* dw, int64_t lddw, float* col_sum, const int64_t* rows,
                               int64_t table_rows);
GW_API int gw_gemm_tn_terms_f32(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                                const float* x, int64_t ldx, const gw_epilogue_f32* epilogue);
GW_API int gw_half_unit(int32_t most, int32_t* used);
GW_API int gw_gemm_nn_f32_bf16(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w,
                               int64_t ldw, int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y,
                               int64_t ldy, const int64_t* rows, int64_t table_rows);
GW_API int gw_gemm_terms_f32_bf16(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                                  const gw_epilogue_f32* epilogue, void* y, int64_t ldy, int32_t half);
GW_API int gw_gemm_tn_f32_bf16(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g,
                               int64_t ldg, const float* row_scale, float* dw, int64_t lddw, float* col_sum,
                               const int64_t* rows, int64_t table_rows);
GW_API int gw_gemm_tn_half_f32_bf16(int64_t n, int64_t k, int64_t m, const void* x, int64_t ldx, int32_t half_x,
                                    const void* g, int64_t ldg, int32_t half_g, float* dw, int64_t lddw, float* col_sum,
                                    const int64_t* rows, int64_t table_rows);
GW_API int gw_gemm_tn_terms_f32_bf16(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                                     const void* x, int64_t ldx, int32_t half, const gw_epilogue_f32* epilogue);
GW_API int gw_gemm_nn_f32_split(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* w,
                                int64_t ldw, int32_t w_transposed, const gw_epilogue_f32* epilogue, float* y,
                                int64_t ldy, const int64_t* rows, int64_t table_rows);
GW_API int gw_gemm_terms_f32_split(int64_t n, int64_t m, const gw_term_f32* terms, int64_t num_terms,
                                   const gw_epilogue_f32* epilogue, float* y, int64_t ldy);
GW_API int gw_gemm_tn_f32_split(int64_t n, int64_t k, int64_t m, const float* x, int64_t ldx, const float* g,
                                int64_t ldg, const float* row_scale, float* dw, int64_t lddw, float* col_sum,
                                const int64_t* rows, int64_t table_rows);
GW_API int gw_gemm_tn_terms_f32_split(int64_t m, const gw_left_f32* lefts, int64_t num_lefts, const gw_adjacency* edges,
                                      const float* x, int64_t ldx, const gw_epilogue_f32* epilogue);
GW_API int gw_generate_permutation(int64_t n, uint64_t seed, uint64_t stream, int32_t* out);
GW_API int gw_generate_weights(int64_t n, uint64_t seed, uint64_t stream, double low, double high, double exponent,
                               uint32_t* out);
GW_API int gw_generate_split(int64_t n, const uint32_t* weights, int64_t total, int64_t cap, int64_t* ptr);
GW_API int gw_generate_alias(int64_t n, int64_t num_blocks, const int64_t* block_ptr, const uint32_t* weights,
                             void* slot_cells, void* block_cells);
GW_API int gw_generate_links(int64_t n, int64_t num_blocks, const int64_t* block_ptr, const void* slot_cells,
                             const void* block_cells, uint64_t seed, double inside_share, const int64_t* own_ptr,
                             int32_t* own);
GW_API int gw_generate_compress(int64_t n, const int64_t* own_ptr, const int32_t* own, const int32_t* members,
                                int64_t back, int64_t* cursor, int64_t* indptr, int32_t* indices);
GW_API int gw_generate_labels(int64_t n, int64_t num_blocks, const int64_t* block_ptr, const int32_t* class_of_block,
                              int64_t num_classes, uint64_t seed, double noise, const int32_t* members, int32_t* topic,
                              int64_t* label);
GW_API int gw_generate_values_f32(int64_t rows, int64_t width, const int32_t* topic, uint64_t seed, uint64_t stream,
                                  const float* centers, const float* quantiles, float* out);
GW_API int gw_generate_bits_f32(int64_t rows, int64_t width, const int32_t* topic, uint64_t seed, uint64_t stream,
                                const int32_t* chances, float* out);
GW_API int gw_generate_words(int64_t rows, int64_t width, const int32_t* topic, int64_t num_topics, uint64_t seed,
                             double focus, const uint32_t* popularity, const int64_t* indptr, int32_t* indices);
GW_API int gw_run_nest(const gw_adjacency* adj, const gw_nest* nest, const void* const* in, void* const* out);
GW_API int gw_run_rows(gw_row_kernel rows, int64_t count, const float* const* in, float* out);
GW_API int gw_cross_entropy_f32(int64_t n, int64_t c, const float* logits, int64_t ld, const int64_t* rows,
                                int64_t num_rows, const int64_t* labels, double scale, float* grad, int64_t ld_grad,
                                double* loss_sum, int64_t* correct);
GW_API int gw_entry_loss_f32(int32_t squared, int64_t n, int64_t c, const float* values, int64_t ld,
                             const int64_t* rows, int64_t num_rows, const float* labels, int64_t ld_labels,
                             double scale, float* grad, int64_t ld_grad, double* loss_sum, int64_t* counts);
GW_API int gw_edge_margins_f32(const gw_adjacency* adj, const float* scores, int64_t heads, float* out);
GW_API int gw_edge_margins_f64(const gw_adjacency* adj, const double* scores, int64_t heads, double* out);
GW_API int gw_edge_margins_grad_f32(const gw_adjacency* adj, const float* scores, const float* dout, int64_t heads,
                                    int32_t closed, float* grad);
GW_API int gw_edge_margins_grad_f64(const gw_adjacency* adj, const double* scores, const double* dout, int64_t heads,
                                    int32_t closed, double* grad);
GW_API int gw_pages_map(int64_t bytes, void** out);
GW_API int gw_heap_trim(void);
GW_API int gw_pages_unmap(void* pages, int64_t bytes);
GW_API int gw_multilevel_cluster(const gw_adjacency* a, int64_t first, const int32_t* edge_weight,
                                 const int32_t* node_weight, const int32_t* labels, const int64_t* most,
                                 int32_t* cluster, int64_t* heavy, int64_t* moved);
GW_API int gw_multilevel_contract(const gw_adjacency* a, int64_t first, const int32_t* edge_weight,
                                  const int32_t* cluster, int64_t clusters, double kept, int64_t* indptr,
                                  int32_t* indices, int32_t* weights);
GW_API int gw_multilevel_merge(const int64_t* a_indptr, const int32_t* a_indices, const int32_t* a_weights,
                               const int64_t* b_indptr, const int32_t* b_indices, const int32_t* b_weights,
                               int64_t clusters, double kept, int64_t* indptr, int32_t* indices, int32_t* weights);
GW_API int gw_multilevel_place(const gw_adjacency* a, int64_t first, const int32_t* edge_weight,
                               const int32_t* node_weight, const int32_t* labels, const int64_t* order, int64_t k,
                               int64_t num_labels, const double* target, const int32_t* counted, const double* limits,
                               int32_t* part, int64_t* counts, double* spread, int64_t* moved);
GW_API int gw_negative_pairs(const gw_adjacency* a, const int64_t* ranges, int32_t loops, int64_t count,
                             const int64_t* keys, int64_t per, uint64_t seed, uint64_t epoch, uint64_t stage,
                             int64_t* src, int64_t* dst);
GW_API int gw_negative_tails(const gw_adjacency* a, const int64_t* ranges, int32_t loops, int64_t count,
                             const int64_t* keys, int64_t per, uint64_t seed, uint64_t epoch, uint64_t stage,
                             const int64_t* src, int64_t* dst);
GW_API int gw_has_edges(const gw_adjacency* a, int64_t count, const int64_t* src, const int64_t* dst, uint8_t* found);
GW_API int gw_negative_mask(const gw_adjacency* a, const int64_t* ranges, int32_t loops, int64_t num_src,
                            const int64_t* src, int64_t num_dst, const int64_t* dst, uint8_t* mask);
GW_API int gw_sample_compose(int64_t rows, const int64_t* nodes, const int64_t* indptr, const uint32_t* places,
                             const int64_t* outer_indptr, const uint32_t* outer_places, uint32_t* out,
                             uint8_t* touched);
GW_API int gw_adam_f32(const gw_adam_tensor_f32* table, int64_t count);
GW_API int gw_sgd_f32(const gw_sgd_tensor_f32* table, int64_t count);
GW_API int gw_partition_stream(const gw_adjacency* a, int64_t k, int64_t num_labels, const int32_t* labels,
                               double scale, int32_t exhaustive, int32_t* part, int64_t* steps);
GW_API int gw_partition_measure(const gw_adjacency* a, int64_t k, const int32_t* part, int64_t* cut, int64_t* halo);
GW_API int gw_replay(const gw_cell* cells, int64_t num_cells, const uint64_t* values, const gw_call* calls,
                     int64_t num_calls, int64_t* done);
GW_API int gw_read_rows_f32(const int32_t* handles, int32_t* direct, int64_t count, const int32_t* file,
                            const int64_t* begin, const int64_t* room, const int64_t* least, const int64_t* skip,
                            const int64_t* width, const int64_t* rows, const int64_t* row, const int64_t* place,
                            int32_t type, float* table, int64_t columns, int64_t threads, int64_t buffer_bytes,
                            int64_t* told);
GW_API int gw_rows_apply_f32(int64_t n, int64_t f, const float* x, int64_t ldx, const gw_epilogue_f32* epilogue,
                             float* y, int64_t ldy, const int64_t* rows, int64_t table_rows);
GW_API int gw_rows_apply_half_f32(int64_t n, int64_t f, const uint16_t* x, int64_t ldx, const gw_epilogue_f32* epilogue,
                                  float* y, int64_t ldy, const int64_t* rows, int64_t table_rows);
GW_API int gw_col_sum_f32(int64_t n, int64_t f, const float* x, int64_t ldx, float* out);
GW_API int gw_dot_f32(int64_t count, const float* x, const float* y, float* out);
GW_API int gw_row_sum_f32(int64_t n, int64_t f, const float* x, int64_t ldx, float* out);
GW_API int gw_part_sum_f32(int64_t n, int64_t parts, int64_t f, const float* x, float* y);
GW_API int gw_power_f32(int64_t count, const float* x, double shift, double exponent, float* y);
GW_API int gw_dropout_f32(int64_t n, int64_t f, const float* x, int64_t ldx, double p, uint64_t seed, uint64_t stream,
                          float* y, int64_t ldy, const int64_t* rows, int64_t table_rows);
GW_API int gw_gather_rows(const void* table, int64_t rows, int64_t stride, int64_t bytes, const int64_t* ids, int64_t n,
                          void* out);
GW_API int gw_sampler_new(const gw_adjacency* a, const float* weights, int32_t dense, void** out);
GW_API int gw_sampler_free(void* sampler);
GW_API int gw_sampler_name(void* sampler, const int64_t* names);
GW_API int gw_sampler_exclude(void* sampler, int64_t count, const int64_t* src, const int64_t* dst);
GW_API int gw_sampler_reach(void* sampler, int64_t hops, const int64_t* ends, const int64_t* ids);
GW_API int gw_sample_begin(void* sampler, int64_t count, const int64_t* seeds, int64_t hops, const int64_t* fanouts,
                           int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t* rows,
                           int64_t* block_edges, int64_t* totals);
GW_API int gw_sample_finish(void* sampler, int64_t* n_id, int64_t* inner_indptr, int32_t* inner_indices,
                            uint32_t* inner_offsets, int64_t* const* block_indptr, int32_t* const* block_indices,
                            uint32_t* const* block_offsets, void* open, int64_t* num_nodes);
GW_API int gw_sample_times(void* sampler, int64_t hops, int64_t* times);
GW_API int gw_steps_first(void* sampler, int64_t count, const int64_t* seeds, int64_t hops, const int64_t* fanouts,
                          int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t parts,
                          int64_t* sizes);
GW_API int gw_steps_place(void* sampler, int64_t hop, int64_t* indptr, int32_t* indices, uint32_t* offsets, void* open);
GW_API int gw_steps_draw(void* sampler, int64_t hop, int64_t part);
GW_API int gw_steps_number(void* sampler, int64_t hop, int64_t* sizes);
GW_API int gw_steps_ids(void* sampler, int64_t begin, int64_t end, int64_t* out);
GW_API int gw_steps_settle(void* sampler, int64_t hop, int64_t* indptr, int32_t* indices, uint32_t* offsets);
GW_API int gw_steps_inner(void* sampler, int64_t* indptr, int32_t* indices, uint32_t* offsets);
GW_API int gw_sample_edges(const gw_adjacency* a, const int64_t* nodes, int64_t first, int64_t count,
                           const int64_t* indptr, const int32_t* indices, const uint32_t* offsets, int64_t* src,
                           int64_t* dst, int64_t* ids);
GW_API int gw_sddmm_dot_f32(const gw_adjacency* adj, const float* a, int64_t lda, const float* b, int64_t ldb,
                            int64_t width, float* out);
GW_API int gw_sddmm_dot_f64(const gw_adjacency* adj, const double* a, int64_t lda, const double* b, int64_t ldb,
                            int64_t width, double* out);
GW_API int gw_sparse_dropout_f32(const gw_adjacency* adj, const float* values, int64_t features, int32_t turned,
                                 double p, uint64_t seed, uint64_t stream, float* out);
GW_API int gw_order_by_time(const gw_adjacency* a, int64_t relations, const int64_t* bounds, const int64_t* times,
                            uint32_t* places, int64_t* sorted);
GW_API int gw_relation_runs_count(const gw_adjacency* a, int64_t relations, const int64_t* bounds, int64_t* begin);
GW_API int gw_relation_runs(const gw_adjacency* a, int64_t relations, const int64_t* bounds, const int64_t* begin,
                            void* runs);
GW_API int gw_segment_sampler_new(const gw_adjacency* a, int64_t relations, const int64_t* bounds,
                                  const uint32_t* places, const int64_t* times, const int64_t* run_begin,
                                  const void* runs, int32_t trees, int32_t dense, void** out);
GW_API int gw_segment_sampler_free(void* sampler);
GW_API int gw_segment_begin(void* sampler, int64_t count, const int64_t* seeds, const int64_t* keys, const int64_t* low,
                            const int64_t* high, int64_t hops, const int64_t* fanouts, int32_t replace, int32_t recent,
                            uint64_t seed, uint64_t epoch, uint64_t stage, int64_t left_out, const int64_t* left_tree,
                            const int64_t* left_relation, const int64_t* left_src, const int64_t* left_dst,
                            int64_t* rows, int64_t* edges, int64_t* totals);
GW_API int gw_segment_finish(void* sampler, int64_t* n_id, int64_t* tree, int64_t* indptr, int32_t* indices,
                             uint32_t* offsets, int64_t* const* block_indptr, int32_t* const* block_indices,
                             uint32_t* const* block_offsets, int64_t* run_begin, void* runs);
GW_API int gw_parts_offsets(int64_t n, const int64_t* ids, const int64_t* ptr, const int64_t* edge_ptr,
                            int64_t* out_ptr, int64_t* out_edge_ptr);
GW_API int gw_parts_places(int64_t n, const int64_t* ids, const int64_t* ptr, const int64_t* out_ptr, int64_t* places,
                           int64_t* owners);
GW_API int gw_parts_rows(int64_t n, const int64_t* ids, const int64_t* ptr, const int64_t* out_ptr, const void* table,
                         int64_t bytes, void* out);
GW_API int gw_parts_take(const gw_adjacency* a, int64_t n, const int64_t* ids, const int64_t* ptr,
                         const int64_t* out_ptr, const int64_t* out_entries, int64_t* indptr, void* indices,
                         void* edge_ids);
GW_API int gw_spmm_f32(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, const float* weight,
                       const float* src_scale, double self_coef, const float* self_factor, int32_t mean,
                       const gw_epilogue_f32* stages, int32_t prefetch, float* panel, int32_t plain, float* y,
                       int64_t ldy);
GW_API int gw_spmm_f64(const gw_adjacency* adj, const double* x, int64_t ldx, int64_t width, const double* weight,
                       const double* src_scale, double self_coef, int32_t mean, int32_t prefetch, double* panel,
                       double* y, int64_t ldy);
GW_API int gw_spmm_bf16(const gw_adjacency* adj, const uint16_t* x, int64_t ldx, int64_t width, const float* weight,
                        const float* src_scale, double self_coef, const float* self_factor, int32_t mean,
                        const gw_epilogue_f32* stages, int32_t prefetch, uint16_t* panel, int32_t plain, int32_t wide,
                        void* y, int64_t ldy);
GW_API int gw_spmm_f32_bf16(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, const float* weight,
                            const float* src_scale, double self_coef, const float* self_factor, int32_t mean,
                            const gw_epilogue_f32* stages, int32_t prefetch, uint16_t* panel, float* y, int64_t ldy);
GW_API int gw_spmm_max_f32(const gw_adjacency* adj, const float* x, int64_t ldx, int64_t width, int32_t minimum,
                           float* panel, float* y, int64_t ldy, void* arg, int64_t ldarg);
GW_API int gw_spmm_max_f64(const gw_adjacency* adj, const double* x, int64_t ldx, int64_t width, int32_t minimum,
                           double* panel, double* y, int64_t ldy, void* arg, int64_t ldarg);
GW_API int gw_spmm_max_bf16(const gw_adjacency* adj, const uint16_t* x, int64_t ldx, int64_t width, int32_t minimum,
                            uint16_t* panel, uint16_t* y, int64_t ldy, void* arg, int64_t ldarg);
GW_API int gw_spmm_max_grad_f32(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const float* dy,
                                int64_t lddy, int64_t width, float* dx, int64_t lddx);
GW_API int gw_spmm_max_grad_f64(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const double* dy,
                                int64_t lddy, int64_t width, double* dx, int64_t lddx);
GW_API int gw_spmm_max_grad_bf16(const gw_adjacency* transposed, const void* arg, int64_t ldarg, const uint16_t* dy,
                                 int64_t lddy, int64_t width, uint16_t* dx, int64_t lddx);
GW_API int gw_spmm_max_winners_f32(const void* arg, int32_t wide, int64_t ldarg, const float* dy, int64_t lddy,
                                   int64_t num_rows, int64_t width, float* dx, int64_t lddx, int64_t num_cols);
GW_API int gw_spmm_max_winners_f64(const void* arg, int32_t wide, int64_t ldarg, const double* dy, int64_t lddy,
                                   int64_t num_rows, int64_t width, double* dx, int64_t lddx, int64_t num_cols);
GW_API int gw_spmm_max_winners_bf16(const void* arg, int32_t wide, int64_t ldarg, const uint16_t* dy, int64_t lddy,
                                    int64_t num_rows, int64_t width, uint16_t* dx, int64_t lddx, int64_t num_cols);
GW_API int gw_stretches_sizes(const gw_adjacency* adj, int64_t width, int64_t count, int64_t* columns, int64_t* pieces,
                              int64_t* rows);
GW_API int gw_stretches_fill(const gw_adjacency* adj, int64_t width, int64_t count, int64_t columns, int64_t* rows,
                             int64_t* entries, uint16_t* lengths, int32_t* behind, uint16_t* inside, int32_t* made);
GW_API int gw_csr_has_loops(const gw_adjacency* a, int32_t* out);
GW_API int gw_csr_is_symmetric(const gw_adjacency* a, int32_t* out);
GW_API int gw_csr_columns_ascend(const gw_adjacency* a, int32_t strict, int32_t* out);
GW_API int gw_csr_ids_ascend(const gw_adjacency* a, int32_t* out);
GW_API int gw_csr_count_columns(const gw_adjacency* a, int64_t* counts);
GW_API int gw_csr_row_degrees(const gw_adjacency* a, int32_t inverse, float* out);
GW_API int gw_csr_to_coo(const gw_adjacency* a, int64_t* rows, int64_t* cols);
GW_API int gw_csr_take_rows(const gw_adjacency* a, int64_t n, const int64_t* rows, const int64_t* indptr,
                            int32_t payload_bytes, const void* payload_in, void* indices, void* payload);
GW_API int gw_csr_renumber(const gw_adjacency* a, int64_t n, const int64_t* rows, const void* place,
                           const int64_t* indptr, void* indices, void* edge_ids);
GW_API int gw_csr_thin(const gw_adjacency* a, int64_t most, const int64_t* indptr, void* indices);
GW_API int gw_csr_clear_loops(const gw_adjacency* a, uint8_t* member);
GW_API int gw_csr_filter(const gw_adjacency* a, const uint8_t* member, int64_t* indptr, void* indices, void* edge_ids);
GW_API int gw_csr_unite(const gw_adjacency* a, const gw_adjacency* b, int64_t* indptr, void* indices);
GW_API int gw_csr_clear_common(const gw_adjacency* a, const gw_adjacency* b, uint8_t* member);
GW_API int gw_csr_concat(const gw_adjacency* a, const gw_adjacency* b, const int64_t* indptr, void* indices,
                         void* edge_ids);
GW_API int gw_subset_new(const gw_adjacency* a, int32_t dense, void** out);
GW_API int gw_subset_free(void* subset);
GW_API int gw_subset_distinct(void* subset, int64_t count, const int64_t* ids, int64_t* out, int64_t* places,
                              int64_t* made);
GW_API int gw_subset_slice(void* subset, int64_t num_rows, const int64_t* rows, int64_t num_columns,
                           const int64_t* columns, const int64_t* numbers, int64_t* edges);
GW_API int gw_subset_write_slice(const void* subset, int64_t* indptr, int32_t* indices, uint32_t* offsets);
GW_API int gw_subset_candidates(void* subset, int64_t num_rows, const int64_t* rows, const double* factors,
                                const float* weights, int64_t* count);
GW_API int gw_subset_write_candidates(const void* subset, int64_t* ids, double* sums);
GW_API int gw_ego_new(const gw_adjacency* a, const float* weights, int32_t ascending, int32_t dense, void** out);
GW_API int gw_ego_free(void* ego);
GW_API int gw_ego_draw(void* ego, int64_t count, const int64_t* roots, int64_t hops, const int64_t* fanouts,
                       int32_t replace, uint64_t seed, uint64_t epoch, uint64_t stage, int64_t* sizes);
GW_API int gw_ego_group(void* ego, int64_t count, const int64_t* starts, const int64_t* ids, int64_t* sizes);
GW_API int gw_ego_write(const void* ego, int64_t* nodes, int64_t* owners, int64_t* indptr, int32_t* indices,
                        uint32_t* offsets);
GW_API int gw_typed_weight_room(const gw_typed_weight* w, int64_t types, int64_t* floats);
GW_API int gw_typed_outer_room(const gw_typed_rows* rows, int64_t heads, int64_t in, int64_t out, int64_t* floats);
GW_API int gw_typed_matmul_f32(const gw_typed_rows* rows, const gw_typed_weight* w, const float* bias, const float* x,
                               float* room, float* y);
GW_API int gw_typed_row_sums_f32(const gw_typed_rows* rows, int64_t width, const float* x, float* room, float* out);
GW_API int gw_edge_softmax_f32(const gw_adjacency* adj, int64_t heads, const float* x, float* out);
GW_API int gw_edge_softmax_grad_f32(const gw_adjacency* adj, int64_t heads, const float* s, const float* g, float* dx);
GW_API int gw_typed_outer_rows_f32(const gw_typed_rows* rows, int64_t heads, int64_t in, int64_t out, const float* x,
                                   const float* y, float* room, float* result);
GW_API int gw_typed_spmm_f32(const gw_typed_pairs* pairs, int32_t turned, const float* x, const gw_typed_weight* w,
                             const float* weight, int64_t weight_heads, float* room, float* t, float* y);
GW_API int gw_typed_outer_f32(const gw_typed_pairs* pairs, int64_t heads, int64_t in, int64_t out, const float* src,
                              const float* dst, const float* weight, int64_t weight_heads, float* room, float* result);
GW_API int gw_typed_dots_f32(const gw_typed_pairs* pairs, const float* src, const float* dst, const gw_typed_weight* w,
                             int64_t out_heads, float* room, float* out);
GW_API int gw_typed_group(const gw_adjacency* adj, int32_t turned, int64_t types, const int64_t* offsets, int32_t wide,
                          void* src, void* dst, uint8_t* on_dst, int64_t* pairs, void* other, void* edge);
GW_API int gw_typed_list(int64_t nodes, int64_t types, const int64_t* offsets, int32_t wide, const uint8_t* on_dst,
                         const int64_t* first_pair, const void* edge, void* src, void* dst, void* node,
                         int64_t* entries, void* const* sums);
GW_API int gw_typed_degrees(const gw_adjacency* adj, int32_t turned, int64_t types, const int64_t* offsets,
                            int32_t wide, int32_t bytes, void* ends, void* out);
GW_API int gw_typed_sort(int64_t count, const int64_t* ids, int64_t types, const int64_t* bounds, int64_t* order,
                         int64_t* place, int64_t* counts);
GW_API int gw_typed_ends(int64_t edges, const int64_t* order, const int64_t* place, const int64_t* from,
                         const int64_t* to, int32_t wide, void* src, void* dst);
GW_API int gw_typed_rows(const gw_adjacency* block, int64_t num_src, const int64_t* order, const int64_t* place,
                         const int64_t* edge_order, const int64_t* edge_place, int32_t wide, int64_t* indptr,
                         void* indices, void* ids);
GW_API int gw_typed_run_rows(const gw_adjacency* block, const int64_t* run_begin, const void* runs,
                             const int64_t* limits, int64_t num_src, int64_t relations, const int64_t* order,
                             const int64_t* place, int32_t wide, int64_t* counts, int64_t* indptr, void* indices,
                             void* ids);
}

#define GW_ENTRY_POINTS(X)      \
  X(gw_adam_f32)                \
  X(gw_attend_f32)              \
  X(gw_attend_grad_f32)         \
  X(gw_batch_norm_f32)          \
  X(gw_batch_norm_grad_f32)     \
  X(gw_col_sum_f32)             \
  X(gw_compress_pairs)          \
  X(gw_coo_to_csr)              \
  X(gw_cross_entropy_f32)       \
  X(gw_csr_check)               \
  X(gw_csr_clear_common)        \
  X(gw_csr_clear_loops)         \
  X(gw_csr_columns_ascend)      \
  X(gw_csr_concat)              \
  X(gw_csr_count_columns)       \
  X(gw_csr_filter)              \
  X(gw_csr_from_dense)          \
  X(gw_csr_has_loops)           \
  X(gw_csr_ids_ascend)          \
  X(gw_csr_is_symmetric)        \
  X(gw_csr_merge_equal)         \
  X(gw_csr_normalize_rows)      \
  X(gw_csr_renumber)            \
  X(gw_csr_row_degrees)         \
  X(gw_csr_take_rows)           \
  X(gw_csr_thin)                \
  X(gw_csr_to_coo)              \
  X(gw_csr_to_dense)            \
  X(gw_csr_transpose)           \
  X(gw_csr_unite)               \
  X(gw_deal_edges)              \
  X(gw_dense_count_nonzero)     \
  X(gw_dense_normalize_rows)    \
  X(gw_dot_f32)                 \
  X(gw_draw_items)              \
  X(gw_draw_nodes)              \
  X(gw_dropout_f32)             \
  X(gw_edge_margins_f32)        \
  X(gw_edge_margins_f64)        \
  X(gw_edge_margins_grad_f32)   \
  X(gw_edge_margins_grad_f64)   \
  X(gw_edge_softmax_f32)        \
  X(gw_edge_softmax_grad_f32)   \
  X(gw_ego_draw)                \
  X(gw_ego_free)                \
  X(gw_ego_group)               \
  X(gw_ego_new)                 \
  X(gw_ego_write)               \
  X(gw_elu_f32)                 \
  X(gw_elu_grad_f32)            \
  X(gw_entry_loss_f32)          \
  X(gw_fingerprint)             \
  X(gw_flat_contract_f32)       \
  X(gw_flat_count)              \
  X(gw_flat_cuts_of)            \
  X(gw_flat_matmul_f32)         \
  X(gw_gather_int8_rows)        \
  X(gw_gather_rows)             \
  X(gw_gemm_nn_f32)             \
  X(gw_gemm_nn_f32_bf16)        \
  X(gw_gemm_nn_f32_split)       \
  X(gw_gemm_terms_f32)          \
  X(gw_gemm_terms_f32_bf16)     \
  X(gw_gemm_terms_f32_split)    \
  X(gw_gemm_tn_f32)             \
  X(gw_gemm_tn_f32_bf16)        \
  X(gw_gemm_tn_f32_split)       \
  X(gw_gemm_tn_half_f32)        \
  X(gw_gemm_tn_half_f32_bf16)   \
  X(gw_gemm_tn_terms_f32)       \
  X(gw_gemm_tn_terms_f32_bf16)  \
  X(gw_gemm_tn_terms_f32_split) \
  X(gw_generate_alias)          \
  X(gw_generate_bits_f32)       \
  X(gw_generate_compress)       \
  X(gw_generate_labels)         \
  X(gw_generate_links)          \
  X(gw_generate_permutation)    \
  X(gw_generate_split)          \
  X(gw_generate_values_f32)     \
  X(gw_generate_weights)        \
  X(gw_generate_words)          \
  X(gw_half_unit)               \
  X(gw_has_edges)               \
  X(gw_head_dots_f32)           \
  X(gw_head_products_f32)       \
  X(gw_head_sums_f32)           \
  X(gw_heap_trim)               \
  X(gw_ids_require)             \
  X(gw_ids_summary)             \
  X(gw_leaky_relu_f32)          \
  X(gw_leaky_relu_grad_f32)     \
  X(gw_max_threads)             \
  X(gw_multilevel_cluster)      \
  X(gw_multilevel_contract)     \
  X(gw_multilevel_merge)        \
  X(gw_multilevel_place)        \
  X(gw_negative_mask)           \
  X(gw_negative_pairs)          \
  X(gw_negative_tails)          \
  X(gw_normalise_f32)           \
  X(gw_order_by_time)           \
  X(gw_pages_map)               \
  X(gw_pages_unmap)             \
  X(gw_part_sum_f32)            \
  X(gw_partition_measure)       \
  X(gw_partition_stream)        \
  X(gw_parts_offsets)           \
  X(gw_parts_places)            \
  X(gw_parts_rows)              \
  X(gw_parts_take)              \
  X(gw_permutation)             \
  X(gw_power_f32)               \
  X(gw_random_walk)             \
  X(gw_read_rows_f32)           \
  X(gw_relation_runs)           \
  X(gw_relation_runs_count)     \
  X(gw_replay)                  \
  X(gw_require_finite)          \
  X(gw_row_sample)              \
  X(gw_row_sample_sizes)        \
  X(gw_row_sum_f32)             \
  X(gw_rows_apply_f32)          \
  X(gw_rows_apply_half_f32)     \
  X(gw_run_nest)                \
  X(gw_run_rows)                \
  X(gw_running_sums)            \
  X(gw_sample_begin)            \
  X(gw_sample_compose)          \
  X(gw_sample_edges)            \
  X(gw_sample_finish)           \
  X(gw_sample_times)            \
  X(gw_sampler_exclude)         \
  X(gw_sampler_free)            \
  X(gw_sampler_name)            \
  X(gw_sampler_new)             \
  X(gw_sampler_reach)           \
  X(gw_sddmm_dot_f32)           \
  X(gw_sddmm_dot_f64)           \
  X(gw_segment_begin)           \
  X(gw_segment_finish)          \
  X(gw_segment_sampler_free)    \
  X(gw_segment_sampler_new)     \
  X(gw_sgd_f32)                 \
  X(gw_sparse_dropout_f32)      \
  X(gw_spmm_bf16)               \
  X(gw_spmm_f32)                \
  X(gw_spmm_f32_bf16)           \
  X(gw_spmm_f64)                \
  X(gw_spmm_max_bf16)           \
  X(gw_spmm_max_f32)            \
  X(gw_spmm_max_f64)            \
  X(gw_spmm_max_grad_bf16)      \
  X(gw_spmm_max_grad_f32)       \
  X(gw_spmm_max_grad_f64)       \
  X(gw_spmm_max_winners_bf16)   \
  X(gw_spmm_max_winners_f32)    \
  X(gw_spmm_max_winners_f64)    \
  X(gw_steps_draw)              \
  X(gw_steps_first)             \
  X(gw_steps_ids)               \
  X(gw_steps_inner)             \
  X(gw_steps_number)            \
  X(gw_steps_place)             \
  X(gw_steps_settle)            \
  X(gw_stretches_fill)          \
  X(gw_stretches_sizes)         \
  X(gw_subset_candidates)       \
  X(gw_subset_distinct)         \
  X(gw_subset_free)             \
  X(gw_subset_new)              \
  X(gw_subset_slice)            \
  X(gw_subset_write_candidates) \
  X(gw_subset_write_slice)      \
  X(gw_thread_width)            \
  X(gw_track_moments_f32)       \
  X(gw_track_norms_f32)         \
  X(gw_typed_degrees)           \
  X(gw_typed_dots_f32)          \
  X(gw_typed_ends)              \
  X(gw_typed_group)             \
  X(gw_typed_list)              \
  X(gw_typed_matmul_f32)        \
  X(gw_typed_outer_f32)         \
  X(gw_typed_outer_room)        \
  X(gw_typed_outer_rows_f32)    \
  X(gw_typed_row_sums_f32)      \
  X(gw_typed_rows)              \
  X(gw_typed_run_rows)          \
  X(gw_typed_sort)              \
  X(gw_typed_spmm_f32)          \
  X(gw_typed_weight_room)
