"""Maps of a few hundred users: Figures 1 and 2 and the sweeps of paper 001, on check-ins and synthetic cities.

    SFUMATO_DATA=... python -m benchmarks.few_users [--runs 60] [--quick] [--baselines] [--picture FILE] [--data DIR]

200 users a run at 256 x 256, each one distribution over all their records there; the truth is the exact density of the
same 200. Both are judged as Gaussian heatmaps. With the check-ins of Gowalla and Brightkite in SFUMATO_DATA
(benchmarks/public_data.py) the 30 cells are the paper's. Without them, Tokyo gives as many as have 200 users: cells of
the paper's size that overlap by half, and cells of half its sides that do not. The rest are the synthetic city at its
true scale, elsewhere in a cell of the paper's size and with other people each time. The last table starts the real job
on a million users. Needs the `bench` extra. `--quick`: 3 runs, and no job of a million users. `--baselines`: only the
table of the form that the paper analyses, PrivHP and k-median.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from benchmarks.baselines.emd_trusted_server import analysed_aggregate, emd_aggregate
from benchmarks.baselines.k_median import k_median, median_cost
from benchmarks.baselines.privhp import privhp_density
from benchmarks.city_people import make_people
from benchmarks.evaluation.cases import Case, case_parameters
from benchmarks.evaluation.density_metrics import HIGHER_IS_BETTER, coarsen, evaluate
from benchmarks.evaluation.evaluate_case import Evaluation, evaluate_case, truth_of
from benchmarks.evaluation.gaussian_blur import gaussian_heatmap
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.evaluation.outcomes import Outcome, Setting
from benchmarks.public_data import dataset
from benchmarks.speed import REGION, command, watch
from sfumato.schemas.region import Grid, Places, Region, by_row
from sfumato.transforms.counting.estimator import density
from sfumato.transforms.counting.methods import Emd, Flat, Method
from sfumato.transforms.locations.distributions import bound_distributions
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.synth.city import build_city
from sfumato.transforms.synth.landscape import SIZE_KM

CELLS, USERS, DEPTH = 30, 200, 8
US = Region(-135, 0, -60, 50)
WIDTH, HEIGHT = 75 / 300, 50 / 300  # degrees: the paper cuts the region into 300 x 300 cells
PAPER_MONTHS = {"gowalla": ("2010-01", "2010-02"), "brightkite": ("2008-11", "2009-01")}  # up to before the second
EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
GOAL = (0.5, 1.0, 2.0, 5.0)  # where the EMD method is to lead
SWEPT_USERS = (50, 100, 200, 300, 400, 500)
SWEPT_DEPTHS = (6, 7, 8)
# Standard deviation of the Gaussian filter, in sides. The paper gives none. Saliency maps are blurred by about a degree
# of visual angle, on common displays 2% to 5% of the picture's side (Bylinskii et al. 2019).
BLUR, OTHER_BLURS = 0.03, (0.01, 0.05)
JUDGED = ("similarity", "pearson", "kl", "emd")
MEAN_RECORDS = 5.6  # of a synthetic person, geometric: the mean of the Tokyo users
GAMMA = 10_000

PAPER, KEPT, SHARD = "EMD, as the paper", "EMD, all kept", "EMD, all kept, in a shard"
METHODS: dict[str, Method] = {
    "Laplace": Flat(),
    "Laplace, top 1%": Flat(keep_top=1.0),
    "Laplace, top 0.1%": Flat(keep_top=0.1),
    "Laplace, top 0.01%": Flat(keep_top=0.01),
    PAPER: Emd(emd_fit="refined"),
    KEPT: Emd(),
    SHARD: Emd(),
}
BASELINES = tuple(METHODS)[:4]
PICTURED = ("Laplace", "Laplace, top 0.01%", PAPER, KEPT)
# Of --baselines: by a trusted curator with the exact sums and Laplace noise.
BASELINE_EPSILONS, CENTRES = (0.5, 1.0, 5.0), (3, 10)
BASELINE_SIDE = 64  # cells along a side on which blurred maps are judged and centres are chosen
PRIVHP_SIZES = ((16, 1), (32, 1), (128, 1), (16, 4), (32, 4))  # k, and rows of a sketch
BASELINE_JUDGED = (*JUDGED, *(f"{k}-median" for k in CENTRES))
KEY = RunKey.derive(FixedSecret(b"few users"), {"benchmark": "few users"})

Scores = dict[tuple[str, float], list[float]]  # by method and epsilon: a value for each metric


@dataclass(frozen=True, eq=False)
class CityCell:
    """Records in a rectangle. users: int64[n], an id each record; longitude, latitude: float64[n], degrees."""

    name: str
    region: Region
    users: np.ndarray
    longitude: np.ndarray
    latitude: np.ndarray

    @classmethod
    def cut(cls, name: str, region: Region, records: Sequence[np.ndarray]) -> CityCell:
        """The records (users, longitude, latitude) that lie in the region."""
        _, x, y = records
        inside = (x >= region.west) & (x < region.east) & (y >= region.south) & (y < region.north)
        return cls(name, region, *(column[inside] for column in records))

    @property
    def population(self) -> int:
        """Users with a record in the cell."""
        return len(np.unique(self.users))

    def rows(self, users: int, depth: int, key: RunKey) -> Rows:
        """The distributions of so many of the cell's users, drawn by the key."""
        hashes = np.ascontiguousarray(keyed_hash(key.subkey("drawn"), self.users))
        drawn = np.isin(hashes, np.unique(hashes)[:users])
        # Drawn users have small hashes; their shards and the rounding of their weights go by new ones.
        hashes = np.ascontiguousarray(keyed_hash(key.subkey("users"), self.users[drawn]))
        codes = Grid(self.region, depth).codes(self.longitude[drawn], self.latitude[drawn])
        chunk = Spill().store(hashes.data, codes.astype(Places(depth).dtype).data)
        many = bound_distributions([chunk], Places(depth), GAMMA)
        return Rows(Places(depth), many.users, many.codes.astype(np.uint64), many.weights)


