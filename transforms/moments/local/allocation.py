"""The method that `auto` takes, and the query probabilities of each bit (paper 002, Sections 3.1 and 3.2). Pure.

In round one of adaptive bit pushing some clients report bits with fixed probabilities. Its bit means, or those of an
earlier release, set the probabilities of round two, in which the other clients report.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.moments import BITS_SCHEMA, FixedPoint, Method
from sfumato.transforms.moments.local.quantities import Slots
from sfumato.transforms.moments.local.tally import RandomisedResponse

Array = NDArray[np.float64]

_UNIFORM_SHARE = (
    0.2  # of the probability, spread evenly over all bits, where an earlier release replaces the first round
)
_MIN_SIGNAL = 1000.0  # n epsilon^2 from which thresholds are better; docs/results/bit_pushing.md has the measurements
_FEW_BITS = 12  # more bits are mostly more than the values need


@dataclass(frozen=True)
class Tuning:
    """The protocol's parameters by the paper's names. None means the default (see `resolved`).

    Attributes:
        first_share: delta, the share of the clients in the first of two rounds, 0..1.
        first_power: alpha; round one queries bit j with probability proportional to 2^(alpha j).
        second_power: round two queries with probability proportional to (4^j m_j (1 - m_j))^second_power.
        weighted_power: alpha of the protocol with one round.
        caching: whether reports of both rounds are pooled.
        squash: a number of standard deviations. Bits above the highest bit whose mean exceeds it count as empty; 0
            squashes none. None: bits count by their probability to be in use (bit_means.py), or all with one round.

    Raises:
        RequestError: a value is out of range.
    """

    first_share: float | None = None
    first_power: float | None = None
    second_power: float = 0.5
    weighted_power: float | None = None
    caching: bool = True
    squash: float | None = None

    def __post_init__(self) -> None:
        if self.first_share is not None and not 0 < self.first_share < 1:
            raise RequestError(f"first_share: must be between 0 and 1, got {self.first_share}")
        for name in ("first_power", "second_power", "weighted_power", "squash"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise RequestError(f"{name}: must be a finite number >= 0, got {value}")

    @classmethod
    def from_paper(cls, local: bool) -> Tuning:
        """Returns the tuning of Section 4.2: a third of the clients first, by 2^(j/2). local: randomises responses."""
        return cls(first_share=1 / 3, first_power=0.5, squash=2.5 if local else 0.5)

    def resolved(self, method: Method) -> Tuning:
        """Returns the tuning with defaults for every None; docs/results/bit_pushing.md has the measurements.

        squash stays None unless the method is `weighted`: posterior probabilities then decide which bits are in use.
        """
        return replace(
            self,
            first_share=0.25 if self.first_share is None else self.first_share,
            first_power=0.25 if self.first_power is None else self.first_power,
            weighted_power=1.0 if self.weighted_power is None else self.weighted_power,
            squash=0.0 if self.squash is None and method == "weighted" else self.squash,
        )


def chosen_method(users: float, epsilon: float | None, bits: int) -> Method:
    """Returns the method with the least expected error: two-round `threshold`, or one-round `weighted` without a prior.

    Under randomised response the error of a share is about 1 / (epsilon sqrt(n)). Where that is large, a first round
    learns little, and posterior estimates shrink towards 0. Then one round without a prior is better, if the range fits
    the values: its error is a share of the range.

    users: n, who all report. epsilon: local; None: no randomised response. bits: of the values.
    """
    return "threshold" if users >= min_threshold_users(epsilon, bits) else "weighted"


def min_threshold_users(epsilon: float | None, bits: int) -> float:
    """Returns the number of users from which thresholds are chosen; see `chosen_method`."""
    return -math.inf if epsilon is None or bits > _FEW_BITS else _MIN_SIGNAL / min(epsilon, 1e3) ** 2


def by_weight(slots: Slots, power: float, reports: int) -> Array:
    """Returns query probabilities proportional to 2^(power j), j a bit: float64[S], see `capped`.

    The thresholds of one octave (from a power of two to the next) share that octave's probability.
    """
    octave = slots.octave_weight
    return capped((octave / octave.max()) ** power * (np.abs(slots.weight) / octave), reports)


def by_variance(
    slots: Slots, means: Array, used: Array, response: RandomisedResponse, power: float, reports: int
) -> Array:
    """Returns query probabilities proportional to (weight^2 v u)^power: float64[S], see `capped`.

    With power 1/2 they give the least variance of the estimate (Lemma 3.3).

    Args:
        means: float64[S], the bits' shares of 1s, in 0..1. They give v, the variance of one report of a bit.
        used: float64[S], u, the probability that a bit is in use. An unused bit is not queried.
        power: second_power of the tuning.
    """
    expected = means * response.gain + (1 - response.truth_probability)
    weights = np.abs(slots.weight) / np.abs(slots.weight).max()
    spread = weights**2 * response.variance(expected)
    if not spread.any():
        return by_weight(slots, power, reports)
    return capped((spread / spread.max() * used) ** power, reports)


def with_uniform_share(probabilities: Array, reports: int) -> Array:
    """Mixes in a uniform share, so that bits unknown to an earlier release are seen."""
    return capped((1 - _UNIFORM_SHARE) * probabilities + _UNIFORM_SHARE / len(probabilities), reports)


def capped(weights: Array, reports: int) -> Array:
    """Probabilities float64[S] proportional to the weights, with sum 1 and at most 1 / reports each.

    A client reports different bits, so no bit can have more. Where too few bits have a positive weight, the other bits
    share the rest.
    """
    max_probability = (1 - 1e-9) / reports  # just below, so that rounding never queries a bit twice from one client
    probabilities = np.zeros(len(weights))
    free = np.ones(len(weights), bool)
    if reports == len(weights):
        return probabilities + 1 / reports  # every client reports every bit
    while True:
        remaining = 1 - probabilities[~free].sum()
        share = np.where(free, weights, 0.0)
        if not share.any():
            share = free.astype(np.float64)
        share *= remaining / share.sum()
        over = free & (share > max_probability)
        if not over.any() or reports == 1:
            return np.where(free, share, probabilities)
        probabilities[over] = max_probability
        free &= ~over


@dataclass(frozen=True, eq=False)
class Prior:
    """Bit means of a quantity in an earlier release, instead of round one."""

    weight: Array  # float64[S], each bit's place value in the quantity's unit, plus or minus a power of two
    mean: Array  # float64[S], share of 1s
    stddev: Array  # float64[S], of mean, > 0

    def for_slots(self, slots: Slots) -> tuple[Array, Array]:
        """Means and variances for these slots: float64[S] each. Unknown slots have mean 1/2 and standard deviation 1/2.

        Slots are matched by weight. Weights are powers of two, so equal ones are equal as floats.

        The quantity `square` is the squared distance from a centre, which differs in every release. So the means of its
        bits are a guess only.
        """
        rows_by_weight = {weight: row for row, weight in enumerate(self.weight.tolist())}
        rows = np.array([rows_by_weight.get(weight, -1) for weight in slots.weight.tolist()])  # -1: not in the prior
        mean, stddev = (np.where(rows >= 0, column[rows], 0.5) for column in (self.mean, self.stddev))
        return mean, stddev**2


@dataclass(frozen=True, eq=False)
class PriorRelease:
    """Bit means of an earlier, public release of the same column.

    They set the probabilities of round two, in which all clients then report. A poor prior costs accuracy: clients
    report on less useful bits. The estimates use this release's reports only.
    """

    release_id: str
    bits: Mapping[str, Prior]  # a Prior for each quantity
    has_secret_key: bool  # whether nobody can guess the key of the release's randomness
    local: bool  # whether clients protected their bits by randomised response
    digest: str  # SHA-256 of the table of bits

    @classmethod
    def from_release(cls, manifest: Mapping[str, Any], bits: pa.Table, column: str, form: FixedPoint) -> PriorRelease:
        """Reads a release's manifest and table of bits. Raises RequestError unless they fit this column and form."""
        if manifest.get("job") != "moments":
            raise RequestError(
                f"warm_start: must be a release of `sfumato moments`, got one of {manifest.get('job')!r}"
            )
        try:
            entry, has_secret_key = dict(manifest["fixed_point"]), manifest["privacy"]["randomness"]["safe"] is True
            local = manifest["privacy"]["trust"] == Trust.LOCAL
            release_id, prior_column = str(manifest["release_id"]), str(manifest["column"])
            prior_form = FixedPoint(*(entry[name] for name in ("bits", "fraction_bits", "signed", "offset")))
        except (KeyError, TypeError, ValueError, RequestError) as error:
            raise RequestError(f"warm_start: the release's manifest lacks its column or form ({error!r})") from None
        if prior_column != column:
            raise RequestError(f"warm_start: the release is of column {prior_column!r}, this one of {column!r}")
        if prior_form != form:
            raise RequestError(
                f"warm_start: the release has other --bits, --fraction_bits or --signed, {_form_text(prior_form)}, "
                f"this one {_form_text(form)}; give the same"
            )
        if manifest.get("method") == "threshold":
            raise RequestError(
                "warm_start: the release has answers about thresholds, and not bits; start from one that was made with "
                "--method adaptive or weighted"
            )
        if not bits.schema.equals(BITS_SCHEMA):
            raise RequestError(
                "warm_start: the release's table of bits has other columns; it was written by an incompatible version"
            )
        means = bits["mean"].to_numpy()
        rows = np.array(bits["quantity"].to_pylist(), object)
        weights, stddevs = bits["weight"].to_numpy(), bits["stddev"].to_numpy()
        if not (np.isfinite(means).all() and np.isfinite(stddevs).all() and (stddevs > 0).all()):
            raise RequestError(
                "warm_start: the release is damaged: a bit mean is not finite, or a standard deviation not positive"
            )
        priors = {
            kind: Prior(weights[rows == kind], means[rows == kind], stddevs[rows == kind])
            for kind in dict.fromkeys(rows.tolist())
        }
        digest = hashlib.sha256(
            "\n".join(rows).encode() + weights.tobytes() + means.tobytes() + stddevs.tobytes()
        ).hexdigest()
        return cls(release_id, priors, has_secret_key, local, digest)

    def metadata(self) -> dict[str, Any]:
        """Returns the entry on this release in the new release's manifest."""
        return {"release_id": self.release_id, "digest": self.digest}


def _form_text(form: FixedPoint) -> str:
    return f"{form.bits}, {form.fraction_bits} and {form.signed}" + (f":{form.offset:g}" if form.offset else "")
