"""Which bits to ask for, and how often: sampling chances of the rounds (paper 002, Sections 3.1 and 3.2). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import Method
from sfumato.transforms.moments.quantities import Slots
from sfumato.transforms.moments.randomised_response import RandomisedResponse

_WATCHED = 0.2  # of the clients, on all bits alike, where an earlier release stands for the first round


@dataclass(frozen=True)
class Tuning:
    """The protocol's parameters by the paper's names; None: what docs/explanation/moments.md found best (`chosen`).

    first_share: delta, the share of the clients in the first of two rounds. first_power: alpha, round one asks for bit
    j with a chance in proportion to 2^(alpha j). second_power: round two with (4^j m_j (1 - m_j))^second_power.
    weighted_power: alpha of the protocol of one round. caching: reports of both rounds are pooled. squash: a multiple
    of a bit mean's standard deviation; bits above the highest one that exceeds it are taken for empty; 0: none is;
    None: bits count by the chance that they are in use (in_use.py), or with one round all do.
    Raises RequestError for what cannot be.
    """

    first_share: float | None = None
    first_power: float | None = None
    second_power: float = 0.5
    weighted_power: float | None = None
    caching: bool = True
    squash: float | None = None

    def __post_init__(self) -> None:
        if self.first_share is not None and not 0 < self.first_share < 1:
            raise RequestError(f"first_share: must lie between 0 and 1, got {self.first_share}")
        for name in ("first_power", "second_power", "weighted_power", "squash"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise RequestError(f"{name}: must be a finite number >= 0, got {value}")

    def chosen(self, method: Method) -> Tuning:
        """The same with every None replaced but that of squash, which then is by posterior chances (adaptive)."""
        return Tuning(
            first_share=0.25 if self.first_share is None else self.first_share,
            first_power=0.25 if self.first_power is None else self.first_power,
            second_power=self.second_power,
            weighted_power=1.0 if self.weighted_power is None else self.weighted_power,
            caching=self.caching,
            squash=0.0 if self.squash is None and method == "weighted" else self.squash,
        )


def by_weight(slots: Slots, power: float, reports: int) -> NDArray[np.float64]:
    """Chances in proportion to |weight|^power: float64[S], see `capped`."""
    weights = np.abs(slots.weight)
    return capped((weights / weights.max()) ** power, reports)


def by_variance(
    slots: Slots,
    means: NDArray[np.float64],
    used: NDArray[np.float64],
    told: RandomisedResponse,
    power: float,
    reports: int,
) -> NDArray[np.float64]:
    """Chances in proportion to (weight^2 v u)^power, v the variance of one report of a bit: float64[S], see `capped`.

    With power 1/2 that is the least variance of the estimate (Lemma 3.3). means: float64[S], the bits' shares of 1s in
    0..1. used: u, float64[S], the chance that a bit is in use at all; one that is not is not asked for.
    """
    expected = means * told.gain + (1 - told.truth)
    weights = np.abs(slots.weight) / np.abs(slots.weight).max()
    spread = weights**2 * told.variance(expected)
    if not spread.any():
        return by_weight(slots, power, reports)
    return capped((spread / spread.max() * used) ** power, reports)


def watching(probabilities: NDArray[np.float64], reports: int) -> NDArray[np.float64]:
    """The chances, with a share on all bits alike: what an earlier release knew nothing of must not stay unseen."""
    return capped((1 - _WATCHED) * probabilities + _WATCHED / len(probabilities), reports)


def capped(wanted: NDArray[np.float64], reports: int) -> NDArray[np.float64]:
    """Chances float64[S] in proportion to `wanted`, of sum 1 and at most 1 / reports each.

    A client reports so many different bits, so none can be asked for more often. Where too few are wanted, the others
    share what is left.
    """
    most = (1 - 1e-9) / reports  # just below, so that rounding never asks one client twice
    probabilities = np.zeros(len(wanted))
    free = np.ones(len(wanted), bool)
    if reports == len(wanted):
        return probabilities + 1 / reports  # everybody tells every bit
    while True:
        left = 1 - probabilities[~free].sum()
        share = np.where(free, wanted, 0.0)
        if not share.any():
            share = free.astype(np.float64)
        share *= left / share.sum()
        over = free & (share > most)
        if not over.any() or reports == 1:
            return np.where(free, share, probabilities)
        probabilities[over] = most
        free &= ~over
