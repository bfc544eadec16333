"""Means and variances by bit pushing beside four other mechanisms: Figures 1 to 5 of paper 002, as tables.

    SFUMATO_DATA=... python -m benchmarks.bit_pushing [--repetitions 100] [--figures 1a,4b,goals]

Every number is a NRMSE in per cent: the root of the mean squared error over the repetitions, each with clients drawn
anew, against the clients' own mean (or variance), over the mean of that; with its standard error. Clients have whole
numbers; baselines get the range that the bit depth implies, 0..2^bits - 1. "least" is what the best quotas could reach
that know the bit means: sqrt(((sum of 2^j s_j)^2 - variance of the values) / n), where s_j^2 is the variance of one
report on bit j. Without `SFUMATO_DATA` the ages of the census are left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow.parquet as pq

from benchmarks.baselines.mean_mechanisms import (
    LaplaceNoise,
    MeanMechanism,
    Piecewise,
    RandomisedRounding,
    SubtractiveDithering,
)
from sfumato.schemas.moments import FixedPoint, Method, Statistic
from sfumato.transforms.moments.allocation import Tuning
from sfumato.transforms.moments.method_choice import chosen_method
from sfumato.transforms.moments.prior import Prior
from sfumato.transforms.moments.protocol import MomentsPlan, run_in_memory
from sfumato.transforms.privacy.keys import FixedSecret, RunKey

CLIENTS = 10_000
VARIANCE_CLIENTS = 100_000
EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0)
LOOSE = (0, 2, 4, 6, 8)
MEAN, VARIANCE = Statistic("mean"), Statistic("variance")

Values = np.ndarray  # float64[n], whole numbers


@dataclass(frozen=True)
class Data:
    """Where clients' values come from. bits: the least depth that holds nearly all of them; others are clamped."""

    name: str
    bits: int
    draw: Callable[[int, np.random.Generator], Values]

    def clients(self, count: int, generator: np.random.Generator) -> Values:
        found: Values = np.clip(np.rint(self.draw(count, generator)), 0, 2**self.bits - 1).astype(np.float64)
        return found


def normal(mean: float, stddev: float = 100) -> Data:
    """Bits: of the mean and four standard deviations."""
    bits = int(mean + 4 * stddev).bit_length()
    return Data(f"normal, mean {mean:g}", bits, lambda count, generator: generator.normal(mean, stddev, count))


NORMAL = normal(600)
UNIFORM = Data("uniform, 0 to 1000", 10, lambda count, generator: generator.uniform(0, 1000, count))
EXPONENTIAL = Data("exponential, mean 100", 10, lambda count, generator: generator.exponential(100, count))
SYNTHETIC = (NORMAL, UNIFORM, EXPONENTIAL)


@functools.cache
def ages() -> Data | None:
    """The census' ages, drawn with replacement; None where they are not at hand."""
    if "SFUMATO_DATA" not in os.environ:
        return None
    found = pq.read_table(Path(os.environ["SFUMATO_DATA"]) / "census_adult_ages.parquet")["age"].to_numpy()
    return Data("census ages", 7, lambda count, generator: generator.choice(found, count))


def everything() -> tuple[Data, ...]:
    found = ages()
    return SYNTHETIC if found is None else (*SYNTHETIC, found)


@dataclass(frozen=True)
class Task:
    """What is asked of whom. bits: the depth that the mechanisms are told."""

    data: Data
    bits: int
    clients: int = CLIENTS
    epsilon: float | None = None
    statistic: Statistic = MEAN


def key(seed: tuple[int, ...]) -> RunKey:
    return RunKey.derive(FixedSecret(b"bit pushing"), {"seed": seed})


class Contender(Protocol):
    @property
    def name(self) -> str: ...

    def estimate(self, values: Values, task: Task, seed: tuple[int, ...]) -> float: ...


@dataclass(frozen=True)
class Pushing:
    """Bit pushing with some tuning."""

    name: str
    tuning: Tuning = field(default_factory=Tuning)
    method: Method = "adaptive"

    def plan(self, task: Task) -> MomentsPlan:
        return MomentsPlan(
            form=FixedPoint(task.bits),
            statistics=(task.statistic,),
            method=self.method,
            epsilon=task.epsilon,
            tuning=self.tuning,
        )

    def estimate(self, values: Values, task: Task, seed: tuple[int, ...]) -> float:
        return run_in_memory(values, self.plan(task), key(seed)).estimates[0].value


