"""Structures and signatures of the native core's entry points.

Written by ``csrc/bindings.py`` from the C++ sources; changes are made there. Read by ``_native.py``.
"""

from __future__ import annotations

import ctypes
from typing import Any

HASH = "9ecc1e2d26b9c919"
_P = ctypes.c_void_p
_I32 = ctypes.c_int32
_U32 = ctypes.c_uint32
_I64 = ctypes.c_int64
_U64 = ctypes.c_uint64
_F64 = ctypes.c_double


class Stretches(ctypes.Structure):
    """``gw_stretches`` of adjacency.h."""

    _fields_ = (
        ("indptr", _P),
        ("count", _I64),
        ("columns", _I64),
        ("pieces", _I64),
        ("rows", _P),
        ("entries", _P),
        ("lengths", _P),
        ("behind", _P),
        ("inside", _P),
    )


class Adjacency(ctypes.Structure):
    """``gw_adjacency`` of adjacency.h."""

    _fields_ = (
        ("num_rows", _I64),
        ("num_cols", _I64),
        ("num_edges", _I64),
        ("indptr", _P),
        ("indices", _P),
        ("edge_ids", _P),
        ("wide", _I32),
        ("stretches", ctypes.POINTER(Stretches)),
    )


class Attention(ctypes.Structure):
    """``gw_attention_f32`` of attention.h."""

    _fields_ = (
        ("score", _I32),
        ("shared", _I32),
        ("heads", _I64),
        ("channels", _I64),
        ("slope", _F64),
        ("scale", _F64),
        ("drop", _F64),
        ("seed", _U64),
        ("stream", _U64),
        ("value", _P),
        ("src", _P),
        ("dst", _P),
        ("vector", _P),
    )


class AttentionGrad(ctypes.Structure):
    """``gw_attention_grad_f32`` of attention.h."""

    _fields_ = (
        ("value", _P),
        ("src", _P),
        ("dst", _P),
        ("vector", _P),
        ("slopes", _P),
    )


class TrackedNorm(ctypes.Structure):
    """``gw_tracked_norm_f32`` of batch_norm.h."""

    _fields_ = (
        ("f", _I64),
        ("stats", _P),
        ("mean", _P),
        ("variance", _P),
        ("count", _P),
        ("momentum", _F64),
    )


class FlatRows(ctypes.Structure):
    """``gw_flat_rows`` of flat_rows.h."""

    _fields_ = (
        ("nodes", _I64),
        ("place", _P),
        ("table", _P),
        ("table_rows", _I64),
        ("ld", _I64),
        ("runs", _I64),
        ("end", _P),
        ("first", _P),
        ("width", _P),
    )


class FlatCuts(ctypes.Structure):
    """``gw_flat_cuts`` of flat_rows.h."""

    _fields_ = (
        ("count", _I64),
        ("row", _P),
        ("at", _P),
    )


class Epilogue(ctypes.Structure):
    """``gw_epilogue_f32`` of abi.h."""

    _fields_ = (
        ("row_scale", _P),
        ("bias", _P),
        ("addend", _P),
        ("ld_addend", _I64),
        ("relu", _I32),
        ("mask", _P),
        ("ld_mask", _I64),
        ("col_sum", _P),
        ("post_scale", _P),
        ("addend_rows", _I64),
        ("half_mask", _P),
        ("half_addend", _P),
    )


class Term(ctypes.Structure):
    """``gw_term_f32`` of abi.h."""

    _fields_ = (
        ("k", _I64),
        ("x", _P),
        ("ldx", _I64),
        ("table_rows", _I64),
        ("rows", _P),
        ("edges", ctypes.POINTER(Adjacency)),
        ("row_scale", _P),
        ("kept", _P),
        ("ld_kept", _I64),
        ("w", _P),
        ("ldw", _I64),
        ("w_transposed", _I32),
        ("half", _I32),
        ("half_kept", _P),
    )


