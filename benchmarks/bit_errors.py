"""What the figures of bit pushing are measured with: clients, tasks, contenders and their errors (paper 002).

Every number is a NRMSE in per cent: the root of the mean squared error over the repetitions, each with clients drawn
anew, against the clients' own mean (or variance), over the mean of that; with its standard error. Clients have whole
numbers; baselines get the range that the bit depth implies, 0..2^bits - 1. Contenders of three kinds stand side by
side: other mechanisms; "published", the paper's algorithms to the letter; and the product, by its options' names.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as pq

from benchmarks.baselines.mean_mechanisms import (
    LaplaceNoise,
    MeanMechanism,
    Piecewise,
    RandomisedRounding,
    SubtractiveDithering,
)
from benchmarks.baselines.published_bit_pushing import PublishedBitPushing
from benchmarks.evaluation.moments_in_memory import run_in_memory
from sfumato.schemas.moments import FixedPoint, Method, Signed, Statistic
from sfumato.transforms.moments.local.allocation import Prior, Tuning
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.privacy.keys import FixedSecret, RunKey

CLIENTS = 10_000
VARIANCE_CLIENTS = 100_000
MEAN, VARIANCE = Statistic("mean"), Statistic("variance")

Values = np.ndarray  # float64[n], whole numbers


@dataclass(frozen=True)
class Data:
    """Where clients' values come from. bits: the least depth that holds nearly all of them; others are clamped."""

    name: str
    bits: int
    draw: Callable[[int, np.random.Generator], Values]
    signed: bool = False

    def clients(self, count: int, generator: np.random.Generator) -> Values:
        top = 2**self.bits - 1
        found: Values = np.clip(np.rint(self.draw(count, generator)), -top if self.signed else 0, top)
        return found.astype(np.float64)


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
    """The product with some tuning. changes: to its plan. With signs, the bits of a task are those of the magnitude."""

    name: str
    tuning: Tuning = field(default_factory=Tuning)
    method: Method = "adaptive"
    signed: Signed = "no"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, task: Task) -> MomentsPlan:
        shifted = self.signed == "shift"
        plan = MomentsPlan(
            form=FixedPoint(task.bits + shifted, signed=self.signed, offset=2.0**task.bits * shifted),
            statistics=(task.statistic,),
            method=self.method,
            epsilon=task.epsilon,
            tuning=self.tuning,
        )
        return dataclasses.replace(plan, **self.changes)

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


def published(name: str, **changes: float | bool) -> Beside:
    """The paper's algorithms as they stand there; see PublishedBitPushing for the changes."""
    return Beside(name, lambda epsilon: PublishedBitPushing(epsilon, **changes))  # type: ignore[arg-type]


PUBLISHED_HALF = published("weighted 0.5, published", first_share=0, power=0.5)
PUBLISHED_ONE = published("weighted 1, published", first_share=0, power=1)
PUBLISHED = published("adaptive, published")
PUBLISHED_SQUASHED = published("adaptive, published, squashing", squash=2.5)
WEIGHTED_ONE = Pushing("weighted, 1", Tuning(weighted_power=1, squash=0), "weighted")
PAPER_CLEAR = Pushing("`--tuning paper`", paper(0.5))  # what nobody was seen to have set is empty
PAPER = Pushing("`--tuning paper`", paper(2.5))
OURS = Pushing("`--method adaptive`")
AUTO = Pushing("`--method auto`", method="auto")
THRESHOLD = Pushing("threshold", method="threshold")
DITHERING = Beside("dithering", SubtractiveDithering)
ROUNDING = Beside("rounding", RandomisedRounding)
PIECEWISE = Beside("piecewise", lambda epsilon: Piecewise(epsilon or math.nan))
LAPLACE = Beside("Laplace", lambda epsilon: LaplaceNoise(epsilon or math.nan))
BASELINES = (LAPLACE, ROUNDING, PIECEWISE, DITHERING)
ADAPTIVE = (PUBLISHED_HALF, PUBLISHED_ONE, PUBLISHED)
CLEAR = (DITHERING, *ADAPTIVE, PAPER_CLEAR, OURS, AUTO)
PRIVATE = (*BASELINES, *ADAPTIVE, PUBLISHED_SQUASHED, PAPER, OURS, AUTO)


@dataclass(frozen=True)
class Score:
    """NRMSE and its standard error, both in per cent."""

    error: float
    spread: float

    def __str__(self) -> str:
        if self.error >= 1000:
            return f"{self.error:.1e} (se {self.spread / self.error:.0%})"
        places = max(0, 2 - math.floor(math.log10(max(self.error, 1e-9))))
        return f"{self.error:.{places}f} (se {self.spread:.{places}f})"


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
            cells += [f"{least_error(task):.3g}"] if least else []
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
