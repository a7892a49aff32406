"""Preparation of batches as subtasks on threads, and what a recorded run says about where its time goes."""
