"""Fused regions over edges: loop nests, and the C++ text of their kernels."""
