"""Means, variances and sums by a trusted curator beside PyDP, OpenDP and bit pushing, as tables.

    SFUMATO_DATA=... python -m benchmarks.moments_central [--runs 100] [--tables mean,variance,sum,found,time]

All but bit pushing give (epsilon, 0) for adding or removing one user, with one value a user. PyDP's BoundedMean,
BoundedVariance and BoundedSum spend epsilon on the statistic; OpenDP's mean is its Laplace sum over its Laplace count,
half of epsilon each. `sfumato` also pays 1% for the admission of a run and 1% for the users outside the range. Bit
pushing (`--trust local`) protects every single report.

Errors are NRMSE in per cent: the root of the mean squared error over the runs, of users drawn anew, against the same
users' own statistic without clipping, over the deviation of their values (for a sum, times the users) or its square.
Without SFUMATO_DATA the ages of the census are left out. The tables `shares` and `coverage` are to be asked for.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.evaluation.moments_in_memory import run_centrally, run_in_memory
from sfumato.schemas.moments import FixedPoint, Statistic, ValueRange
from sfumato.transforms.moments.central import plan as central_plan
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.observability.text_tables import markdown_table, significant
from sfumato.transforms.privacy.keys import FixedSecret, RunKey

Values = NDArray[np.float64]
Mechanism = Callable[[Values, "Data", float, int], float]
TRUTH: dict[str, Callable[[Values], float]] = {
    "mean": lambda x: float(x.mean()),
    "variance": lambda x: float(x.var()),
    "sum": lambda x: float(x.sum()),
}
CASES = [(1_000, 1.0), (10_000, 0.1), (10_000, 1.0)]


@dataclass(frozen=True)
class Data:
    """Where values come from, and the form of a range that holds nearly all of them."""

    name: str
    form: FixedPoint
    draw: Callable[[int, np.random.Generator], Values]

    @property
    def span(self) -> ValueRange:
        """The range of the form."""
        return ValueRange(self.form.low, self.form.high)


def data_sets() -> list[Data]:
    """The census' ages only where SFUMATO_DATA says where they are."""
    found = [
        Data("normal, mean 600, deviation 100", FixedPoint(10), lambda n, rng: rng.normal(600, 100, n)),
        Data("exponential, mean 100", FixedPoint(10), lambda n, rng: rng.exponential(100, n)),
        Data("log-normal, sigma 1.5, median 55", FixedPoint(13), lambda n, rng: rng.lognormal(4, 1.5, n)),
        Data("normal, mean 0", FixedPoint(10, signed="split"), lambda n, rng: rng.normal(0, 100, n)),
    ]
    if "SFUMATO_DATA" in os.environ:
        path = Path(os.environ["SFUMATO_DATA"]) / "census_adult_ages.parquet"
        ages = pq.read_table(path)["age"].to_numpy().astype(np.float64)
        found.insert(0, Data("census ages", FixedPoint(7), lambda n, rng: rng.choice(ages, n)))
    return found


def key(*seed: object) -> RunKey:
    """The key of one run."""
    return RunKey.derive(FixedSecret(b"central benchmark" * 2), {"seed": repr(seed)})


def ours(statistic: str, found: bool = False) -> Mechanism:
    """`--trust central`. found: the range is found."""

    def run(values: Values, data: Data, epsilon: float, number: int) -> float:
        span = None if found else data.span
        plan = CentralMomentsPlan(statistics=(Statistic(statistic),), epsilon=epsilon, span=span)
        return next(run_centrally(values, plan, key(number, data.name, len(values), epsilon)).estimates()).value

    return run


def bits(statistic: str) -> Mechanism:
    """`--trust local`."""

    def run(values: Values, data: Data, epsilon: float, number: int) -> float:
        plan = MomentsPlan(form=data.form, statistics=(Statistic(statistic),), method="adaptive", epsilon=epsilon)
        inside = np.clip(values, data.span.low, data.span.high)
        return run_in_memory(inside, plan, key(number, data.name, len(values), epsilon)).estimates[0].value

    return run


