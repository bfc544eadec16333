"""Checked results of distributions: the curve, its quantiles, ranges of values. And names as pages may show them.

Results come from published sample-and-threshold rounds (paper 004). Nothing here is raw.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LONGEST_NAME = 200  # characters of a name that the page shows
# Control characters, marks that turn the direction of writing, and halves of surrogate pairs. None may act, all are
# shown.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


@dataclass(frozen=True, eq=False)
class Curve:
    """The estimated distribution function: shares of the users below ascending values, in 0..1, and their 95% band.

    All are float64[n]. Raises ValueError where the columns disagree in length or a value makes no sense.
    """

    value: NDArray[np.float64]
    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("value", "share", "low", "high"):
            column, n = np.asarray(getattr(self, name)), len(self.value)
            if column.shape != (n,):
                raise ValueError(f"{name}: must have one value for each of the {n} rows, got shape {column.shape}")
            if not np.isfinite(column).all():
                raise ValueError(f"{name}: must be finite numbers")
        if not (np.diff(self.value) >= 0).all():
            raise ValueError("value: must be ascending")
        if not ((np.asarray(self.share) >= 0) & (np.asarray(self.share) <= 1)).all():
            raise ValueError("share: must be between 0 and 1")
        if not ((self.low <= self.share) & (self.share <= self.high)).all():
            raise ValueError("low, high: must enclose the share")


@dataclass(frozen=True)
class Quantile:
    """A queried quantile: `share` of the users are below `value`, which has the 95% interval low..high.

    Raises ValueError for a share outside 0..1, or a value outside its own range.
    """

    share: float
    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share: must be between 0 and 1, got {self.share}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.value <= self.high):
            raise ValueError(f"value: must be finite and between {self.low} and {self.high}, got {self.value}")


@dataclass(frozen=True)
class RangeAnswer:
    """A queried range of values, `high` not in it, and the estimated users in it, with their 95% interval.

    The interval also covers users whose place is not known. stddev: from noise or sampling, in users.

    Raises ValueError for an empty range, or for a number of users that is not finite and >= 0 or outside its interval.
    """

    low: float
    high: float
    users: float
    stddev: float
    users_low: float
    users_high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low: must be finite and below high, got {self.low}..{self.high}")
        for name in ("users", "stddev", "users_low", "users_high"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: must be a finite number >= 0, got {value}")
        if not self.users_low <= self.users <= self.users_high:
            raise ValueError(f"users: must be within its interval, got {self.users}")


def readable(name: str) -> str:
    """Returns a name from the logs, shortened, with invisible characters and spaces at its ends spelled out.

    It is not escaped for HTML. The name is cut before characters are spelled out, so the text may exceed the limit.
    """
    text = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    text = _UNSEEN.sub(
        lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else f"⟨U+{ord(found[0]):04X}⟩", text
    )
    inner = text.strip(" ")
    lead = len(text) - len(text.lstrip(" "))
    return "␣" * lead + inner + "␣" * (len(text) - lead - len(inner))
