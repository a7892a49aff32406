"""Graphs to and from other libraries."""
