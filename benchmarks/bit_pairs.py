"""Covariances and correlations of two columns, in all trust models, beside other local mechanisms.

    python -m benchmarks.bit_pairs [--repetitions 12]

Each repetition draws clients anew, and compares with those clients' own covariance and correlation. "error": the root
of the mean squared error with its standard error, of a covariance in per cent of it, of a correlation in hundredths.
"held": how often the 95% interval holds the clients' own value. "width": the median half width of the interval, in the
same unit; a correlation with a width of 100 is unknown. Local baselines ask a third of the clients for each mean, and a
third for the product of the distances from these means, within the range that the bits imply. They have no interval.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.mean_mechanisms import MeanMechanism, Piecewise, RandomisedRounding
from benchmarks.bit_errors import key
from benchmarks.evaluation.moments_in_memory import run_centrally, run_in_memory
from sfumato.schemas.moments import FixedPoint, Method, MomentEstimate, Statistic, ValueRange
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.observability.text_tables import markdown_table

Pairs = NDArray[np.complex128]
"""The two numbers of each client, as real and imaginary parts."""
Found = tuple[float, float, float]
"""Value, low and high end of the interval; NaN without an interval."""
STATISTICS = (Statistic("covariance"), Statistic("correlation"))
_UNKNOWN = (math.nan, math.nan)


@dataclass(frozen=True)
class PairData:
    """Where clients' two numbers come from, and the bits of each. draw: both numbers of so many clients."""

    name: str
    bits: tuple[int, int]
    draw: Callable[[int, np.random.Generator], tuple[NDArray[np.float64], NDArray[np.float64]]]

    def clients(self, count: int, generator: np.random.Generator) -> Pairs:
        x, y = self.draw(count, generator)
        top = [2**bits - 1 for bits in self.bits]
        return np.asarray(np.clip(np.rint(x), 0, top[0]) + 1j * np.clip(np.rint(y), 0, top[1]))


def _normal(count: int, generator: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, other = generator.normal(size=(2, count))
    return 600 + 100 * x, 50 + 10 * (0.6 * x + 0.8 * other)


def _heavy(count: int, generator: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, other = generator.normal(size=(2, count))
    return np.exp(4 + x), np.exp(2 + 0.6 * x + 0.5 * other)


DATA = (PairData("normal, correlation 0.6", (10, 7), _normal), PairData("log-normal, sigma 1 and 0.8", (11, 9), _heavy))


def truth(values: Pairs) -> tuple[float, float]:
    """Covariance and correlation."""
    (own, both), (_, other) = np.cov(values.real, values.imag, bias=True)
    return float(both), float(both / math.sqrt(own * other))


def _found(rows: Iterable[MomentEstimate]) -> list[Found]:
    return [(row.value, row.low, row.high) for row in rows]


def pushed(method: Method, values: Pairs, data: PairData, epsilon: float | None, run: int) -> list[Found]:
    """Covariance and correlation from bits that clients send."""
    forms = [FixedPoint(bits) for bits in data.bits]
    plan = MomentsPlan(form=forms[0], second=forms[1], statistics=STATISTICS, method=method, epsilon=epsilon)
    return _found(run_in_memory(values, plan, key((run, len(values)))).estimates)


def curator(values: Pairs, data: PairData, epsilon: float | None, run: int) -> list[Found]:
    """Both from a trusted curator's sums of products, over the same ranges."""
    assert epsilon is not None
    spans = [ValueRange(0.0, 2.0**bits - 1) for bits in data.bits]
    plan = CentralMomentsPlan(
        statistics=STATISTICS, epsilon=epsilon, span=spans[0], second_span=spans[1], has_second=True
    )
    return _found(run_centrally(values, plan, key((run, len(values)))).estimates())


def beside(
    make: Callable[[float | None], MeanMechanism], values: Pairs, data: PairData, epsilon: float | None, run: int
) -> list[Found]:
    """The covariance from a mechanism for means, which is run for both columns and for the product."""
    mechanism, generator = make(epsilon), np.random.default_rng([2, run])
    third = len(values) // 3
    tops = [2.0**bits - 1 for bits in data.bits]
    parts = values[:third].real, values[third : 2 * third].imag
    means = [
        min(max(mechanism.estimate_mean(part, top, generator), 0.0), top) for part, top in zip(parts, tops, strict=True)
    ]
    last = values[2 * third :]
    products = (last.real - means[0]) * (last.imag - means[1])
    reach = math.prod(max(mean, top - mean) for mean, top in zip(means, tops, strict=True))
    return [(mechanism.estimate_mean(products + reach, 2 * reach, generator) - reach, *_UNKNOWN)]


def _figure(number: float) -> str:
    """Two digits, or all before the point."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def cells(found: Sequence[Sequence[Found]], truths: Sequence[tuple[float, float]]) -> list[str]:
    """Error, coverage and width of each statistic."""
    shown = []
    for number in range(len(STATISTICS)):
        if number >= len(found[0]):
            shown += ["", "", ""]
            continue
        rows = np.array([one[number] for one in found])
        exact = np.array([one[number] for one in truths])
        unit = 100 / (np.abs(exact) if number == 0 else np.ones(len(exact)))
        squares = ((rows[:, 0] - exact) * unit) ** 2
        error = math.sqrt(squares.mean())
        spread = squares.std(ddof=1) / math.sqrt(len(squares)) / (2 * error)
        shown.append(f"{_figure(error)} (se {_figure(spread)})")
        if np.isnan(rows[0, 1]):
            shown += ["", ""]
            continue
        held = ((rows[:, 1] <= exact) & (exact <= rows[:, 2])).mean()
        shown += [f"{held:.0%}", _figure(float(np.median((rows[:, 2] - rows[:, 1]) / 2 * unit)))]
    return shown


def table(data: PairData, clients: int, epsilon: float | None, repetitions: int) -> str:
    """A row for each mechanism."""
    mechanisms: dict[str, Callable[..., list[Found]]] = {
        "bits (`adaptive`, the default)": partial(pushed, "adaptive"),
        "thresholds (`threshold`)": partial(pushed, "threshold"),
        "bits (`weighted`)": partial(pushed, "weighted"),
        "rounding": partial(beside, RandomisedRounding),
    }
    if epsilon is not None:
        mechanisms["piecewise"] = partial(beside, lambda one: Piecewise(one or math.nan))
        mechanisms["trusted curator (`--trust central`)"] = curator
    rows = []
    draws = [data.clients(clients, np.random.default_rng([run, clients])) for run in range(repetitions)]
    for name, mechanism in mechanisms.items():
        found = [mechanism(values, data, epsilon, run) for run, values in enumerate(draws)]
        rows.append([name, *cells(found, [truth(values) for values in draws])])
    heads = ["covariance: error, %", "held", "width", "correlation: error, 1/100", "held", "width"]
    return markdown_table([["mechanism", *heads], *rows], left=(0,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=12)
    repetitions = parser.parse_args().repetitions
    print(f"{platform.machine()}, Python {platform.python_version()}; {repetitions} repetitions")
    for data in DATA:
        for clients, epsilon in ((10_000, None), (100_000, 4.0), (100_000, 2.0), (1_000_000, 2.0)):
            title = "no randomised response" if epsilon is None else f"epsilon {epsilon:g}"
            print(f"\n{data.name}, {'{} and {} bits'.format(*data.bits)}, {clients:,} clients, {title}\n")
            print(table(data, clients, epsilon, repetitions), flush=True)


if __name__ == "__main__":
    main()
