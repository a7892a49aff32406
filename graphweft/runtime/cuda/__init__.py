"""CUDA devices as a target: launchers of Triton kernels, written from the same descriptions as the CPU's."""