def tokyo_cells() -> Iterator[CityCell]:
    """Cells of the paper's size, half overlapping, and cells of half its sides, side by side: all with 200 users."""
    table = pq.read_table(Path(os.environ["SFUMATO_DATA"]) / "foursquare_tokyo_checkins.parquet")
    records = [table[name].to_numpy() for name in ("user_id", "longitude", "latitude")]
    west, south = 139.40, 35.45  # below and left of all records
    for kind, scale in (("Tokyo", 1.0), ("Tokyo, small", 0.5)):
        width, height = WIDTH * scale, HEIGHT * scale
        for number in range(100):
            x, y = west + number // 10 * WIDTH / 2, south + number % 10 * HEIGHT / 2
            cell = CityCell.cut(f"{kind} {number}", Region(x, y, x + width, y + height), records)
            if cell.population >= USERS:
                yield cell


def synthetic_cells() -> Iterator[CityCell]:
    """Without end: the city's 14 x 14 km at a random place in a cell of the paper's size, with new people each time.

    Few people have many records: their numbers are geometric.
    """
    city, people = build_city(), 2000
    west, south = -97.9, 30.2
    for seed in range(1 << 30):
        generator = np.random.default_rng(seed)
        wide, tall = SIZE_KM / (111.2 * np.cos(np.radians(south))), SIZE_KM / 111.2
        x, y = west + generator.uniform(0, WIDTH - wide), south + generator.uniform(0, HEIGHT - tall)
        numbers = np.minimum(generator.geometric(1 / MEAN_RECORDS, people), 50)
        table = make_people(
            0, people, city=city, seed=seed, records_per_user=50, region=Region(x, y, x + wide, y + tall)
        )
        records = [table[name].to_numpy() for name in ("user_id", "longitude", "latitude")]
        kept = np.repeat(np.arange(50), people) < np.tile(numbers, 50)  # by record, then by person
        region = Region(west, south, west + WIDTH, south + HEIGHT)
        yield CityCell.cut(f"synthetic {seed}", region, [column[kept] for column in records])


