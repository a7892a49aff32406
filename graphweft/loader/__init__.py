"""Batches, prepared while the model runs."""