@dataclass(frozen=True)
class Warm:
    """Bit pushing where a release about 10,000 other clients, with values of `before`, stands for the first round."""

    name: str
    before: Data

    def estimate(self, values: Values, task: Task, seed: tuple[int, ...]) -> float:
        plan = OURS.plan(task)
        others = self.before.clients(CLIENTS, np.random.default_rng([1, *seed]))
        bits = run_in_memory(others, plan, key((1, *seed))).bits[0]
        prior = {"value": Prior(bits.weight, bits.mean, bits.stddev)}
        return run_in_memory(values, dataclasses.replace(plan, prior=prior), key(seed)).estimates[0].value


@dataclass(frozen=True)
class Beside:
    """Another mechanism. A variance: half of the clients for the mean, the others for the squared distance from it."""

    name: str
    make: Callable[[float | None], MeanMechanism]

    def estimate(self, values: Values, task: Task, seed: tuple[int, ...]) -> float:
        baseline, high, generator = self.make(task.epsilon), 2.0**task.bits - 1, np.random.default_rng(seed)
        if task.statistic == MEAN:
            return baseline.estimate_mean(values, high, generator)
        half = len(values) // 2
        centre = min(max(baseline.estimate_mean(values[:half], high, generator), 0.0), high)
        return baseline.estimate_mean((values[half:] - centre) ** 2, max(centre, high - centre) ** 2, generator)


def paper(squash: float | None = None, **changes: float | bool) -> Tuning:
    """Section 4.2: a third of the clients first, by 2^(j/2), and pooled reports. squash: under randomised response."""
    chosen: dict[str, float | bool] = {"first_share": 1 / 3, "first_power": 0.5, "squash": squash or 0.0}
    return Tuning(**{**chosen, **changes})  # type: ignore[arg-type]


WEIGHTED_HALF = Pushing("weighted, 0.5", Tuning(weighted_power=0.5, squash=0), "weighted")
WEIGHTED_ONE = Pushing("weighted, 1", Tuning(weighted_power=1, squash=0), "weighted")
PAPER_CLEAR = Pushing("adaptive, paper", paper(0.5))  # what nobody was seen to have set is empty
PAPER_PLAIN = Pushing("adaptive, paper, no squashing", paper(0))
PAPER = Pushing("adaptive, paper, squashing", paper(2.5))
OURS = Pushing("adaptive, ours")
THRESHOLD = Pushing("threshold", method="threshold")
DITHERING = Beside("dithering", SubtractiveDithering)
ROUNDING = Beside("rounding", RandomisedRounding)
PIECEWISE = Beside("piecewise", lambda epsilon: Piecewise(epsilon or math.nan))
LAPLACE = Beside("Laplace", lambda epsilon: LaplaceNoise(epsilon or math.nan))
CLEAR = (DITHERING, WEIGHTED_HALF, WEIGHTED_ONE, PAPER_CLEAR, OURS)
BASELINES = (LAPLACE, ROUNDING, PIECEWISE, DITHERING)
PRIVATE = (*BASELINES, WEIGHTED_HALF, WEIGHTED_ONE, PAPER_PLAIN, PAPER, OURS)


@dataclass(frozen=True)
class Score:
    """NRMSE and its standard error, both in per cent."""

    error: float
    spread: float

    def __str__(self) -> str:
        if self.error >= 1000:
            return f"{self.error:.1e} ± {self.spread / self.error:.0%}"
        places = max(0, 2 - math.floor(math.log10(max(self.error, 1e-9))))
        return f"{self.error:.{places}f} ± {self.spread:.{places}f}"


