"""Trials of single parts that need nothing of ``trials.py``, which runs them."""

from __future__ import annotations

from cuda import doctored, halves, hubs, losses, measured, sampling, sparse_features, updates

TRIALS = (
    halves.rows_of_sixteen_bits,
    halves.attention_of_sixteen_bits,
    halves.attention_sums_of_many_small_weights,
    halves.sums_of_many_small_numbers_keep_them,
    halves.models_of_sixteen_bits,
    losses.class_losses_of_rows,
    *hubs.TRIALS,
    sampling.batches_are_drawn_again_by_what_was_recorded,
    *updates.TRIALS,
    *sparse_features.TRIALS,
    *measured.TRIALS,
    sampling.rows_come_from_both_memories,
    doctored.a_kernel_that_fails_is_switched_off_and_the_run_goes_on,
)

__all__ = ["TRIALS"]