def paper_cells() -> list[CityCell]:
    """The paper's: of 300 x 300 over the continental US, the 30 of the most check-ins; none without its data sets.

    The check-ins of both networks count together, each network's in its months; their users are different people.
    """
    records = [network_records(name, *months) for name, months in PAPER_MONTHS.items() if dataset(name)]
    if len(records) < len(PAPER_MONTHS):
        return []
    users, x, y = (np.concatenate(column) for column in zip(*records, strict=True))
    column, row = np.floor((x - US.west) / WIDTH), np.floor((y - US.south) / HEIGHT)
    number, sizes = np.unique((column * 300 + row).astype(np.int64), return_counts=True)
    cells = []
    for one in number[np.argsort(-sizes, kind="stable")]:
        west, south = US.west + one // 300 * WIDTH, US.south + one % 300 * HEIGHT
        cell = CityCell.cut(f"US {one}", Region(west, south, west + WIDTH, south + HEIGHT), (users, x, y))
        if cell.population >= USERS:
            cells.append(cell)
        if len(cells) == CELLS:
            break
    return cells


def network_records(name: str, first: str, end: str) -> list[np.ndarray]:
    """Users, longitudes and latitudes of a network's check-ins in the US from one month to before another."""
    path = dataset(name)
    months = [("timestamp", ">=", pd.Timestamp(first, tz="UTC")), ("timestamp", "<", pd.Timestamp(end, tz="UTC"))]
    inside = [("longitude", ">", US.west), ("longitude", "<", US.east), ("latitude", ">", US.south)]
    table = pq.read_table(path, filters=[*months, *inside, ("latitude", "<", US.north)])
    users = table["user_id"].to_numpy() * len(PAPER_MONTHS) + [*PAPER_MONTHS].index(name)
    return [users, table["longitude"].to_numpy(), table["latitude"].to_numpy()]


def city_cells() -> list[CityCell]:
    """The 30 cells."""
    if cells := paper_cells():
        return cells
    cells = [*tokyo_cells()][:CELLS]
    synthetic = synthetic_cells()
    return [*cells, *(next(synthetic) for _ in range(CELLS - len(cells)))]


@dataclass(frozen=True)
class Plan:
    """What every run of one experiment does."""

    methods: tuple[str, ...] = tuple(METHODS)
    epsilons: tuple[float, ...] = (1.0,)
    blur: float = BLUR
    users: int = USERS
    depth: int = DEPTH

    def cases(self) -> Iterator[Case]:
        for name in self.methods:
            for epsilon in self.epsilons:
                yield make_case(name, epsilon, self.users, self.depth)


def make_case(name: str, epsilon: float, users: int = USERS, depth: int = DEPTH) -> Case:
    """A method with a trusted curator, or in one shard that tolerates what `case_parameters` lets it."""
    values = {"epsilon": epsilon, "depth": depth, "contribution": "all", "gamma": GAMMA, "shard_size": users}
    values |= {"users": users, "population": users, "trust": "secagg" if name == SHARD else "central"}
    parameters = replace(case_parameters(METHODS[name].NAME, values), method=METHODS[name])
    return Case(Setting(name, (("epsilon", epsilon),)), parameters)


def evaluation(case: Case, rows: Rows, blur: float, number: int, key: RunKey) -> Outcome:
    """One outcome. number: 0 draws a picture."""
    judged = Evaluation(JUDGED, blur, of_cohort=True)
    users = case.parameters.users or USERS
    return next(evaluate_case(case, rows, users, number, judged, rows.histogram(), key))


def run(task: tuple[CityCell, int], plan: Plan) -> Scores:
    """All methods of a plan on one draw of users."""
    cell, trial = task
    key = KEY.narrowed({"cell": cell.name, "trial": trial})
    rows = cell.rows(plan.users, plan.depth, key)
    outcomes = [evaluation(case, rows, plan.blur, 1, key) for case in plan.cases()]
    return {
        (one.setting.method, dict(one.setting.options)["epsilon"]): [one.metrics[metric] for metric in JUDGED]
        for one in outcomes
    }


