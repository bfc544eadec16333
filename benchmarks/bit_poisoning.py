"""How far colluding clients move a mean: with bits that the server picks, and with bits that clients pick.

    python -m benchmarks.bit_poisoning [--repetitions 50]

Paper 002 (Sections 3.1 and 5) names two ways to choose the bit of a client: the server assigns it (central randomness),
or the client draws it (local randomness). It says that central randomness limits attacks, and measures none. Here some
of the clients collude to raise the mean. They know the protocol, the data and the probabilities, and report a 1 without
randomised response. Where the server assigns the bit, it is of that bit. Where clients pick, it is of the bit that
moves the mean most, of those that the round asks about. "the value" is the shift that no protocol can prevent: all
colluders claim the largest value of the range, and are honest otherwise.

Each number is the mean shift of the estimate from the honest clients' mean, in per cent of it, with its standard error.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.baselines.mean_mechanisms import Piecewise, RandomisedRounding, max_report, unbiased_share
from benchmarks.bit_errors import CLIENTS, EXPONENTIAL, NORMAL, PAPER, WEIGHTED_ONE, Data, key, paper
from sfumato.schemas.moments import FixedPoint, Method
from sfumato.transforms.moments.client_values import Block, encode
from sfumato.transforms.moments.local.allocation import Tuning
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.tally import Query, Tally, count_reports
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import random_bits

Estimate = Callable[["Attack", int], tuple[float, float]]
"""The estimate of a poisoned run, and the honest clients' mean."""
SHARES = (0.001, 0.01, 0.05)
METHODS: dict[str, tuple[Method, Tuning | None]] = {
    "weighted": ("weighted", WEIGHTED_ONE.tuning),
    "adaptive, paper": ("adaptive", None),
    "adaptive": ("adaptive", Tuning()),
    "threshold": ("threshold", Tuning()),
}


@dataclass(frozen=True)
class Attack:
    """One setting. bits: of the range; epsilon: of a client, or None; share: of the clients, who collude."""

    data: Data
    bits: int
    epsilon: float | None
    share: float

    @property
    def colluders(self) -> int:
        return round(self.share * CLIENTS)

    def honest(self, run: int) -> np.ndarray:
        return self.data.clients(CLIENTS - self.colluders, np.random.default_rng([run, self.bits, self.colluders]))


def block_of(values: np.ndarray, form: FixedPoint, seed: tuple[int, ...], first: int) -> Block:
    """The block of some clients, each with random bits of its own. first: number of the first client."""
    numbers = np.arange(first, first + len(values), dtype=np.uint64)
    bits = random_bits(key(seed).subkey("clients"), np.zeros_like(numbers), numbers)[:, 0]
    return Block.from_clients(encode(values, form)[0], bits)


def poisoned(counted: Tally, honest: Tally, query: Query, picks: bool) -> Tally:
    """The reports of colluders.

    Args:
        counted: as they would be if the colluders were honest.
        honest: of the other clients.
        query: the query.
        picks: whether a colluder picks the bit.
    """
    reports = counted.reports
    if picks:
        slots, others = query.quantity.slots, np.maximum(honest.reports[0], 1)
        shift = slots.weight * reports.sum() / (others + reports.sum()) * (1 - honest.ones[0] / others)
        best = np.argmax(np.where(query.probabilities > 0, shift, -np.inf))
        reports = np.where(np.arange(len(slots)) == best, reports.sum(), 0)[None]
    return Tally(reports, np.zeros_like(reports))