def pydp(statistic: str, found: bool = False) -> Mechanism:
    """Google's library. found: it finds the range itself, for half of epsilon; NaN where it finds none."""
    from pydp.algorithms import laplacian  # optional: extra `bench`

    algorithm = getattr(laplacian, f"Bounded{statistic.capitalize()}")

    def run(values: Values, data: Data, epsilon: float, number: int) -> float:
        ends = {} if found else {"lower_bound": data.span.low, "upper_bound": data.span.high}
        try:
            return float(algorithm(epsilon=epsilon, dtype="float", **ends).quick_result(values.tolist()))
        except RuntimeError:
            return math.nan

    return run


def opendp(statistic: str) -> Mechanism:
    """OpenDP: the noisy sum, for a mean over the noisy count with half of epsilon each."""
    import opendp.prelude as dp  # optional: extra `bench`

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()

    def run(values: Values, data: Data, epsilon: float, number: int) -> float:
        part = epsilon / 2 if statistic == "mean" else epsilon
        clamped = space >> dp.t.then_clamp((data.span.low, data.span.high)) >> dp.t.then_sum()
        total = dp.binary_search_chain(lambda scale: clamped >> dp.m.then_laplace(scale), d_in=1, d_out=part)
        numbers = values.tolist()
        if statistic == "sum":
            return float(total(numbers))
        count = space >> dp.t.then_count() >> dp.m.then_laplace(1 / part)
        return float(total(numbers) / max(count(numbers), 1))

    return run


def nrmse(statistic: str, mechanism: Mechanism, data: Data, users: int, epsilon: float, runs: int) -> float:
    """In per cent; NaN where more than one run in twenty has no result."""
    errors, scales = [], []
    for number in range(runs):
        values = data.draw(users, np.random.default_rng([number, users, *data.name.encode()]))
        exact = TRUTH[statistic](values)
        errors.append(mechanism(values, data, epsilon, number) - exact)
        scales.append(float(values.std()) ** (1 + (statistic == "variance")) * users ** (statistic == "sum"))
    known = np.isfinite(errors)
    if known.mean() < 0.95:
        return math.nan
    return 100 * math.sqrt(float(np.mean(np.square(np.array(errors)[known])))) / float(np.mean(scales))


def text(percent: float, least: float) -> str:
    """A figure of a table; bold for the least of its row."""
    figure = "fails" if math.isnan(percent) else significant(percent)
    return f"**{figure}**" if percent == least else figure


def table(statistic: str, mechanisms: dict[str, Mechanism], runs: int, cases: list[tuple[int, float]] = CASES) -> str:
    """Errors of some mechanisms, a row for each data set, number of users and epsilon. The first is ours."""
    names = list(mechanisms)
    rows = [["values", "users", "epsilon", *names, f"{names[1]} / {names[0]}"]]
    for data in data_sets():
        for users, epsilon in cases:
            found = [nrmse(statistic, one, data, users, epsilon, runs) for one in mechanisms.values()]
            least = min(one for one in found if not math.isnan(one))
            ratio = "" if math.isnan(found[1]) else f"{found[1] / found[0]:.2f}"
            rows.append([data.name, f"{users:,}", f"{epsilon:g}", *(text(one, least) for one in found), ratio])
    return markdown_table(rows, left=(0,))


def shares(runs: int) -> str:
    """Errors of means with ranges that are found for other shares of epsilon."""
    tried, rows = (0.05, 0.1, 0.2, 0.3, 0.5), []
    usual = central_plan._RANGE_SHARE
    for data in data_sets():
        for users, epsilon in CASES:
            row = [data.name, f"{users:,}", f"{epsilon:g}"]
            for share in tried:
                central_plan._RANGE_SHARE = share
                row.append(significant(nrmse("mean", ours("mean", True), data, users, epsilon, runs)))
            rows.append(row)
    central_plan._RANGE_SHARE = usual
    return markdown_table([["values", "users", "epsilon", *(f"{share:.0%}" for share in tried)], *rows], left=(0,))


