"""What is measured of the machine, and of other libraries on it: the work of ``graphweft bench`` and ``doctor``."""