@dataclass(frozen=True)
class Bench:
    """repetitions: of every number."""

    repetitions: int

    def score(self, contender: Contender, task: Task) -> Score:
        """All contenders meet the same clients."""
        errors, truths = np.empty(self.repetitions), np.empty(self.repetitions)
        for run in range(self.repetitions):
            generator = np.random.default_rng([run, task.clients, len(task.data.name)])
            values = task.data.clients(task.clients, generator)
            truths[run] = values.mean() if task.statistic == MEAN else values.var()
            errors[run] = contender.estimate(values, task, (run, task.bits, task.clients)) - truths[run]
        squares = errors**2
        root = math.sqrt(squares.mean())
        spread = squares.std(ddof=1) / math.sqrt(self.repetitions) / (2 * root)
        return Score(100 * root / truths.mean(), 100 * spread / truths.mean())

    def table(
        self, head: str, rows: Sequence[tuple[str, Task]], contenders: Sequence[Contender], least: bool = False
    ) -> str:
        """Markdown, a row a task. Bold: the lowest of the row."""
        names = [contender.name for contender in contenders] + ["least"] * least
        lines = [f"| {head} | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
        for label, task in rows:
            scores = [self.score(contender, task) for contender in contenders]
            best = min(score.error for score in scores)
            cells = [f"**{score}**" if score.error == best else str(score) for score in scores]
            cells += [f"{least_error(task):.3g}"] * least
            lines.append(f"| {label} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def overall(
        self,
        settings: Sequence[tuple[int, float | None]],
        contenders: Callable[[float | None], Sequence[Contender]],
    ) -> str:
        """Markdown, a row for each number of clients and epsilon: times the least error, over data and depths."""
        names = [contender.name for contender in contenders(None)]
        lines = [f"| clients, epsilon | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
        for clients, epsilon in settings:
            tasks = [Task(data, data.bits + loose, clients, epsilon) for data in SYNTHETIC for loose in (0, 4, 8)]
            cells = []
            for contender in contenders(epsilon):
                times = [self.score(contender, task).error / least_error(task) for task in tasks]
                cells.append(f"{np.exp(np.log(times).mean()):.2f} ({max(times):.3g})")
            lines.append(f"| {clients:,}, {epsilon} | {' | '.join(cells)} |")
        return "\n".join(lines)


@functools.cache
def bit_shares(data: Data) -> tuple[np.ndarray, float, float]:
    """Shares of 1s, float64[bits], mean and variance of a million clients' values."""
    values = data.clients(1_000_000, np.random.default_rng(0))
    codes = values.astype(np.int64)
    shares = [((codes >> bit) & 1).mean() for bit in range(data.bits)]
    return np.array(shares), float(values.mean()), float(values.var())


def least_error(task: Task) -> float:
    """In per cent, of a mean: see the top of this file."""
    shares, mean, variance = bit_shares(task.data)
    noise = 0.0 if task.epsilon is None else math.exp(task.epsilon) / math.expm1(task.epsilon) ** 2
    total = float(np.sqrt(shares * (1 - shares) + noise) @ np.exp2(np.arange(task.data.bits)))
    return 100 * math.sqrt((total**2 - variance) / task.clients) / mean


def first_power(bench: Bench) -> str:
    """Figure 1(a)."""
    powers = (0, 0.25, 0.5, 0.75, 1, 1.5, 2)
    contenders = [Pushing(f"{power:g}", paper(0.5, first_power=power)) for power in powers]
    return bench.table("data \\ alpha of the first round", own(everything()), contenders)


def first_share(bench: Bench) -> str:
    """Figure 1(b)."""
    shares = (0.05, 0.1, 0.2, 1 / 3, 0.5, 0.7, 0.9)
    parts = []
    for caching, words in ((True, "pooled"), (False, "second round alone")):
        contenders = [Pushing(f"{s:.2g}", paper(0.5, first_share=s, caching=caching)) for s in shares]
        parts.append(bench.table(f"data \\ share of the first round; {words}", own(everything()), contenders))
    return "\n\n".join(parts)


def last_power(bench: Bench) -> str:
    """Figure 1(c)."""
    powers = (0, 0.25, 0.5, 0.75, 1, 1.5)
    one = [Pushing(f"{p:g}", Tuning(weighted_power=p, squash=0), "weighted") for p in powers]
    two = [Pushing(f"{p:g}", paper(0.5, second_power=p)) for p in powers]
    return "\n\n".join(
        bench.table(f"data \\ power; {words}", own(everything()), found)
        for words, found in (("weighted: 2^(power j)", one), ("adaptive: (4^j m (1 - m))^power", two))
    )


def own(data: Sequence[Data]) -> list[tuple[str, Task]]:
    """Each with its own depth."""
    return [(one.name, Task(one, one.bits)) for one in data]


def means(bench: Bench) -> str:
    """Figure 2(a)."""
    tasks = [
        (f"{m}, {normal(m).bits}", Task(normal(m), normal(m).bits)) for m in (400, 600, 800, 1200, 1600, 2400, 3600)
    ]
    return bench.table("mean, bits", tasks, CLEAR, least=True)


def variances(bench: Bench) -> str:
    """Figure 2(b)."""
    tasks = [
        (f"{m}, {normal(m).bits}", Task(normal(m), normal(m).bits, VARIANCE_CLIENTS, statistic=VARIANCE))
        for m in (400, 1200, 3600)
    ]
    return bench.table("mean, bits", tasks, CLEAR)


def depths(bench: Bench) -> str:
    """Figure 2(c)."""
    return bench.table("bits", [(str(bits), Task(NORMAL, bits)) for bits in range(10, 25, 2)], CLEAR)


def real(make: Callable[[Data], list[tuple[str, Task]]], head: str) -> Callable[[Bench], str]:
    """A table of the census' ages."""

    def figure(bench: Bench) -> str:
        found = ages()
        return "SFUMATO_DATA is not set: left out" if found is None else bench.table(head, make(found), CLEAR)

    return figure


def epsilons(values: Sequence[float]) -> Callable[[Bench], str]:
    """Figure 4."""

    def figure(bench: Bench) -> str:
        tasks = [(f"{epsilon:g}", Task(NORMAL, NORMAL.bits, epsilon=epsilon)) for epsilon in values]
        return bench.table("epsilon", tasks, PRIVATE, least=True)

    return figure


def thresholds(bench: Bench) -> str:
    """Figure 5(a)."""
    squashes = (0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5)
    contenders = [*(Pushing(f"{s:g}", paper(s)) for s in squashes), OURS]
    tasks = [
        (f"{data.name}, {data.bits + 8}, {epsilon:g}", Task(data, data.bits + 8, epsilon=epsilon))
        for data in everything()
        for epsilon in (0.5, 2.0)
    ]
    return bench.table("data, bits, epsilon \\ threshold", tasks, contenders)


def private_depths(bench: Bench) -> str:
    """Figure 5(c)."""
    tasks = [(str(bits), Task(NORMAL, bits, epsilon=2.0)) for bits in range(10, 25, 2)]
    return bench.table("bits", tasks, PRIVATE)


def goals(bench: Bench) -> str:
    """What the issue asks for."""
    tens = [
        (f"{data.name}, {count:,}", Task(data, 10, count))
        for data in (*SYNTHETIC, normal(500), normal(800))
        if data.bits == 10
        for count in (3000, 10_000)
    ]
    parts = ["Means of 10-bit quantities: 3% of a few thousand reports, 1% of ten thousand"]
    parts.append(bench.table("data, reports", tens, (WEIGHTED_HALF, PAPER_CLEAR, OURS), least=True))
    parts.append("Loose ranges under randomised response: the best baseline, and how many times its error ours is")
    for data in (NORMAL, ages() or EXPONENTIAL):
        parts.append(loose_ranges(bench, data))
    return "\n\n".join(parts)


def loose_ranges(bench: Bench, data: Data) -> str:
    """Ours against the best baseline for every epsilon and looseness."""
    lines = [f"| {data.name}, epsilon | {' | '.join(f'{bits} bits loose' for bits in LOOSE)} |"]
    lines.append("|---" * (1 + len(LOOSE)) + "|")
    for epsilon in EPSILONS:
        cells = []
        for loose in LOOSE:
            task = Task(data, data.bits + loose, epsilon=epsilon)
            best, name = min((bench.score(baseline, task).error, baseline.name) for baseline in BASELINES)
            ours = bench.score(OURS, task)
            verdict = f"{ours.error / best:.2g}"
            cells.append(f"{ours}; {best:.3g} {name}: {f'**{verdict}**' if ours.error < best else verdict}")
        lines.append(f"| {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parts(bench: Bench) -> str:
    """What each part of our tuning brings, and what does not matter."""
    settings = [(clients, epsilon) for clients in (1000, 10_000) for epsilon in (None, 0.5, 1.0, 4.0)]

    def steps(epsilon: float | None) -> list[Pushing]:
        base = paper(0.5 if epsilon is None else 2.5)
        even = dataclasses.replace(base, first_power=0)
        posterior, both = (dataclasses.replace(one, squash=None) for one in (base, even))
        named = {"paper": base, "first round even": even, "posterior": posterior, "both": both}
        return [*(Pushing(name, tuning) for name, tuning in named.items()), OURS]

    def rounds(_: float | None) -> list[Pushing]:
        return [
            Pushing(f"{share:g}, {power:g}", Tuning(first_share=share, first_power=power))
            for share in (0.1, 0.25, 0.5)
            for power in (0, 0.25, 0.5)
        ]

    return "\n\n".join(
        [
            "Times the least error: geometric mean of three kinds of data, 0, 4 and 8 bits loose (the worst)",
            bench.overall(settings, steps),
            "The same by the first round's share and power, the rest as ours",
            bench.overall([(CLIENTS, None), (CLIENTS, 1.0)], rounds),
            "A release about 10,000 other clients in place of the first round; 16 bits",
            priors(bench),
            "One bit, 200 reports in round one and 400 in round two: RMSE, and bias in brackets, in % of a bit mean",
            pooling(),
        ]
    )


def priors(bench: Bench) -> str:
    """A prior release of the same values, of smaller and of larger ones."""
    tasks = [
        (f"{clients:,}, {epsilon}", Task(NORMAL, 16, clients, epsilon))
        for clients in (1000, 3000, 10_000)
        for epsilon in (None, 1.0)
    ]
    befores = (("same values", NORMAL), ("values a quarter", normal(150, 25)), ("values four times", normal(2400, 400)))
    return bench.table(
        "clients, epsilon \\ prior", tasks, [OURS, *(Warm(name, before) for name, before in befores)], least=True
    )


def pooling() -> str:
    """Both rounds by their reports, or by the inverse of each round's own estimated variance."""
    lines = ["| bit mean, epsilon | by reports | by inverse variance |", "|---|---|---|"]
    generator = np.random.default_rng(0)
    reports = np.array([200, 400])[:, None]
    for mean in (0.02, 0.1, 0.5):
        for epsilon in (None, 1.0):
            truth = 1.0 if epsilon is None else 1 / (1 + math.exp(-epsilon))
            told = generator.binomial(reports, mean * truth + (1 - mean) * (1 - truth), (2, 100_000))
            share = (told / reports - (1 - truth)) / (2 * truth - 1)
            smooth = (told + 0.5) / (reports + 1)
            cells = []
            for weights in (reports, reports / (smooth * (1 - smooth))):
                error = (share * weights).sum(axis=0) / np.broadcast_to(weights, told.shape).sum(axis=0) - mean
                cells.append(f"{100 * math.sqrt((error**2).mean()) / mean:.2f} ({100 * error.mean() / mean:+.2f})")
            lines.append(f"| {mean:g}, {epsilon} | {' | '.join(cells)} |")
    return "\n".join(lines)


HEAVY = Data("log-normal, sigma 1.5", 16, lambda count, generator: generator.lognormal(4, 1.5, count))
PARETO = Data("Pareto, exponent 1.5", 20, lambda count, generator: 20 * (1 + generator.pareto(1.5, count)))
RARE = Data("600 for one in twenty", 10, lambda count, generator: 600.0 * (generator.random(count) < 0.05))
FAR = normal(60_000)


def methods(epsilon: float | None) -> Callable[[Bench], str]:
    """The methods of the command line side by side, and times the error of `adaptive`. Bold: what `auto` takes."""

    def figure(bench: Bench) -> str:
        kinds = [(NORMAL, 0), (NORMAL, 6), (NORMAL, 10), (normal(2400), 0), (normal(3600), 0), (FAR, 0), (UNIFORM, 0)]
        kinds += [(EXPONENTIAL, 0), (EXPONENTIAL, 6), (HEAVY, 0), (PARETO, 0), (RARE, 0)]
        if (found := ages()) is not None:
            kinds += [(found, 0), (found, 5)]
        lines = ["| data, bits | adaptive | weighted | times | threshold | times |", "|---" * 6 + "|"]
        for data, loose in kinds:
            task = Task(data, data.bits + loose, epsilon=epsilon)
            base, *others = (bench.score(contender, task) for contender in (OURS, WEIGHTED_ONE, THRESHOLD))
            taken = chosen_method(CLIENTS, epsilon, task.bits)
            cells = [str(base)]
            for name, one in zip(("weighted", "threshold"), others, strict=True):
                cells += [f"**{one}**" if name == taken else str(one), f"{one.error / base.error:.3g}"]
            lines.append(f"| {data.name}, {task.bits} | {' | '.join(cells)} |")
        return "\n".join(lines)

    return figure


def intervals(bench: Bench) -> str:
    """How often a 95% interval holds the clients' own mean, and its median half width over the RMSE."""
    lines = ["| data, clients, epsilon | 0 bits loose | 4 bits loose | 8 bits loose |", "|---|---|---|---|"]
    for data in everything():
        for clients, epsilon in ((1000, None), (1000, 2.0), (CLIENTS, None), (CLIENTS, 0.5), (CLIENTS, 2.0)):
            cells = []
            for loose in (0, 4, 8):
                task = Task(data, data.bits + loose, clients, epsilon)
                values = data.clients(clients, np.random.default_rng([clients, loose]))
                runs = [
                    run_in_memory(values, OURS.plan(task), key((run, loose))).estimates[0]
                    for run in range(bench.repetitions)
                ]
                error = np.array([one.value - values.mean() for one in runs])
                width = np.array([one.high - one.low for one in runs]) / 2
                ratio = np.median(width) / math.sqrt((error**2).mean())
                cells.append(f"{(np.abs(error) <= width).mean():.0%} ({ratio:.1f})")
            lines.append(f"| {data.name}, {clients:,}, {epsilon} | {' | '.join(cells)} |")
    return "\n".join(lines)


FIGURES: dict[str, tuple[str, Callable[[Bench], str]]] = {
    "1a": ("The first round's power", first_power),
    "1b": ("The first round's share", first_share),
    "1c": ("The last round's power", last_power),
    "2a": ("Mean of normal values, against their mean", means),
    "2b": ("Variance of normal values, against their mean", variances),
    "2c": ("Mean of normal values, against the bit depth", depths),
    "3a": (
        "Mean of ages, against the number of clients",
        real(lambda d: [(f"{n:,}", Task(d, d.bits, n)) for n in (1000, 3000, 10_000, 30_000, 100_000)], "clients"),
    ),
    "3b": (
        "Variance of ages, against the number of clients",
        real(
            lambda d: [(f"{n:,}", Task(d, d.bits, n, statistic=VARIANCE)) for n in (3000, 10_000, 30_000, 100_000)],
            "clients",
        ),
    ),
    "3c": (
        "Mean of ages, against the bit depth",
        real(lambda d: [(str(bits), Task(d, bits)) for bits in (7, 8, 10, 12, 14, 16)], "bits"),
    ),
    "4a": ("Mean of normal values under strong privacy", epsilons((0.1, 0.2, 0.4, 0.6, 0.8, 1.0))),
    "4b": ("Mean of normal values under moderate privacy", epsilons((1.0, 2.0, 3.0, 4.0, 5.0, 6.0))),
    "5a": ("The squashing threshold, 8 bits loose", thresholds),
    "5c": ("Mean of normal values at epsilon 2, against the bit depth", private_depths),
    "goals": ("The goals of means", goals),
    **{
        f"methods-{epsilon or 'clear'}": (f"The methods at epsilon {epsilon}, 10,000 clients", methods(epsilon))
        for epsilon in (None, 4.0, 2.0, 1.0, 0.5, 0.1)
    },
    "intervals": ("95% intervals: how often they hold the truth, and how wide they are", intervals),
    "parts": ("What helped and what did not", parts),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--figures", default=",".join(FIGURES), help=f"of {', '.join(FIGURES)}; default: all")
    options = parser.parse_args()
    names = options.figures.split(",")
    if unknown := [name for name in names if name not in FIGURES]:
        parser.error(f"--figures: there are {', '.join(FIGURES)}; got {', '.join(unknown)}")
    if options.repetitions < 2:
        parser.error(f"--repetitions: a standard error needs 2, got {options.repetitions}")
    bench = Bench(options.repetitions)
    print(f"{platform.machine()}, Python {platform.python_version()}; {options.repetitions} repetitions; NRMSE in %")
    for name in names:
        title, figure = FIGURES[name]
        began = time.perf_counter()
        table = figure(bench)
        label = f"Figure {name[0]}({name[1]}): " if name[0].isdigit() else ""
        print(f"\n### {label}{title}\n\n{table}", flush=True)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
