"""Settings of a comparison of methods, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Value = int | float | str

YARDSTICK = "best_level"  # non-private: the uniform level with the smallest error, from the cohort's exact cells
BY_TRUTH = " (level by truth)"  # suffix of a method whose level was chosen by the true density


@dataclass(frozen=True)
class Setting:
    """A method with the values of its varied options, (name, value) in a fixed order."""

    method: str
    options: tuple[tuple[str, Value], ...]

    @property
    def label(self) -> str:
        """The setting as text: `adaptive, users 10000, epsilon 1`."""
        return ", ".join([self.method, *(f"{name} {value}" for name, value in self.options)])


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one method on one cohort.

    Attributes:
        setting: the method and its options.
        key: number of the run, which fixes cohort and noise.
        metrics: by name.
        entries, bits: sent by a client in all sub-queries.
        shards_lost: share of the shards of all sub-queries with too few survivors.
        picture: the estimated density float32[side, side] (side <= 256, row 0 in the north) of run 0.
    """

    setting: Setting
    key: int
    metrics: Mapping[str, float]
    entries: int
    bits: int
    shards_lost: float = 0.0
    picture: NDArray[np.float32] | None = None
