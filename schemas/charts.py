"""Results of distributions: the curve, its quantiles, ranges of values. And names as pages may show them.

Results come from published sample-and-threshold rounds (paper 004). Nothing here is raw.
"""

from __future__ import annotations

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

    All are float64[n].
    """

    value: NDArray[np.float64]
    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class Quantile:
    """A queried quantile: `share` of the users are below `value`, which has the 95% interval low..high."""

    share: float
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RangeAnswer:
    """A queried range of values, `high` not in it, and the estimated users in it, with their 95% interval.

    The interval also covers users whose place is not known. stddev: from noise or sampling, in users.
    """

    low: float
    high: float
    users: float
    stddev: float
    users_low: float
    users_high: float


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