class Left(ctypes.Structure):
    """``gw_left_f32`` of abi.h."""

    _fields_ = (
        ("k", _I64),
        ("x", _P),
        ("ldx", _I64),
        ("table_rows", _I64),
        ("rows", _P),
        ("dw", _P),
        ("lddw", _I64),
        ("half", _I32),
    )


class AdamTensor(ctypes.Structure):
    """``gw_adam_tensor_f32`` of optim.h."""

    _fields_ = (
        ("size", _I64),
        ("param", _P),
        ("grad", _P),
        ("exp_avg", _P),
        ("exp_avg_sq", _P),
        ("step", _P),
        ("lr", _F64),
        ("beta1", _F64),
        ("beta2", _F64),
        ("eps", _F64),
        ("weight_decay", _F64),
        ("decoupled", _I64),
        ("maximize", _I64),
    )


class SgdTensor(ctypes.Structure):
    """``gw_sgd_tensor_f32`` of optim.h."""

    _fields_ = (
        ("size", _I64),
        ("param", _P),
        ("grad", _P),
        ("momentum_buffer", _P),
        ("lr", _F64),
        ("momentum", _F64),
        ("dampening", _F64),
        ("weight_decay", _F64),
        ("nesterov", _I64),
        ("maximize", _I64),
        ("first", _I64),
    )


class Cell(ctypes.Structure):
    """``gw_cell`` of replay.h."""

    _fields_ = (
        ("at", _P),
        ("bytes", _I64),
        ("source", _I64),
        ("times", _U64),
        ("more", _U64),
    )


class Call(ctypes.Structure):
    """``gw_call`` of replay.h."""

    _fields_ = (
        ("entry", _I64),
        ("words", _P),
    )


class TypedWeight(ctypes.Structure):
    """``gw_typed_weight`` of typed_rows.h."""

    _fields_ = (
        ("values", _P),
        ("heads", _I64),
        ("in", _I64),
        ("out", _I64),
        ("transposed", _I32),
    )


class TypedRows(ctypes.Structure):
    """``gw_typed_rows`` of typed_rows.h."""

    _fields_ = (
        ("num_types", _I64),
        ("num_chunks", _I64),
        ("num_units", _I64),
        ("chunk_begin", _P),
        ("chunk_type", _P),
        ("unit_chunk", _P),
        ("type_unit", _P),
    )


class TypedSums(ctypes.Structure):
    """``gw_typed_sums`` of typed_rows.h."""

    _fields_ = (
        ("num_rows", _I64),
        ("num_blocks", _I64),
        ("indptr", _P),
        ("pair", _P),
        ("edge", _P),
        ("block_row", _P),
    )


class TypedPairs(ctypes.Structure):
    """``gw_typed_pairs`` of typed_rows.h."""

    _fields_ = (
        ("rows", TypedRows),
        ("entries", _P),
        ("node", _P),
        ("other", _P),
        ("edge", _P),
        ("on_dst", _P),
        ("sums", TypedSums * 2),
        ("wide", _I32),
    )


_Adjacency = ctypes.POINTER(Adjacency)
_Attention = ctypes.POINTER(Attention)
_AttentionGrad = ctypes.POINTER(AttentionGrad)
_TrackedNorm = ctypes.POINTER(TrackedNorm)
_FlatRows = ctypes.POINTER(FlatRows)
_FlatCuts = ctypes.POINTER(FlatCuts)
_Epilogue = ctypes.POINTER(Epilogue)
_Term = ctypes.POINTER(Term)
_Left = ctypes.POINTER(Left)
_AdamTensor = ctypes.POINTER(AdamTensor)
_SgdTensor = ctypes.POINTER(SgdTensor)
_Cell = ctypes.POINTER(Cell)
_Call = ctypes.POINTER(Call)
_TypedWeight = ctypes.POINTER(TypedWeight)
_TypedRows = ctypes.POINTER(TypedRows)
_TypedPairs = ctypes.POINTER(TypedPairs)

