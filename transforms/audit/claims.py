"""Epsilon, delta and rho of a release, computed again from the noise that its manifest states. Pure.

No formula of the run is used: the accountant is the dp-accounting library. What a user adds at most, the number of
shards and the standard deviations are taken from the manifest, and epsilons only where it states no noise. Whether the
noise was drawn as stated is another question, see `answers`.

Discrete Laplace noise with P[Z = k] proportional to e^(-a |k|) has the variance 1 / (2 sinh(a / 2)^2). It costs a for
each unit of sensitivity, as continuous Laplace noise of scale 1 / a does. Discrete Gaussian noise costs at least what
continuous noise of its sigma costs; from sigma 1 on its standard deviation is sigma but for 1e-6.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import scipy
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from sfumato.schemas.guarantee import SERVERS, Trust, entry_of
from sfumato.transforms.statistics.bisection import bisect

TOLERANCE = 0.01  # relative; a stated cost that is lower than the computed one by more is a violation
_PURE = 1e-12  # the delta at which pure epsilons are computed: the largest loss of Laplace noise has a probability
_STEPS = 20_000  # of privacy loss, from 0 to about the total epsilon
_METHODS = ("adaptive", "flat", "emd")  # of heatmaps, whose vectors have each location once
# A user's change is measured in the L1 or the L2 norm. Only noise of these kinds is audited.
_NORMS = {"laplace": 1, "gaussian": 2}
_MOST = 1_000_000  # integers that are added up
_HOLDERS = 60  # numbers of holders of an item that are tried

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class StatedNoise:
    """Noise of a published count, in terms of the integers that it was added to. Raises ValueError.

    Attributes:
        kind: laplace or gaussian.
        stddev: of one draw, in integers.
        sensitivity: what a user changes at most, in integers: the L1 norm for laplace, the L2 norm for gaussian.
        draws: how many independent draws a published count adds up.
        unit: users that one integer of the sum counts as in the publication.
    """

    kind: str
    stddev: float
    sensitivity: float = 1.0
    draws: float = 1.0
    unit: float = 1.0

    def __post_init__(self) -> None:
        if not all(0 < one < math.inf for one in (self.stddev, self.sensitivity, self.draws, self.unit)):
            raise ValueError("a standard deviation or a bound of contributions is not a number above 0")
        if self.kind not in _NORMS or (self.kind == "gaussian" and self.stddev < 1):
            raise ValueError(f"the cost of {self.kind} noise with standard deviation {self.stddev:g} is not known")

    @property
    def norm(self) -> int:
        """The norm of the sensitivity: 1 or 2."""
        return _NORMS[self.kind]

    @property
    def decay(self) -> float:
        """The a of Laplace noise. Raises ValueError for noise of another kind."""
        if self.kind != "laplace":
            raise ValueError(f"{self.kind} noise has no exponential decay")
        return 2 * math.asinh(1 / (self.stddev * math.sqrt(2)))

    @property
    def multiplier(self) -> float:
        """The scale of Laplace noise, or sigma of Gaussian noise, as a multiple of the sensitivity."""
        scale = self.stddev if self.kind == "gaussian" else 1 / self.decay
        return scale / self.sensitivity


@dataclass(frozen=True)
class Claim:
    """A cost that a manifest states, and the computed one; None where the manifest states no noise. name: in words."""

    name: str
    stated: float
    computed: float | None

    @property
    def is_broken(self) -> bool:
        """Whether the stated cost is too low, or no number."""
        return self.computed is not None and not self.computed <= self.stated * (1 + TOLERANCE)


@functools.lru_cache(1024)  # the sub-queries of a release often have equal noise
def composed_epsilon(noises: tuple[StatedNoise, ...], delta: float = 0.0) -> float:
    """Returns the epsilon of several mechanisms together at a delta. Raises ValueError for a delta that is none.

    >>> round(composed_epsilon((StatedNoise("laplace", 14.13623), StatedNoise("laplace", 1.35675))), 3)
    1.1
    """
    if not 0 <= delta < 1:
        raise ValueError(f"a delta of {delta} guarantees nothing")
    events = {"laplace": dp_event.LaplaceDpEvent, "gaussian": dp_event.GaussianDpEvent}
    step = math.fsum(1 / one.multiplier for one in noises) / _STEPS
    accountant = PLDAccountant(value_discretization_interval=step)
    accountant.compose(dp_event.ComposedDpEvent([events[one.kind](one.multiplier) for one in noises]))
    return float(accountant.get_epsilon(max(delta, _PURE)))


def claims(manifest: Manifest) -> Iterator[Claim]:
    """Yields what a release states of its cost. Raises KeyError, TypeError or ValueError for a figure that is none."""
    privacy, job = manifest["privacy"], manifest.get("job")
    if privacy.get("epsilon") is None:
        raise ValueError("the release states no differential privacy")
    found = {
        "flows": _of_flows,
        "histogram": _of_rounds,
        "hotspots": _of_rounds,
        "quantiles": _of_rounds,
        "moments": _of_moments,
    }.get(str(job), _of_counts)
    parts, total = found(manifest)
    yield from parts
    for name in ("epsilon", "epsilon_spent"):
        if name in privacy:
            yield Claim(name, privacy[name], total)


_Costs = tuple[list[Claim], float]  # of a release's parts, and the epsilon of all


def sub_query_noises(manifest: Manifest) -> list[StatedNoise]:
    """Returns the noise of each sub-query of a heatmap, zones or ranges. Raises as `claims`."""
    privacy, parameters = manifest["privacy"], manifest["parameters"]
    parameters = parameters.get("heatmap") or parameters
    kind, trust = privacy["noise"], privacy["trust"]
    if "sub_queries" not in privacy:
        if not (trust == Trust.CENTRAL and privacy.get("noise_stddev")):
            raise ValueError("the manifest states no noise of each count")
        return [StatedNoise(kind, privacy["noise_stddev"])]
    if not privacy["sub_queries"]:
        raise ValueError("the manifest states no sub-query")
    gamma, method = parameters.get("gamma"), parameters.get("method")
    records = parameters.get("records_per_user") or entry_of(parameters, "columns").get("records_per_user") or 1
    is_known = manifest["job"] == "zones" or method in _METHODS
    if not is_known or (gamma is None and "all their locations" in privacy["contribution_bound"]):
        raise ValueError(f"what a user adds at most is not stated (method {method}, gamma {gamma})")
    found = []
    for query in privacy["sub_queries"]:
        rounded = query["vector_length"] if gamma and parameters.get("rounding") == "independent" else 0
        sensitivity = (gamma or records) + (rounded if kind == "laplace" else math.sqrt(rounded))
        draws, unit = float(query.get("servers", 1)), entry_of(privacy, "rotation").get("cohorts", 1) / (gamma or 1)
        if trust == Trust.SECAGG:
            counted, live = privacy["cohort"], query["shards"] - query["shards_lost"]
            required = counted["required_survivors"]
            draws = live * required / (required - counted.get("colluders", 0))
            if privacy["participation"]["model"] == "paper":  # every client adds a share of noise
                expected = counted["users"] / counted["shards"] * (1 - parameters.get("simulated_dropout", 0.0))
                draws *= max(expected / required, 1.0)
            unit *= counted["shards"] / live
        found.append(StatedNoise(kind, query["noise_stddev"] / (unit * math.sqrt(draws)), sensitivity, draws, unit))
    return found


def _of_counts(manifest: Manifest) -> _Costs:
    """Heatmaps, zones and ranges: the noisy user count and all sub-queries, or one of them with disjoint shards."""
    privacy, queries = manifest["privacy"], sub_query_noises(manifest)
    count = StatedNoise(privacy["noise"], privacy["population"]["noise_stddev"])
    is_parallel = privacy.get("composition") == "parallel"
    together = [(count, query) for query in queries] if is_parallel else [(count, *queries)]
    if count.kind == "gaussian":
        rho = max(math.fsum(one.multiplier**-2 / 2 for one in noises) for noises in together)
        parts = [Claim("rho", privacy["rho"], rho)]
    else:
        stated = privacy.get("sub_queries", [])
        names = [f"epsilon of sub-query {one['index']}" for one in stated]
        costs = [composed_epsilon((noise,)) for noise in queries]
        parts = [Claim(name, one["epsilon"], cost) for name, one, cost in zip(names, stated, costs, strict=False)]
    return parts, max(composed_epsilon(noises, privacy["delta"]) for noises in together)


def _of_flows(manifest: Manifest) -> _Costs:
    privacy, trips = manifest["privacy"], manifest["parameters"]["max_trips"]
    # A trip is counted in one round; in those above it only decisions were drawn, whose noise is not stated.
    costs = [composed_epsilon((StatedNoise("laplace", one["noise_stddev"], trips),)) for one in privacy["rounds"]]
    decisions = privacy["rounds_guarantee"]["epsilon"] - max(one["epsilon"] for one in privacy["rounds"])
    return [Claim("epsilon of the decisions to split pairs", decisions, None)], max(costs) + _admission(privacy)


def _admission(privacy: Manifest) -> float:
    """Returns the epsilon of the two noisy counts that admit a run; of a secret sample if a sampling rate is stated."""
    admission = privacy["admission"]
    rate = admission.get("sampling_rate", 1.0)
    return math.log1p(rate * math.expm1(StatedNoise("laplace", admission["noise_stddev"] * rate).decay))


def _of_rounds(manifest: Manifest) -> _Costs:
    """Histograms, hotspots and quantiles: epsilons and deltas of the rounds and of the admission add up."""
    privacy, rounds = manifest["privacy"], manifest["privacy"]["rounds"]
    stated = privacy["rounds_guarantee"]
    delta = min(privacy["delta"], privacy["delta_spent"], stated["delta"])
    parts: list[Claim] = []
    if any("sampling_rate" in one for one in rounds):
        epsilon = _sampled_epsilon(rounds, delta)
    elif any("draws" in one for one in rounds):
        epsilon = math.fsum(one["epsilon"] for one in rounds)
        parts.append(Claim("epsilon of the exponential mechanism", epsilon, None))
    else:
        bound = entry_of(manifest["parameters"], "bound")
        draws = SERVERS if privacy["trust"] == Trust.SPLIT else 1
        found = [_noisy_round(one, bound.get("max_items", 1), bound.get("max_records", 1), draws) for one in rounds]
        epsilon = math.fsum(cost for cost, _ in found)
        for one, (cost, _) in zip(rounds, found, strict=True):
            parts.append(Claim(f"epsilon of round {one['index']}", one["epsilon"], cost))
        parts.append(Claim("delta of all rounds", delta, math.fsum(spent for _, spent in found)))
    parts.append(Claim(f"epsilon of all rounds at delta {delta:.3g}", stated["epsilon"], epsilon))
    return parts, epsilon + _admission(privacy)


def _noisy_round(one: Manifest, items: int, records: int, draws: int) -> tuple[float, float]:
    """Returns the epsilon and delta of a round of noisy counts, at least.

    items, records: what a user adds at most. draws: how many parties add noise; epsilon is that of one of them.

    Where a threshold hides items, delta is the probability that one of a user's own items is above it.
    """
    kind, threshold, stddev = one["noise"], one.get("threshold"), one["noise_stddev"] / math.sqrt(draws)
    if kind == "gaussian":
        noise = StatedNoise(kind, stddev, records * math.sqrt(items))
        return composed_epsilon((noise,), one["delta"]), one["delta"]
    reach = min(int(one["limit"]), _MOST) if kind == "truncated" else 0
    decay = StatedNoise("laplace", stddev).decay
    if reach:  # the noise is within -reach..reach, so its standard deviation is below that of complete noise
        decay = bisect(lambda a: _truncated(a, reach, records)[0] >= stddev, 1e-9, 1e3, 200)[0]
    shown = 0.0
    if threshold is not None:
        complete = math.exp(-decay * (threshold - records)) / (1 + math.exp(-decay))
        shown = _truncated(decay, reach, records)[1] if reach else complete
    return decay * items * records, -math.expm1(items * math.log1p(-shown))


def _truncated(decay: float, reach: int, records: int) -> tuple[float, float]:
    """Returns the standard deviation of Laplace noise within -reach..reach, and P[Z > reach - records]."""
    weights = [math.exp(-decay * k) for k in range(1, reach + 1)]
    total = 1 + 2 * math.fsum(weights)
    squares = math.fsum(k * k * weight for k, weight in enumerate(weights, 1))
    return math.sqrt(2 * squares / total), math.fsum(weights[reach - records :]) / total


def _sampled_epsilon(rounds: Sequence[Manifest], delta: float) -> float:
    """Returns a lower bound of the epsilon of rounds of sample and threshold.

    For a number of holders of a user's item, the round distinguishes two binomial counts, which are seen from the
    threshold on. Every number gives a lower bound.
    """
    ((rate, threshold),) = {(one["sampling_rate"], one["threshold"]) for one in rounds}
    if threshold / rate > _MOST:
        raise ValueError(f"a threshold of {threshold} at a rate of {rate:g} is too large to check")
    best = 0.0
    for holders in {round(threshold * (2 / rate) ** (step / _HOLDERS)) for step in range(_HOLDERS + 1)}:
        logs = []
        for users in (holders - 1, holders):
            count, seen = scipy.stats.binom(users, rate), range(threshold, users + 1)
            logs.append({-1: count.logcdf(threshold - 1), **dict(zip(seen, count.logpmf(seen), strict=True))})
        pld = privacy_loss_distribution.from_two_probability_mass_functions(
            *logs, pessimistic_estimate=False, value_discretization_interval=1e-3, symmetric=False
        )
        best = max(best, float(pld.self_compose(len(rounds)).get_epsilon_for_delta(delta)))
    return best


def _of_moments(manifest: Manifest) -> _Costs:
    privacy, shares, parts = manifest["privacy"], manifest["privacy"]["shares"], []
    stddev, computed = privacy["noise_stddev"], {}
    if privacy["trust"] == Trust.CENTRAL:
        sums = privacy["sums"]
        each = stddev / math.sqrt(sums)
        # Users add thousands of units to sums of values, as with continuous noise, and 1 to a number of users.
        computed["sums"] = composed_epsilon((StatedNoise("laplace", each),)) if sums == 1 else math.sqrt(2) / each
        if "outside" in shares:
            outside = manifest["results"]["clipped"]["stddev"] * max(manifest["results"]["clients"], 1.0)
            computed["outside"] = composed_epsilon((StatedNoise("laplace", outside, 1 + ("second" in manifest)),))
    else:
        bits, truth = privacy["meter"]["bits_per_client"], privacy["meter"]["truth_probability"]
        computed["tallies"] = composed_epsilon((StatedNoise("laplace", stddev, bits),))
        sent = bits * math.log(truth / (1 - truth)) if truth < 1 else None
        parts.append(Claim("epsilon towards the collector", privacy["collector"]["epsilon"], sent))
    parts += [Claim(f"epsilon of the part {name}", shares[name], computed.get(name)) for name in shares]
    return parts, math.fsum(computed.get(name, shares[name]) for name in shares)
