"""Tests by what they need: `unit` (no Beam), `jobs`, `attacks`, `browser`, `slow`, `engines`.

They run in a process for each core: more threads in one process only wait for each other.

Attributes:
    ROOT: the checkout.
    DATA: releases and ledgers of earlier versions.
"""

import os
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # before NumPy is imported
    os.environ.setdefault(_name, "1")

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
