"""What a comparison of methods is made of: settings, and what came of one of them. An evaluation, not a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Value = int | float | str

EVALUATION = (
    "This is an evaluation, not a release: it reads the exact data, and its errors, pictures and yardsticks tell of "
    "them without any protection. Run it on data that you may look at, and do not publish it in place of a release."
)


YARDSTICK = "best_level"  # non-private: the uniform level of least error, from the exact cells of the cohort
BY_TRUTH = " (level by truth)"  # ends the name of a method whose last choice looked at the truth


@dataclass(frozen=True)
class Setting:
    """One point of the grid: a method, and the options that were varied for it, (name, value) in a fixed order."""

    method: str
    options: tuple[tuple[str, Value], ...]

    @property
    def label(self) -> str:
        """The setting in words: `adaptive, users 10000, epsilon 1`."""
        return ", ".join([self.method, *(f"{name} {value}" for name, value in self.options)])


@dataclass(frozen=True, eq=False)
class Outcome:
    """One method on one cohort.

    key: number of the run, which fixes cohort and noise. metrics: by name. entries, bits: what a client sent in all
    sub-queries. shards_lost: share of all shards of all sub-queries that had too few survivors. picture: the estimated
    density float32[side, side] (side <= 256, row 0 in the north), or None where no picture was asked for.
    """

    setting: Setting
    key: int
    metrics: Mapping[str, float]
    entries: int
    bits: int
    shards_lost: float = 0.0
    picture: NDArray[np.float32] | None = None