# fmt: off
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "gw_max_threads": (),
    "gw_thread_width": (_I32,),
    "gw_leaky_relu_f32": (_I64, _F64, _P, _P),
    "gw_leaky_relu_grad_f32": (_I64, _F64, _P, _P, _P),
    "gw_elu_f32": (_I64, _F64, _P, _P),
    "gw_elu_grad_f32": (_I64, _F64, _P, _P, _P),
    "gw_head_dots_f32": (_I64, _I64, _I64, _P, _P, _P),
    "gw_head_products_f32": (_I64, _I64, _I64, _P, _P, _P, _P),
    "gw_head_sums_f32": (_I64, _I64, _I64, _P, _P, _P),
    "gw_attend_f32": (_Adjacency, _Attention, _P, _P),
    "gw_attend_grad_f32": (_Adjacency, _Adjacency, _Attention, _P, _P, _P, _AttentionGrad, _P),
    "gw_batch_norm_f32": (_I64, _I64, _P, _I64, _P, _P, _F64, _I32, _P, _P, _I64),
    "gw_normalise_f32": (_I64, _I64, _P, _I64, _P, _P, _P, _P, _F64, _I32, _P, _I64),
    "gw_batch_norm_grad_f32": (_I64, _I64, _P, _I64, _P, _I64, _P, _P, _F64, _P, _I64, _P, _P),
    "gw_track_moments_f32": (_I64, _I64, _P, _F64, _P, _P),
    "gw_track_norms_f32": (_TrackedNorm, _I64, _I64),
    "gw_ids_summary": (_I32, _I64, _P, _P, _P, _P),
    "gw_ids_require": (_I32, _I64, _P, _I64, ctypes.c_char_p),
    "gw_coo_to_csr": (_I32, _I64, _P, _P, _I64, _I64, _I32, _P, _P, _P),
    "gw_csr_transpose": (_Adjacency, _I32, _P, _P, _P, _P),
    "gw_csr_check": (_Adjacency,),
    "gw_row_sample_sizes": (_Adjacency, _P, _I64, _I32, _P),
    "gw_row_sample": (_Adjacency, _P, _I64, _I32, _P, _U64, _U64, _U64, _U32, _P, _P, _P),
    "gw_draw_nodes": (_I64, _P, _P, _I64, _I32, _U64, _U64, _U64, _U32, _P, _P, _P),
    "gw_draw_items": (_I64, _P, _I64, _P, _U64, _U64, _U64, _P),
    "gw_running_sums": (_Adjacency, _P, _P),
    "gw_random_walk": (_Adjacency, _I64, _P, _P, _I64, _P, _F64, _F64, _F64, _U64, _U64, _U64, _P),
    "gw_permutation": (_I64, _U64, _U64, _P),
    "gw_deal_edges": (_P, _P, _I64, _P, _I32, _P, _I32, _I64, _P, _P),
    "gw_compress_pairs": (_P, _I64, _I64, _I64, _I32, _I32, _P, _P),
    "gw_gather_int8_rows": (_P, _I64, _I64, _I64, _P, _P, _P, _I64, _P),
    "gw_dense_count_nonzero": (_I32, _I64, _I64, _I64, _P, _P),
    "gw_csr_from_dense": (_I32, _I64, _I64, _I64, _P, _P, _I32, _P, _P),
    "gw_csr_to_dense": (_Adjacency, _I32, _P, _I64, _P),
    "gw_require_finite": (_I32, _I64, _P),
    "gw_csr_merge_equal": (_Adjacency, _I32, _P, _P, _P, _P),
    "gw_csr_normalize_rows": (_Adjacency, _I32, _P, _P),
    "gw_dense_normalize_rows": (_I32, _I64, _I64, _I64, _P, _P),
    "gw_fingerprint": (_P, _I64, _P),
    "gw_flat_count": (_FlatRows, _I64, _P, _P),
    "gw_flat_cuts_of": (_P, _I64, _I64, _I64, _P, _P, _P),
    "gw_flat_matmul_f32": (_FlatRows, _FlatCuts, _I64, _I64, _P, _I64, _I64, _P, _I64),
    "gw_flat_contract_f32": (_FlatRows, _FlatCuts, _I64, _P, _I64, _I64, _P, _P, _P, _I32),
    "gw_gemm_nn_f32": (_I64, _I64, _I64, _P, _I64, _P, _I64, _I32, _Epilogue, _P, _I64, _P, _I64),
    "gw_gemm_terms_f32": (_I64, _I64, _Term, _I64, _Epilogue, _P, _I64),
    "gw_gemm_tn_f32": (_I64, _I64, _I64, _P, _I64, _P, _I64, _P, _P, _I64, _P, _P, _I64),
    "gw_gemm_tn_half_f32": (_I64, _I64, _I64, _P, _I64, _P, _I64, _P, _I64, _P, _P, _I64),
    "gw_gemm_tn_terms_f32": (_I64, _Left, _I64, _Adjacency, _P, _I64, _Epilogue),
    "gw_half_unit": (_I32, _P),
    "gw_gemm_nn_f32_bf16": (_I64, _I64, _I64, _P, _I64, _P, _I64, _I32, _Epilogue, _P, _I64, _P, _I64),
    "gw_gemm_terms_f32_bf16": (_I64, _I64, _Term, _I64, _Epilogue, _P, _I64, _I32),
    "gw_gemm_tn_f32_bf16": (_I64, _I64, _I64, _P, _I64, _P, _I64, _P, _P, _I64, _P, _P, _I64),
    "gw_gemm_tn_half_f32_bf16": (_I64, _I64, _I64, _P, _I64, _I32, _P, _I64, _I32, _P, _I64, _P, _P, _I64),
    "gw_gemm_tn_terms_f32_bf16": (_I64, _Left, _I64, _Adjacency, _P, _I64, _I32, _Epilogue),
    "gw_gemm_nn_f32_split": (_I64, _I64, _I64, _P, _I64, _P, _I64, _I32, _Epilogue, _P, _I64, _P, _I64),
    "gw_gemm_terms_f32_split": (_I64, _I64, _Term, _I64, _Epilogue, _P, _I64),
    "gw_gemm_tn_f32_split": (_I64, _I64, _I64, _P, _I64, _P, _I64, _P, _P, _I64, _P, _P, _I64),
    "gw_gemm_tn_terms_f32_split": (_I64, _Left, _I64, _Adjacency, _P, _I64, _Epilogue),
    "gw_generate_permutation": (_I64, _U64, _U64, _P),
    "gw_generate_weights": (_I64, _U64, _U64, _F64, _F64, _F64, _P),
    "gw_generate_split": (_I64, _P, _I64, _I64, _P),
    "gw_generate_alias": (_I64, _I64, _P, _P, _P, _P),
    "gw_generate_links": (_I64, _I64, _P, _P, _P, _U64, _F64, _P, _P),
    "gw_generate_compress": (_I64, _P, _P, _P, _I64, _P, _P, _P),
    "gw_generate_labels": (_I64, _I64, _P, _P, _I64, _U64, _F64, _P, _P, _P),
    "gw_generate_values_f32": (_I64, _I64, _P, _U64, _U64, _P, _P, _P),
    "gw_generate_bits_f32": (_I64, _I64, _P, _U64, _U64, _P, _P),
    "gw_generate_words": (_I64, _I64, _P, _I64, _U64, _F64, _P, _P, _P),
    "gw_run_nest": (_Adjacency, _P, _P, _P),
    "gw_run_rows": (_P, _I64, _P, _P),
    "gw_cross_entropy_f32": (_I64, _I64, _P, _I64, _P, _I64, _P, _F64, _P, _I64, _P, _P),
    "gw_entry_loss_f32": (_I32, _I64, _I64, _P, _I64, _P, _I64, _P, _I64, _F64, _P, _I64, _P, _P),
    "gw_edge_margins_f32": (_Adjacency, _P, _I64, _P),
    "gw_edge_margins_f64": (_Adjacency, _P, _I64, _P),
    "gw_edge_margins_grad_f32": (_Adjacency, _P, _P, _I64, _I32, _P),
    "gw_edge_margins_grad_f64": (_Adjacency, _P, _P, _I64, _I32, _P),
    "gw_pages_map": (_I64, _P),
    "gw_heap_trim": (),
    "gw_pages_unmap": (_P, _I64),
    "gw_multilevel_cluster": (_Adjacency, _I64, _P, _P, _P, _P, _P, _P, _P),
    "gw_multilevel_contract": (_Adjacency, _I64, _P, _P, _I64, _F64, _P, _P, _P),
    "gw_multilevel_merge": (_P, _P, _P, _P, _P, _P, _I64, _F64, _P, _P, _P),
    "gw_multilevel_place": (_Adjacency, _I64, _P, _P, _P, _P, _I64, _I64, _P, _P, _P, _P, _P, _P, _P),
    "gw_negative_pairs": (_Adjacency, _P, _I32, _I64, _P, _I64, _U64, _U64, _U64, _P, _P),
    "gw_negative_tails": (_Adjacency, _P, _I32, _I64, _P, _I64, _U64, _U64, _U64, _P, _P),
    "gw_has_edges": (_Adjacency, _I64, _P, _P, _P),
    "gw_negative_mask": (_Adjacency, _P, _I32, _I64, _P, _I64, _P, _P),
    "gw_sample_compose": (_I64, _P, _P, _P, _P, _P, _P, _P),
    "gw_adam_f32": (_AdamTensor, _I64),
    "gw_sgd_f32": (_SgdTensor, _I64),
    "gw_partition_stream": (_Adjacency, _I64, _I64, _P, _F64, _I32, _P, _P),
    "gw_partition_measure": (_Adjacency, _I64, _P, _P, _P),
    "gw_replay": (_Cell, _I64, _P, _Call, _I64, _P),
    "gw_read_rows_f32": (_P, _P, _I64, _P, _P, _P, _P, _P, _P, _P, _P, _P, _I32, _P, _I64, _I64, _I64, _P),
    "gw_rows_apply_f32": (_I64, _I64, _P, _I64, _Epilogue, _P, _I64, _P, _I64),
    "gw_rows_apply_half_f32": (_I64, _I64, _P, _I64, _Epilogue, _P, _I64, _P, _I64),
    "gw_col_sum_f32": (_I64, _I64, _P, _I64, _P),
    "gw_dot_f32": (_I64, _P, _P, _P),
    "gw_row_sum_f32": (_I64, _I64, _P, _I64, _P),
    "gw_part_sum_f32": (_I64, _I64, _I64, _P, _P),
    "gw_power_f32": (_I64, _P, _F64, _F64, _P),
    "gw_dropout_f32": (_I64, _I64, _P, _I64, _F64, _U64, _U64, _P, _I64, _P, _I64),
    "gw_gather_rows": (_P, _I64, _I64, _I64, _P, _I64, _P),
    "gw_sampler_new": (_Adjacency, _P, _I32, _P),
    "gw_sampler_free": (_P,),
    "gw_sampler_name": (_P, _P),
    "gw_sampler_exclude": (_P, _I64, _P, _P),
    "gw_sampler_reach": (_P, _I64, _P, _P),
    "gw_sample_begin": (_P, _I64, _P, _I64, _P, _I32, _U64, _U64, _U64, _P, _P, _P),
    "gw_sample_finish": (_P, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "gw_sample_times": (_P, _I64, _P),
    "gw_steps_first": (_P, _I64, _P, _I64, _P, _I32, _U64, _U64, _U64, _I64, _P),
    "gw_steps_place": (_P, _I64, _P, _P, _P, _P),
    "gw_steps_draw": (_P, _I64, _I64),
    "gw_steps_number": (_P, _I64, _P),
    "gw_steps_ids": (_P, _I64, _I64, _P),
    "gw_steps_settle": (_P, _I64, _P, _P, _P),
    "gw_steps_inner": (_P, _P, _P, _P),
    "gw_sample_edges": (_Adjacency, _P, _I64, _I64, _P, _P, _P, _P, _P, _P),
    "gw_sddmm_dot_f32": (_Adjacency, _P, _I64, _P, _I64, _I64, _P),
    "gw_sddmm_dot_f64": (_Adjacency, _P, _I64, _P, _I64, _I64, _P),
    "gw_sparse_dropout_f32": (_Adjacency, _P, _I64, _I32, _F64, _U64, _U64, _P),
    "gw_order_by_time": (_Adjacency, _I64, _P, _P, _P, _P),
    "gw_relation_runs_count": (_Adjacency, _I64, _P, _P),
    "gw_relation_runs": (_Adjacency, _I64, _P, _P, _P),
    "gw_segment_sampler_new": (_Adjacency, _I64, _P, _P, _P, _P, _P, _I32, _I32, _P),
    "gw_segment_sampler_free": (_P,),
    "gw_segment_begin": (_P, _I64, _P, _P, _P, _P, _I64, _P, _I32, _I32, _U64, _U64, _U64, _I64, _P, _P, _P, _P, _P, _P,
        _P),
    "gw_segment_finish": (_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P),
    "gw_parts_offsets": (_I64, _P, _P, _P, _P, _P),
    "gw_parts_places": (_I64, _P, _P, _P, _P, _P),
    "gw_parts_rows": (_I64, _P, _P, _P, _P, _I64, _P),
    "gw_parts_take": (_Adjacency, _I64, _P, _P, _P, _P, _P, _P, _P),
    "gw_spmm_f32": (_Adjacency, _P, _I64, _I64, _P, _P, _F64, _P, _I32, _Epilogue, _I32, _P, _I32, _P, _I64),
    "gw_spmm_f64": (_Adjacency, _P, _I64, _I64, _P, _P, _F64, _I32, _I32, _P, _P, _I64),
    "gw_spmm_bf16": (_Adjacency, _P, _I64, _I64, _P, _P, _F64, _P, _I32, _Epilogue, _I32, _P, _I32, _I32, _P, _I64),
    "gw_spmm_f32_bf16": (_Adjacency, _P, _I64, _I64, _P, _P, _F64, _P, _I32, _Epilogue, _I32, _P, _P, _I64),
    "gw_spmm_max_f32": (_Adjacency, _P, _I64, _I64, _I32, _P, _P, _I64, _P, _I64),
    "gw_spmm_max_f64": (_Adjacency, _P, _I64, _I64, _I32, _P, _P, _I64, _P, _I64),
    "gw_spmm_max_bf16": (_Adjacency, _P, _I64, _I64, _I32, _P, _P, _I64, _P, _I64),
    "gw_spmm_max_grad_f32": (_Adjacency, _P, _I64, _P, _I64, _I64, _P, _I64),
    "gw_spmm_max_grad_f64": (_Adjacency, _P, _I64, _P, _I64, _I64, _P, _I64),
    "gw_spmm_max_grad_bf16": (_Adjacency, _P, _I64, _P, _I64, _I64, _P, _I64),
    "gw_spmm_max_winners_f32": (_P, _I32, _I64, _P, _I64, _I64, _I64, _P, _I64, _I64),
    "gw_spmm_max_winners_f64": (_P, _I32, _I64, _P, _I64, _I64, _I64, _P, _I64, _I64),
    "gw_spmm_max_winners_bf16": (_P, _I32, _I64, _P, _I64, _I64, _I64, _P, _I64, _I64),
    "gw_stretches_sizes": (_Adjacency, _I64, _I64, _P, _P, _P),
    "gw_stretches_fill": (_Adjacency, _I64, _I64, _I64, _P, _P, _P, _P, _P, _P),
    "gw_csr_has_loops": (_Adjacency, _P),
    "gw_csr_is_symmetric": (_Adjacency, _P),
    "gw_csr_columns_ascend": (_Adjacency, _I32, _P),
    "gw_csr_ids_ascend": (_Adjacency, _P),
    "gw_csr_count_columns": (_Adjacency, _P),
    "gw_csr_row_degrees": (_Adjacency, _I32, _P),
    "gw_csr_to_coo": (_Adjacency, _P, _P),
    "gw_csr_take_rows": (_Adjacency, _I64, _P, _P, _I32, _P, _P, _P),
    "gw_csr_renumber": (_Adjacency, _I64, _P, _P, _P, _P, _P),
    "gw_csr_thin": (_Adjacency, _I64, _P, _P),
    "gw_csr_clear_loops": (_Adjacency, _P),
    "gw_csr_filter": (_Adjacency, _P, _P, _P, _P),
    "gw_csr_unite": (_Adjacency, _Adjacency, _P, _P),
    "gw_csr_clear_common": (_Adjacency, _Adjacency, _P),
    "gw_csr_concat": (_Adjacency, _Adjacency, _P, _P, _P),
    "gw_subset_new": (_Adjacency, _I32, _P),
    "gw_subset_free": (_P,),
    "gw_subset_distinct": (_P, _I64, _P, _P, _P, _P),
    "gw_subset_slice": (_P, _I64, _P, _I64, _P, _P, _P),
    "gw_subset_write_slice": (_P, _P, _P, _P),
    "gw_subset_candidates": (_P, _I64, _P, _P, _P, _P),
    "gw_subset_write_candidates": (_P, _P, _P),
    "gw_ego_new": (_Adjacency, _P, _I32, _I32, _P),
    "gw_ego_free": (_P,),
    "gw_ego_draw": (_P, _I64, _P, _I64, _P, _I32, _U64, _U64, _U64, _P),
    "gw_ego_group": (_P, _I64, _P, _P, _P),
    "gw_ego_write": (_P, _P, _P, _P, _P, _P),
    "gw_typed_weight_room": (_TypedWeight, _I64, _P),
    "gw_typed_outer_room": (_TypedRows, _I64, _I64, _I64, _P),
    "gw_typed_matmul_f32": (_TypedRows, _TypedWeight, _P, _P, _P, _P),
    "gw_typed_row_sums_f32": (_TypedRows, _I64, _P, _P, _P),
    "gw_edge_softmax_f32": (_Adjacency, _I64, _P, _P),
    "gw_edge_softmax_grad_f32": (_Adjacency, _I64, _P, _P, _P),
    "gw_typed_outer_rows_f32": (_TypedRows, _I64, _I64, _I64, _P, _P, _P, _P),
    "gw_typed_spmm_f32": (_TypedPairs, _I32, _P, _TypedWeight, _P, _I64, _P, _P, _P),
    "gw_typed_outer_f32": (_TypedPairs, _I64, _I64, _I64, _P, _P, _P, _I64, _P, _P),
    "gw_typed_dots_f32": (_TypedPairs, _P, _P, _TypedWeight, _I64, _P, _P),
    "gw_typed_group": (_Adjacency, _I32, _I64, _P, _I32, _P, _P, _P, _P, _P, _P),
    "gw_typed_list": (_I64, _I64, _P, _I32, _P, _P, _P, _P, _P, _P, _P, _P),
    "gw_typed_degrees": (_Adjacency, _I32, _I64, _P, _I32, _I32, _P, _P),
    "gw_typed_sort": (_I64, _P, _I64, _P, _P, _P, _P),
    "gw_typed_ends": (_I64, _P, _P, _P, _P, _I32, _P, _P),
    "gw_typed_rows": (_Adjacency, _I64, _P, _P, _P, _P, _I32, _P, _P, _P),
    "gw_typed_run_rows": (_Adjacency, _P, _P, _P, _I64, _I64, _P, _P, _I32, _P, _P, _P, _P),
}
# Entry points of kernels that may be compiled when they are first called.
FIRST_USE = {
    "attention": ("gw_head_dots_f32", "gw_head_products_f32", "gw_head_sums_f32", "gw_attend_f32",
        "gw_attend_grad_f32",),
    "bfloat16": ("gw_half_unit", "gw_gemm_nn_f32_bf16", "gw_gemm_terms_f32_bf16", "gw_gemm_tn_f32_bf16",
        "gw_gemm_tn_half_f32_bf16", "gw_gemm_tn_terms_f32_bf16", "gw_spmm_bf16", "gw_spmm_f32_bf16",),
    "edge": ("gw_edge_margins_f32", "gw_edge_margins_f64", "gw_edge_margins_grad_f32", "gw_edge_margins_grad_f64",
        "gw_sddmm_dot_f32", "gw_sddmm_dot_f64", "gw_sparse_dropout_f32",),
    "extrema": ("gw_spmm_max_f32", "gw_spmm_max_f64", "gw_spmm_max_bf16", "gw_spmm_max_grad_f32",
        "gw_spmm_max_grad_f64", "gw_spmm_max_grad_bf16", "gw_spmm_max_winners_f32", "gw_spmm_max_winners_f64",
        "gw_spmm_max_winners_bf16",),
    "float64": ("gw_spmm_f64",),
    "normalisation": ("gw_batch_norm_f32", "gw_normalise_f32", "gw_batch_norm_grad_f32", "gw_track_moments_f32",
        "gw_track_norms_f32",),
    "parts": ("gw_deal_edges", "gw_compress_pairs", "gw_multilevel_cluster", "gw_multilevel_contract",
        "gw_multilevel_merge", "gw_multilevel_place", "gw_partition_stream", "gw_partition_measure",
        "gw_read_rows_f32",),
    "sampling": ("gw_row_sample_sizes", "gw_row_sample", "gw_draw_nodes", "gw_draw_items", "gw_running_sums",
        "gw_random_walk", "gw_permutation", "gw_negative_pairs", "gw_negative_tails", "gw_has_edges",
        "gw_negative_mask", "gw_sample_compose", "gw_sampler_new", "gw_sampler_free", "gw_sampler_name",
        "gw_sampler_exclude", "gw_sampler_reach", "gw_sample_begin", "gw_sample_finish", "gw_sample_times",
        "gw_steps_first", "gw_steps_place", "gw_steps_draw", "gw_steps_number", "gw_steps_ids", "gw_steps_settle",
        "gw_steps_inner", "gw_sample_edges", "gw_subset_new", "gw_subset_free", "gw_subset_distinct", "gw_subset_slice",
        "gw_subset_write_slice", "gw_subset_candidates", "gw_subset_write_candidates", "gw_ego_new", "gw_ego_free",
        "gw_ego_draw", "gw_ego_group", "gw_ego_write",),
    "split": ("gw_gemm_nn_f32_split", "gw_gemm_terms_f32_split", "gw_gemm_tn_f32_split",
        "gw_gemm_tn_terms_f32_split",),
    "temporal": ("gw_order_by_time", "gw_relation_runs_count", "gw_relation_runs", "gw_segment_sampler_new",
        "gw_segment_sampler_free", "gw_segment_begin", "gw_segment_finish",),
    "typed": ("gw_flat_count", "gw_flat_cuts_of", "gw_flat_matmul_f32", "gw_flat_contract_f32",
        "gw_typed_weight_room", "gw_typed_outer_room", "gw_typed_matmul_f32", "gw_typed_row_sums_f32",
        "gw_edge_softmax_f32", "gw_edge_softmax_grad_f32", "gw_typed_outer_rows_f32", "gw_typed_spmm_f32",
        "gw_typed_outer_f32", "gw_typed_dots_f32", "gw_typed_group", "gw_typed_list", "gw_typed_degrees",
        "gw_typed_sort", "gw_typed_ends", "gw_typed_rows", "gw_typed_run_rows",),
}
# fmt: on
