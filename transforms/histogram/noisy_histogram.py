"""Noisy counts of items as they are published by a trusted curator, one histogram a round. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.histogram.central_plan import CentralCountPlan
from sfumato.transforms.histogram.count_noise import CountNoise
from sfumato.transforms.histogram.user_sample import ItemCounts
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import RunKey


@dataclass(frozen=True, eq=False)
class NoisyHistogram:
    """The published counts of a round.

    Attributes:
        level: length of the items' prefixes; 0 for whole items.
        noise: of every count.
        items: uint64[m] ascending, item codes.
        noisy: int64[m], noisy counts. Unless the items are public, all are at least the threshold.
        texts: the texts of the codes, m of them; None if codes are numbers.
        cut: the largest noisy count that `top` removed; None without any.
    """

    level: int
    noise: CountNoise
    items: NDArray[np.uint64]
    noisy: NDArray[np.int64]
    texts: tuple[str, ...] | None = None
    cut: int | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def counts(self) -> NDArray[np.float64]:
        """The noisy counts, float64[m]. A threshold selects those whose noise is high; see `intervals`."""
        return self.noisy.astype(np.float64)

    @property
    def stddev(self) -> NDArray[np.float64]:
        """The standard deviation of the noise, float64[m]."""
        return np.full(len(self), self.noise.stddev)

    @cached_property
    def intervals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ends of the 95% intervals, int64[m] each; see CountNoise.intervals."""
        return self.noise.intervals(self.noisy, self.cut)

    def only(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> NoisyHistogram:
        """The same histogram with the kept items only, in the given order."""
        texts = None if self.texts is None else tuple(np.array(self.texts, dtype=object)[kept].tolist())
        return replace(self, items=self.items[kept], noisy=self.noisy[kept], texts=texts)


@dataclass(frozen=True, eq=False)
class NoisyLevels:
    """The published histograms of all rounds, coarse to fine.

    Attributes:
        levels: one histogram a round.
        admission: the noisy counts of users that admitted the run; None if the run had no admission.
    """

    levels: tuple[NoisyHistogram, ...]
    admission: NoisyUserCounts | None = None


def add_noise(
    counts: ItemCounts, noise: CountNoise, key: RunKey, label: str, level: int, domain: int | None
) -> NoisyHistogram:
    """The published part of a round.

    Args:
        counts: exact, with bounded contributions; items of a count of 0 are not among them.
        noise: of the round.
        key: of the run's noise.
        label: of the round's noise. Another round has another label.
        level: length of the prefixes.
        domain: where all items are public, their number: they are 0..domain - 1. Else None.
    """
    if domain is not None:
        items = np.arange(domain, dtype=np.uint64)
        exact = np.zeros(domain, np.int64)
        exact[counts.items.astype(np.int64)] = counts.counts
        counts = ItemCounts(items, exact)
    noisy = counts.counts + noise.draw(key, label, counts.items)
    shown = np.full(len(noisy), True) if noise.threshold is None else noisy >= noise.threshold
    texts = None if counts.texts is None else tuple(counts.texts[shown].tolist())
    return NoisyHistogram(level, noise, counts.items[shown], noisy[shown], texts)


def noisy_levels(
    counts: Sequence[ItemCounts], plan: CentralCountPlan, key: RunKey, levels: Sequence[int], top: int | None = None
) -> NoisyLevels:
    """The published histograms of all rounds.

    Args:
        counts: exact counts of each round.
        plan: with the noise of each round.
        key: of the counts.
        levels: the prefix length of each round.
        top: how many items of the last level to keep, those with the largest noisy counts; None keeps all.
    """
    # Another noise under one key would share the draws: the difference of two releases would have next to none.
    key = key.narrowed({"noise": [noise.metadata() for noise in plan.noises]})
    shown = [
        add_noise(one, noise, key, f"count noise {number}", level, domain if plan.is_public(number) else None)
        for number, (one, noise, level, domain) in enumerate(
            zip(counts, plan.noises, levels, plan.domains, strict=True)
        )
    ]
    last = shown[-1]
    if top is not None and len(last) > top:
        order = np.argsort(-last.noisy, kind="stable")
        shown[-1] = replace(last.only(np.sort(order[:top])), cut=int(last.noisy[order[top]]))
    return NoisyLevels(tuple(shown))
