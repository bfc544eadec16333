"""Tests run in a process for each core: more threads in one process only wait for each other."""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # before NumPy is imported
    os.environ.setdefault(_name, "1")
