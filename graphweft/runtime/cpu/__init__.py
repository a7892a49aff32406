"""The CPU as a target: launchers of its ahead-of-time and generated kernels."""
