"""Training: the trainer, one module per way of running an epoch, and what a run leaves on disk."""
