"""What sample and threshold publishes: items that enough sampled users hold; the rest is post-processing. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.histogram.sampling_round import Sampling, estimates


@dataclass(frozen=True, eq=False)
class Histogram:
    """One round's published counts (paper 004, Section 3).

    level: length of the items' prefixes, 0 for whole items. items: uint64[m] ascending, codes. sampled: int64[m],
    sampled users with that item, each >= the threshold. texts: what the codes of texts stand for, or None.
    """

    level: int
    sampling: Sampling
    items: NDArray[np.uint64]
    sampled: NDArray[np.int64]
    texts: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def counts(self) -> NDArray[np.float64]:
        """Estimated users, float64[m]: sampled / p."""
        return estimates(self.sampling, self.sampled)[0]

    @cached_property
    def stddev(self) -> NDArray[np.float64]:
        """Standard deviations of the estimates, float64[m]: sqrt(sampled (1 - p)) / p."""
        return estimates(self.sampling, self.sampled)[1]

    def only(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> Histogram:
        """The same histogram with some of its items, in the order given."""
        texts = None if self.texts is None else tuple(np.array(self.texts, dtype=object)[kept].tolist())
        return Histogram(self.level, self.sampling, self.items[kept], self.sampled[kept], texts)