def coverage(runs: int) -> str:
    """How often 95% intervals hold the users' own statistic, of clipped values, and how wide they are."""
    names = ("count", "sum", "mean", "variance", "moment:3")
    rows = [["users", "epsilon", *names, "width of the mean's"]]
    for users, epsilon in [(50, 1.0), (100, 1.0), (1_000, 0.1), (1_000, 1.0), (10_000, 1.0)]:
        held, widths = np.zeros((len(data_sets()), len(names))), []
        for place, data in enumerate(data_sets()):
            plan = CentralMomentsPlan(statistics=tuple(map(Statistic, names)), epsilon=epsilon, span=data.span)
            ends, errors = [], []
            for number in range(runs):
                values = data.draw(users, np.random.default_rng([number, users, *data.name.encode()]))
                x = np.clip(values, data.span.low, data.span.high)
                exact = [users, x.sum(), x.mean(), x.var(), (x**3).mean()]
                found = list(run_centrally(values, plan, key(number, data.name, users, epsilon)).estimates())
                held[place] += [one.low <= true <= one.high for one, true in zip(found, exact, strict=True)]
                ends.append(found[2].high - found[2].low)
                errors.append(found[2].value - exact[2])
            widths.append(np.median(ends) / 2 / math.sqrt(np.mean(np.square(errors))))
        share = [f"{100 * one:.1f}%" for one in held.mean(axis=0) / runs]
        rows.append([f"{users:,}", f"{epsilon:g}", *share, f"{np.median(widths):.1f}"])
    return markdown_table(rows, left=())


def timed() -> str:
    """Seconds for a million values in memory, the best of three."""
    data, rows = data_sets()[0], [["mechanism", "seconds", "over ours"]]
    values = data.draw(1_000_000, np.random.default_rng(0))
    mechanisms = {"sfumato": ours("mean"), "PyDP": pydp("mean"), "OpenDP": opendp("mean"), "bit pushing": bits("mean")}
    first = None
    for name, mechanism in mechanisms.items():
        seconds = []
        for number in range(3):
            began = time.perf_counter()
            mechanism(values, data, 1.0, number)
            seconds.append(time.perf_counter() - began)
        first = first or min(seconds)
        rows.append([name, significant(min(seconds)), f"{min(seconds) / first:.1f}"])
    return markdown_table(rows, left=(0,))


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--tables", default="mean,variance,sum,found,time")
    chosen = parser.parse_args()
    runs, slow = chosen.runs, max(chosen.runs // 4, 10)
    tables: dict[str, tuple[str, Callable[[], str]]] = {
        "mean": (
            f"Means, a given range, {runs} runs",
            lambda: table(
                "mean",
                {"sfumato": ours("mean"), "PyDP": pydp("mean"), "OpenDP": opendp("mean"), "bit pushing": bits("mean")},
                runs,
            ),
        ),
        "variance": (
            f"Variances, a given range, {runs} runs",
            lambda: table(
                "variance",
                {"sfumato": ours("variance"), "PyDP": pydp("variance"), "bit pushing": bits("variance")},
                runs,
            ),
        ),
        "sum": (
            f"Sums, a given range, {runs} runs",
            lambda: table("sum", {"sfumato": ours("sum"), "PyDP": pydp("sum"), "OpenDP": opendp("sum")}, runs),
        ),
        "found": (
            f"Means, a range that is found, {runs} runs",
            lambda: table("mean", {"sfumato": ours("mean", True), "PyDP": pydp("mean", True)}, runs),
        ),
        "shares": (f"Means, a range that is found for a share of epsilon, {slow} runs", lambda: shares(slow)),
        "coverage": (f"Coverage of 95% intervals, {runs} runs of every data set", lambda: coverage(runs)),
        "time": ("A mean of a million values", timed),
    }
    for name in chosen.tables.split(","):
        title, make = tables[name]
        print(f"{title}\n\n{make()}", flush=True)


if __name__ == "__main__":
    main()
