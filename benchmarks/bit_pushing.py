"""Means and variances by bit pushing beside four other mechanisms: Figures 1 to 5 of paper 002, as tables.

    SFUMATO_DATA=... python -m benchmarks.bit_pushing [--repetitions 100] [--figures 1a,4b,goals]

Errors are NRMSE in per cent, as `benchmarks/bit_errors.py` says. "least" is what the best quotas could reach that know
the bit means: sqrt(((sum of 2^j s_j)^2 - variance of the values) / n), where s_j^2 is the variance of one report on
bit j. Without `SFUMATO_DATA` the ages of the census are left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.bit_errors import (
    AUTO,
    BASELINES,
    CLEAR,
    CLIENTS,
    EXPONENTIAL,
    NORMAL,
    OURS,
    PAPER,
    PAPER_CLEAR,
    PRIVATE,
    PUBLISHED,
    PUBLISHED_HALF,
    PUBLISHED_ONE,
    SYNTHETIC,
    THRESHOLD,
    UNIFORM,
    VARIANCE,
    VARIANCE_CLIENTS,
    WEIGHTED_ONE,
    Bench,
    Contender,
    Data,
    Pushing,
    Task,
    Warm,
    ages,
    everything,
    key,
    normal,
    paper,
    published,
)
from benchmarks.evaluation.moments_in_memory import run_in_memory
from sfumato.schemas.moments import Signed
from sfumato.transforms.moments.local.allocation import Tuning, chosen_method
from sfumato.transforms.privacy.discrete_laplace import MAX_NOISE_EPSILON

EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0)
LOOSE = (0, 2, 4, 6, 8)


def first_power(bench: Bench) -> str:
    """Figure 1(a)."""
    powers = (0, 0.25, 0.5, 0.75, 1, 1.5, 2)
    contenders = [published(f"{power:g}", first_power=power) for power in powers]
    return bench.table("data \\ alpha of the first round", own(everything()), contenders)


def first_share(bench: Bench) -> str:
    """Figure 1(b)."""
    shares = (0.05, 0.1, 0.2, 1 / 3, 0.5, 0.7, 0.9)
    parts = []
    for caching, words in ((True, "pooled"), (False, "second round alone")):
        contenders = [published(f"{s:.2g}", first_share=s, caching=caching) for s in shares]
        parts.append(bench.table(f"data \\ share of the first round; {words}", own(everything()), contenders))
    return "\n\n".join(parts)


def last_power(bench: Bench) -> str:
    """Figure 1(c)."""
    powers = (0, 0.25, 0.5, 0.75, 1, 1.5)
    one = [published(f"{p:g}", first_share=0, power=p) for p in powers]
    two = [published(f"{p:g}", power=p) for p in powers]
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
    contenders = [*(published(f"{s:g}", squash=s) for s in squashes), PAPER, OURS, AUTO]
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
    parts.append(bench.table("data, reports", tens, (PUBLISHED_HALF, PUBLISHED_ONE, PUBLISHED, OURS, AUTO), least=True))
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


def quotas(bench: Bench) -> str:
    """Section 3.1's exact numbers of reports, and what else tells the product's `--tuning paper` from the paper."""

    def contenders(squash: float, local: bool) -> list[Contender]:
        exact = {"release_epsilon": MAX_NOISE_EPSILON} if local else {}
        return [
            published("weighted 1: quotas", first_share=0, power=1),
            published("drawn", first_share=0, power=1, quotas=False),
            published("adaptive: quotas", squash=squash),
            published("drawn", squash=squash, quotas=False),
            *([Pushing("`--tuning paper`, tallies without noise", paper(2.5), changes=exact)] if local else []),
            PAPER if local else PAPER_CLEAR,
        ]

    clear = [(f"{one.name}, {bits}", Task(one, bits)) for one in everything() for bits in (one.bits, one.bits + 6)]
    private = [
        (f"{NORMAL.name}, {bits}, {epsilon:g}", Task(NORMAL, bits, epsilon=epsilon))
        for bits in (NORMAL.bits, NORMAL.bits + 6)
        for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0)
    ]
    return "\n\n".join(
        (
            bench.table("data, bits", clear, contenders(0.0, False)),
            bench.table("data, bits, epsilon; squashing at 2.5", private, contenders(2.5, True)),
        )
    )


def both_tunings(epsilon: float | None) -> tuple[tuple[str, Tuning], tuple[str, Tuning]]:
    """The product's tunings of `--method adaptive`, by their names in the tables."""
    return (PAPER.name, Tuning.from_paper(epsilon is not None)), (OURS.name, Tuning())


def signs(bench: Bench) -> str:
    """Section 3.4: signed values, shifted by 2^bits or with a bit for each sign. Both have the same range."""
    data = (
        Data("normal, mean 100", 9, lambda count, generator: generator.normal(100, 100, count), signed=True),
        Data("uniform, -400 to 500", 9, lambda count, generator: generator.uniform(-400, 500, count), signed=True),
    )
    ways: tuple[Signed, ...] = ("shift", "split")
    return "\n\n".join(
        bench.table(
            f"data, bits of the magnitude; epsilon {epsilon}",
            [
                (f"{one.name}, {one.bits + loose}", Task(one, one.bits + loose, epsilon=epsilon))
                for one in data
                for loose in (0, 2, 5)
            ],
            [Pushing(f"{name}: {way}", tuning, signed=way) for name, tuning in both_tunings(epsilon) for way in ways],
        )
        for epsilon in (None, 2.0)
    )


def both_variances(bench: Bench) -> str:
    """Lemma 3.5: about the estimated mean, or as E[x^2] - E[x]^2."""
    return "\n\n".join(
        bench.table(
            f"mean, bits; epsilon {epsilon}",
            [
                (f"{m}, {normal(m).bits}", Task(normal(m), normal(m).bits, VARIANCE_CLIENTS, epsilon, VARIANCE))
                for m in (400, 1200, 3600)
            ],
            [
                Pushing(f"{name}: {way}", tuning, changes={"variance": way})
                for name, tuning in both_tunings(epsilon)
                for way in ("centred", "raw")
            ],
        )
        for epsilon in (None, 2.0)
    )


def bits_each(bench: Bench) -> str:
    """The corollary of Section 3.1: several bits of each client, and the error over that of one bit."""
    counts = (1, 2, 4)
    lines = [f"| data | {' | '.join(map(str, counts))} |", "|---" * (1 + len(counts)) + "|"]
    for label, task in own(everything()):
        scores = [bench.score(Pushing("", paper(0.5), changes={"bits_per_client": count}), task) for count in counts]
        cells = [f"{score} ({score.error / scores[0].error:.2f} times)" for score in scores]
        lines.append(f"| {label} | {' | '.join(cells)} |")
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
    "quotas": ("Exact quotas of reports, and reports that are drawn", quotas),
    "split": ("Signed values: shifted, or with a bit for each sign", signs),
    "variance": ("Variance of normal values, 100,000 clients: centred, and from raw moments", both_variances),
    "bits": ("Several bits of each client", bits_each),
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
