"""From a program to calls of kernels; ``compile.py`` is the single waist."""
