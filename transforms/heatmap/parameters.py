"""Parameters of the adaptive heatmap (paper 000, Algorithm 2), all validated before anything is spent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import MAX_DEPTH
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.noise import MAX_NOISE_EPSILON
from sfumato.transforms.secagg.shards import NoiseMode


@dataclass(frozen=True)
class HeatmapParameters:
    """Everything that shapes the statistics. Raises RequestError naming the first field that is wrong.

    depth: levels of the quadtree. epsilon: the whole budget. shard_size: expected users a shard (S). dropout: largest
    tolerated share of a shard that does not answer. users: cohort size, None for everybody. population: public number
    of users, None to count them privately with population_share of the budget. calibration: c of Eq. 7.
    expansion: b of Eq. 9. split_threshold: k of Eq. 6. overflow_chance: that any sum wraps around in the whole run.
    modulus: None chooses it. start_level: level of the uniform tree asked first.
    """

    depth: int = 10
    epsilon: float = 1.0
    shard_size: int = 10_000
    dropout: float = 0.05
    users: int | None = None
    population: int | None = None
    population_share: float = 0.01
    calibration: float = 0.1
    expansion: float = 2.0
    split_threshold: float = 2.0
    start_level: int = 1
    max_sub_queries: int = 10
    overflow_chance: float = 1e-6
    modulus: int | None = None
    allow_overflow: bool = False
    noise: NoiseMode = "shard"
    simulated_dropout: float = 0.0
    max_bad_fraction: float = 0.1

    def __post_init__(self) -> None:
        check_epsilon("epsilon", self.epsilon)
        if not 1e-4 <= self.epsilon <= MAX_NOISE_EPSILON:
            raise RequestError(
                f"epsilon: {self.epsilon} is out of reach; give 0.0001 to {MAX_NOISE_EPSILON:g} (1 is a common choice)"
            )
        _whole("depth", self.depth, 1, MAX_DEPTH)
        _whole("shard_size", self.shard_size, 2, 1 << 24)
        _within("dropout", self.dropout, 0, 0.9)
        _within("simulated_dropout", self.simulated_dropout, 0, 1)
        _within("max_bad_fraction", self.max_bad_fraction, 0, 1)
        for name in ("users", "population"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1, 1 << 40)
        _within("population_share", self.population_share, 0.001, 0.5)
        _open("calibration", self.calibration, 0, 100)
        _within("expansion", self.expansion, 1, 1000)
        _open("split_threshold", self.split_threshold, 0, 1000)
        _open("overflow_chance", self.overflow_chance, 0, 1)
        _whole("start_level", self.start_level, 0, min(self.depth, 8))
        _whole("max_sub_queries", self.max_sub_queries, 1, 40)
        if self.modulus is not None:
            _whole("modulus", self.modulus, 2, 1 << 40)
        if self.noise not in ("shard", "client"):
            raise RequestError(f"noise: must be shard or client, got {self.noise!r}")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not (isinstance(value, int) and not isinstance(value, bool) and low <= value <= high):
        raise RequestError(f"{name}: must be a whole number in {low}..{high}, got {value}")


def _within(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise RequestError(f"{name}: must be a number in [{low}, {high}], got {value}")


def _open(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low < value < high):
        raise RequestError(f"{name}: must be a number > {low} and < {high}, got {value}")