def run_pydp(task: tuple[CityCell, int]) -> Scores:
    """The paper's algorithm on exact sums with PyDP's secure Laplace noise, at epsilon 1, beside our mechanism."""
    from pydp.algorithms.numerical_mechanisms import LaplaceMechanism

    def noise(scale: float, n: int) -> np.ndarray:
        add_noise = LaplaceMechanism(1 / scale, 1.0).add_noise
        return np.array([add_noise(0.0) for _ in range(n)])

    cell, trial = task
    key = KEY.narrowed({"cell": cell.name, "trial": trial})
    rows = cell.rows(USERS, DEPTH, key)
    exact = rows.histogram()
    estimate = emd_aggregate(by_row(exact) / GAMMA, 1.0, METHODS[PAPER], noise)
    scores = evaluate(gaussian_heatmap(estimate, BLUR), gaussian_heatmap(truth_of(exact), BLUR), JUDGED)
    return {("PyDP", 1.0): [scores[one] for one in JUDGED]}


def baseline_densities(rows: Rows, epsilon: float, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """The density float64[side, side] by mechanism. Each mechanism has all of epsilon."""
    sums, users = rows.histogram() / GAMMA, len(np.unique(rows.users))
    raster = by_row(sums)

    def noise(scale: float, n: int) -> np.ndarray:
        return generator.laplace(0, scale, n)

    paper, kept, proof = METHODS[PAPER], METHODS[KEPT], Emd(emd_decay=0.8, emd_fit="refined")
    cells = np.maximum(raster + noise(1 / epsilon, raster.size).reshape(raster.shape), 0)
    return {
        "Laplace": cells / cells.sum(),
        PAPER: emd_aggregate(raster, epsilon, paper, noise),
        "EMD, as analysed, g = 0.8": analysed_aggregate(raster, epsilon, proof, noise),
        "EMD, as analysed, g = 0.71": analysed_aggregate(raster, epsilon, paper, noise),
        KEPT: emd_aggregate(raster, epsilon, kept, noise),
        **{
            f"PrivHP, k = {k}, {count} row{'s'[: count > 1]}": by_row(
                privhp_density(sums, users, epsilon, k, count, generator)
            )
            for k, count in PRIVHP_SIZES
        },
    }


def run_baselines(task: tuple[CityCell, int]) -> Scores:
    """Scores of the mechanisms of `baseline_densities` on one draw of users, in the order of BASELINE_JUDGED.

    k-median: the mean distance of the true users from centres chosen on a density, over that from centres chosen on
    the exact density.
    """
    cell, trial = task
    rows = cell.rows(USERS, DEPTH, KEY.narrowed({"cell": cell.name, "trial": trial}))
    exact = truth_of(rows.histogram())
    shown, scores = coarsen(gaussian_heatmap(exact, BLUR), BASELINE_SIDE), {}
    generator = np.random.default_rng([trial, *cell.name.encode()])
    best = {k: median_cost(exact, k_median(coarsen(exact, BASELINE_SIDE), k, generator)) for k in CENTRES}
    for epsilon in BASELINE_EPSILONS:
        for name, found in baseline_densities(rows, epsilon, generator).items():
            judged = evaluate(coarsen(gaussian_heatmap(found, BLUR), BASELINE_SIDE), shown, JUDGED)
            centres = {k: k_median(coarsen(found, BASELINE_SIDE), k, generator) for k in CENTRES}
            costs = [median_cost(exact, centres[k]) / best[k] for k in CENTRES]
            scores[name, epsilon] = [*judged.values(), *costs]
    return scores


def baseline_table(runs: list[Scores]) -> str:
    """Returns the mean (se: standard error) of each mechanism by metric and epsilon; the best of a row in bold."""
    names = list(dict.fromkeys(name for name, _ in runs[0]))
    rows = []
    for column, metric in enumerate(BASELINE_JUDGED):
        for epsilon in BASELINE_EPSILONS:
            found = {name: np.array([one[name, epsilon][column] for one in runs]) for name in names}
            pick = better(metric)
            winner = pick(found, key=lambda name: found[name].mean())
            shown = {name: f"{one.mean():.3f} (se {error(one):.3f})" for name, one in found.items()}
            rows.append([metric, f"{epsilon:g}", *(f"**{t}**" if n == winner else t for n, t in shown.items())])
    return markdown(["metric", "epsilon", *names], rows)


class Results:
    """Scores of many runs. values: float64[runs, metrics] by method and epsilon."""

    def __init__(self, runs: list[Scores]):
        self.runs = runs
        self.values = {at: np.array([one[at] for one in runs]) for at in runs[0]}

    def of(self, metric: str, method: str, epsilon: float = 1.0) -> np.ndarray:
        """float64[runs]."""
        return self.values[method, epsilon][:, JUDGED.index(metric)]

    def row(self, metric: str, epsilon: float = 1.0) -> list[str]:
        """Returns the mean (se: standard error) of every method; the best in bold."""
        values = {name: self.of(metric, name, epsilon) for name in METHODS}
        winner = better(metric)(values, key=lambda name: values[name].mean())
        shown = {name: f"{one.mean():.3f} (se {error(one):.3f})" for name, one in values.items()}
        return [f"**{text}**" if name == winner else text for name, text in shown.items()]


def error(values: np.ndarray) -> float:
    """Standard error of the mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def better(metric: str) -> Callable[..., Any]:
    """max or min: which picks the better of several values."""
    return max if metric in HIGHER_IS_BETTER else min


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows))


def accuracy(results: Results) -> str:
    """Figure 1 as a table."""
    rows = [[metric, f"{epsilon:g}", *results.row(metric, epsilon)] for metric in JUDGED for epsilon in EPSILONS]
    return markdown(["metric", "epsilon", *METHODS], rows)


def leads(results: Results, method: str) -> str:
    """At how many of the goal's points the method is better than every baseline, and where it is not."""
    behind, close = [], 0
    for metric in JUDGED:
        for epsilon in GOAL:
            means = {name: results.of(metric, name, epsilon).mean() for name in BASELINES}
            rival = better(metric)(means, key=lambda name: means[name])
            gap = results.of(metric, method, epsilon) - results.of(metric, rival, epsilon)
            gap = gap if better(metric) is max else -gap
            if gap.mean() <= 0:
                behind.append(f"{metric} at epsilon {epsilon:g} (behind {rival})")
            close += 0 < gap.mean() < 2 * error(gap)
    points = len(JUDGED) * len(GOAL)
    text = f"{method}: better than all four baselines at {points - len(behind)} of {points} points"
    text += f", {close} of them by less than two standard errors of the paired difference" if close else ""
    return f"- {text}{'; not in ' + ', '.join(behind) if behind else ''}."


def sweep(name: str, found: dict[str, Results]) -> str:
    """One row a metric and value of what is swept."""
    rows = [[metric, value, *one.row(metric)] for metric in JUDGED for value, one in found.items()]
    return markdown(["metric", name, *METHODS], rows)


def steadiness(found: dict[str, Results]) -> str:
    """How far each method's means lie apart over resolutions: the largest over the least."""
    rows = []
    for metric in JUDGED:
        means = {name: [one.of(metric, name).mean() for one in found.values()] for name in METHODS}
        rows.append([metric, *(f"{max(one) / min(one):.2f}" if min(one) > 0 else "-" for one in means.values())])
    return markdown(["metric", *METHODS], rows)


def pydp_table(mine: Results, pydp: Results) -> str:
    """Our discrete mechanism and PyDP's, on the same users."""
    rows = []
    for metric in JUDGED:
        ours, theirs = mine.of(metric, PAPER), pydp.of(metric, "PyDP")
        shown = [f"{one.mean():.3f} (se {error(one):.3f})" for one in (ours, theirs, ours - theirs)]
        rows.append([metric, *shown])
    return markdown(["metric", "discrete Laplace", "PyDP", "difference"], rows)


def release_speed(cell: CityCell) -> str:
    """Milliseconds of one release in memory, median of 20: all rounds, and from the answers to the density."""
    rows = []
    for name in (PAPER, KEPT, SHARD):
        case, key = make_case(name, 1.0), KEY.narrowed({"speed": name})
        records, times = cell.rows(USERS, DEPTH, key), []
        for number in range(20):
            began = time.perf_counter()
            state = run_in_memory(records, USERS, case.parameters, key.narrowed({"number": number}))
            decoded_at = time.perf_counter()
            estimate = case.parameters.method.decode(state, DEPTH)
            density(estimate.tree, estimate.counts, DEPTH)
            times.append((decoded_at - began, time.perf_counter() - decoded_at))
        rounds, decode = (1e3 * statistics.median(one) for one in zip(*times, strict=True))
        rows.append([name, f"{rounds:.0f}", f"{decode:.0f}", f"{rounds + decode:.0f}"])
    return markdown(["method", "rounds, ms", "decoding, ms", "together, ms"], rows)


def job_speed(folder: Path, repeats: int = 3) -> str:
    """`sfumato heatmap --method emd --depth 12` on a million users: the run of median length, and its phases."""
    rows = []
    for records in (1, 5):
        logs = folder / f"million_by_{records}"
        if not logs.exists():
            wanted = ("--users", "1000000", "--records_per_user", str(records), "--output", str(logs))
            subprocess.run(command("synth", *wanted), check=True, stdout=sys.stderr)
        runs = []
        for _ in range(repeats):
            lines, seconds, peak = watch(
                "heatmap", "--input", f"{logs}/*.parquet", "--region", ",".join(map(str, REGION)),
                "--method", "emd", "--depth", "12", "--epsilon", "1",
            )  # fmt: skip
            marks = ["to read", "read and grouped", "sub-query 1:", "sub-query 11:"]
            ends = [0.0, *(next(at for at, line in lines if mark in line) for mark in marks), seconds]
            runs.append((seconds, peak / 1e6, *np.diff(ends)))
        seconds, peak, *split = sorted(runs)[repeats // 2]
        rows.append([str(records), f"{seconds:.1f}", f"{peak:.0f}", *(f"{one:.1f}" for one in split)])
    parts = ["start", "read, hash, group", "index, first round", "other ten rounds", "map, page, picture"]
    return markdown(["records a user", "seconds", "peak MB", *parts], rows)


def draw_picture(cell: CityCell, path: Path) -> None:
    """Figure 2: the exact heatmap and what the methods make of it, at epsilon 1 and 5."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    key = KEY.narrowed({"picture": cell.name})
    rows = cell.rows(USERS, DEPTH, key)
    exact = gaussian_heatmap(truth_of(rows.histogram()), BLUR)
    norm = PowerNorm(0.6, 0, exact.max(), clip=True)
    figure = Figure(figsize=(2.2 * (1 + len(PICTURED)), 4.9), dpi=100, layout="constrained")
    grid = figure.subplots(2, 1 + len(PICTURED))
    for line, epsilon in zip(grid, (1.0, 5.0), strict=True):
        shown = {"exact, not private": exact}
        shown |= {name: evaluation(make_case(name, epsilon), rows, BLUR, 0, key).picture for name in PICTURED}
        for axes, (name, heat) in zip(line, shown.items(), strict=True):
            axes.imshow(heat, cmap="inferno", norm=norm, interpolation="antialiased")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if epsilon == 1.0:
                axes.set_title(name, fontsize=10)
        line[0].set_ylabel(f"ε = {epsilon:g}", fontsize=12)
    FigureCanvasAgg(figure).print_png(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2 * CELLS, help="of the first table, 2 or more")
    parser.add_argument("--quick", action="store_true", help="3 runs, and no job of a million users")
    parser.add_argument("--baselines", action="store_true", help="the analysed form, PrivHP and k-median alone")
    parser.add_argument("--picture", type=Path, help="where to draw the picture, a PNG file")
    parser.add_argument("--data", type=Path, default=Path("bench_data"), help="folder of the million users' logs")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if "SFUMATO_DATA" not in os.environ:
        raise SystemExit("SFUMATO_DATA: must name the folder that holds foursquare_tokyo_checkins.parquet")
    began = time.perf_counter()
    cells = city_cells()
    wanted = 3 if options.quick else options.runs
    step = max(1, len(cells) // wanted)
    tasks = [(cells[number * step % len(cells)], number // len(cells)) for number in range(wanted)]
    large = sorted((cell for cell in cells if cell.population >= max(SWEPT_USERS)), key=lambda cell: cell.name)
    strides = [number * max(1, len(large) // 10) for number in range(min(10, wanted))]
    ten = [(large[one % len(large)], one // len(large)) for one in strides]
    populations = [cell.population for cell in cells]
    kinds = Counter(cell.name.split()[0].strip(",") for cell in cells)
    side = 1 << DEPTH
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    of_kinds = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    print(
        f"{len(cells)} cells ({of_kinds}) of {min(populations):,} to {max(populations):,} users; {wanted} runs of "
        f"{USERS} users, {side} x {side}, mean (se: standard error)"
    )
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read by the workers: they are as many as cores
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:

        def measured(plan: Plan, tasks: list[tuple[CityCell, int]]) -> Results:
            results = Results([*pool.map(partial(run, plan=plan), tasks)])
            done = f"{time.perf_counter() - began:.0f} s: {plan.users} users, depth {plan.depth}"
            print(done, file=sys.stderr, flush=True)
            return results

        if options.baselines:
            table = baseline_table([*pool.map(run_baselines, tasks)])
            print(f"\nWith a trusted curator, sigma {BLUR:g}\n\n{table}")
            return
        by_epsilon = measured(Plan(epsilons=EPSILONS), tasks)
        print(f"\nBy epsilon, sigma {BLUR:g}\n\n{accuracy(by_epsilon)}\n")
        print(f"Epsilon {', '.join(f'{one:g}' for one in GOAL)}, four metrics:\n")
        print("\n".join(leads(by_epsilon, name) for name in (PAPER, KEPT, SHARD)))

        each = tasks[:CELLS]
        title = f"By standard deviation of the filter, in sides, epsilon 1, {len(each)} runs"
        blurred = {blur: measured(Plan(blur=blur), each) for blur in OTHER_BLURS}
        blurred[BLUR] = Results(by_epsilon.runs[: len(each)])
        found = {f"{blur:g}": blurred[blur] for blur in sorted(blurred)}
        print(f"\n{title}\n\n{sweep('sigma', found)}")
        found = {str(users): measured(Plan(users=users), ten) for users in SWEPT_USERS}
        print(f"\nBy number of users, epsilon 1, {len(ten)} runs in cells of 500 users or more\n")
        print(sweep("users", found))
        found = {f"{1 << depth}": measured(Plan(depth=depth), tasks) for depth in SWEPT_DEPTHS if depth != DEPTH}
        found |= {f"{1 << DEPTH}": by_epsilon}
        print(f"\nBy resolution, epsilon 1, {wanted} runs\n\n{sweep('side', found)}")
        print(f"\nLargest mean of the three resolutions over the least\n\n{steadiness(found)}")
        pydp = Results([*pool.map(run_pydp, tasks)])
        print(f"\nThe paper's method with two mechanisms, epsilon 1, {wanted} runs\n\n{pydp_table(by_epsilon, pydp)}")
    del os.environ["OPENBLAS_NUM_THREADS"]
    real = [cell for cell in cells if not cell.name.startswith("synthetic")]
    centre = max(real, key=lambda cell: cell.population)
    print(f"\nOne release of {USERS} users at {side} x {side} in memory\n\n{release_speed(centre)}")
    if options.picture:
        draw_picture(centre, options.picture)
    if not options.quick:
        options.data.mkdir(parents=True, exist_ok=True)
        print("\n`sfumato heatmap --method emd --depth 12`, a million users: seconds in all and by phase")
        print(f"\n{job_speed(options.data)}")
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