def pushed(method: str, picks: bool, attack: Attack, run: int) -> tuple[float, float]:
    """The estimate by bit pushing. picks: whether colluders pick the bit."""
    form, (name, tuning) = FixedPoint(attack.bits), METHODS[method]
    if tuning is None:
        tuning = paper(0.5) if attack.epsilon is None else PAPER.tuning
    plan = MomentsPlan(form=form, method=name, epsilon=attack.epsilon, tuning=tuning)
    values, seed = attack.honest(run), (run, attack.bits, attack.colluders)
    honest = block_of(values, form, seed, 0)
    colluding = block_of(np.zeros(attack.colluders), form, seed, len(values))
    state = MomentsState(plan, users=CLIENTS)
    for _ in plan.stages:
        queries, tallies = state.next_queries(), []
        for query in queries:
            own, theirs = (count_reports(one, query, 1, plan.response, key(seed)) for one in (honest, colluding))
            tallies.append(own + poisoned(theirs, own, query, picks))
        state = state.advance(queries, plan.protect(queries, tallies, key(seed)))
    return next(state.estimates()).value, float(values.mean())


def rounded(attack: Attack, run: int) -> tuple[float, float]:
    """The estimate by randomised rounding to one bit, with randomised response. All colluders report 1."""
    values, generator = attack.honest(run), np.random.default_rng([run, 1])
    high = 2.0**attack.bits - 1
    honest = RandomisedRounding(attack.epsilon).estimate_mean(values, high, generator)
    largest = unbiased_share(np.array([True]), attack.epsilon) * high
    return (honest * len(values) + largest * attack.colluders) / CLIENTS, float(values.mean())


def piecewise(attack: Attack, run: int) -> tuple[float, float]:
    """The estimate by the piecewise mechanism. All colluders report the largest value of its noisy range."""
    assert attack.epsilon is not None
    values, generator = attack.honest(run), np.random.default_rng([run, 2])
    high = 2.0**attack.bits - 1
    honest = Piecewise(attack.epsilon).estimate_mean(values, high, generator)
    largest = (max_report(attack.epsilon) + 1) / 2 * high
    return (honest * len(values) + largest * attack.colluders) / CLIENTS, float(values.mean())


def shift(estimate: Estimate, attack: Attack, repetitions: int) -> str:
    """The mean shift in per cent, with its standard error."""
    runs = [estimate(attack, run) for run in range(repetitions)]
    found = np.array([100 * (value / truth - 1) for value, truth in runs])
    error = float(found.std(ddof=1)) / math.sqrt(repetitions)
    places = max(0, -math.floor(math.log10(max(error, 1e-3))))
    return f"{found.mean():,.{places}f} (se {error:,.{places}f})"


def least(attack: Attack, run: int) -> tuple[float, float]:
    """The exact mean if all colluders claim the largest value."""
    values = attack.honest(run)
    return (values.sum() + attack.colluders * (2.0**attack.bits - 1)) / CLIENTS, float(values.mean())


def table(data: Data, bits: int, epsilon: float | None, repetitions: int) -> str:
    """A row for each mechanism, with columns for each share of colluders."""
    head = ["mechanism", "bit picked by", *(f"{100 * share:g}% collude" for share in SHARES)]
    estimates: dict[tuple[str, str], Estimate] = {("the value", ""): least}
    for method in METHODS:
        for name, picks in (("server", False), ("client", True)):
            estimates[method, name] = partial(pushed, method, picks)
    estimates["rounding", ""] = rounded
    if epsilon is not None:
        estimates["piecewise", ""] = piecewise
    rows = [
        [*names, *(shift(one, Attack(data, bits, epsilon, share), repetitions) for share in SHARES)]
        for names, one in estimates.items()
    ]
    return markdown_table([head, *rows], left=(0, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=50)
    repetitions = parser.parse_args().repetitions
    print(f"{platform.machine()}, Python {platform.python_version()}; {repetitions} repetitions, {CLIENTS:,} clients")
    for data, loose, epsilon in ((NORMAL, 0, None), (NORMAL, 6, None), (NORMAL, 0, 2.0), (EXPONENTIAL, 6, 2.0)):
        title = "no randomised response" if epsilon is None else f"epsilon {epsilon:g}"
        print(f"\n{data.name}, {data.bits + loose} bits, {title}\n")
        print(table(data, data.bits + loose, epsilon, repetitions), flush=True)


if __name__ == "__main__":
    main()
