"""Rewrites of a program; the ordered list is in ``pipeline.py``."""
