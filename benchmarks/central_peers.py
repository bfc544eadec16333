"""`--trust central` beside other libraries in one run: accuracy at equal guarantees, and time as a ratio to duckdb's.

    SFUMATO_DATA=... python -m benchmarks.central_peers [--data bench_data] [--tasks counts,quantiles,moments]
        [--libraries duckdb,OpenDP,PyDP,PipelineDP] [--repetitions 12] [--repeats 3] [--quick]

Three tasks, at epsilon 0.1 and 1: users by item with a bound on a user's items (delta 1e-8), nine quantiles, and means
and variances by group. All libraries read the same Parquet files, whose users have several records each, and bound a
user's contribution (benchmarks/baselines/dp_libraries.py); adjacency is adding or removing one user. Accuracy: means of
so many runs, each a run of the complete job; PipelineDP, and OpenDP but for moments, run a third as often. Time: the
median of so many runs of the whole command, libraries one after the other in each, but one run of PipelineDP; ratios
are of processor seconds, which other work on the machine changes little. The floor is the same result by duckdb,
without a bound and without noise, in a process of its own too. Without `SFUMATO_DATA` the real data are left out, and
so is a library that is not installed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import sfumato
from benchmarks.baselines.dp_libraries import GROUPS, QUANTILES, RANGE, TASKS, pydp_shown
from benchmarks.hotspots import REGION as SF
from sfumato.schemas.region import Grid
from sfumato.transforms.histogram.central_counts import CentralCountPlan
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.observability.text_tables import markdown_table, significant

DELTA = 1e-8
EPSILONS = (0.1, 1.0)
TOP = 50
CITY_ITEMS, CITY_BOUND = 20_000, 4
OURS = "sfumato"
PACKAGES = {
    "duckdb": ("duckdb",),
    "OpenDP": ("opendp", "polars"),
    "PyDP": ("python-dp", "duckdb"),
    "PipelineDP": ("pipeline-dp", "apache-beam"),
}
SLOW = {"counts": ("OpenDP", "PipelineDP"), "quantiles": ("OpenDP", "PipelineDP"), "moments": ("PipelineDP",)}
RECALL, ITEMS = f"recall of the top {TOP}", "items published"
MOST = {"mean": RANGE[1], "variance": (RANGE[1] - RANGE[0]) ** 2 / 4}  # results are cut to what is possible
HIGHER = (RECALL, ITEMS)  # scores of which more is better


@dataclass(frozen=True)
class Logs:
    """Parquet files with the columns that dp_libraries states.

    Attributes:
        name: what they are.
        folder: where they are.
        bound: the most items that count for a user.
    """

    name: str
    folder: Path
    bound: int

    @cached_property
    def users(self) -> pd.DataFrame:
        """A row a user: group and value."""
        return self.records.drop_duplicates("user_id")

    @cached_property
    def item_users(self) -> pd.Series:
        """Users by item, each user in all their items."""
        return self.records[["user_id", "item"]].drop_duplicates()["item"].value_counts()

    @cached_property
    def records(self) -> pd.DataFrame:
        return pq.read_table(self.folder).to_pandas()


@dataclass(frozen=True)
class Setting:
    """One comparison: the same task, logs and guarantee for every library.

    Attributes:
        task: counts, quantiles or moments.
        logs: the input.
        epsilon: privacy budget of the complete result.
        statistics: of moments.
    """

    task: str
    logs: Logs
    epsilon: float
    statistics: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        return ", ".join(
            [self.logs.name, *([f"bound {self.logs.bound}"] if self.task == "counts" else self.statistics)]
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments of dp_libraries. Several items of a user are better served by Gaussian noise."""
        noise = "gaussian" if self.logs.bound > 1 else "laplace"
        extra: dict[str, dict[str, Any]] = {
            "counts": {"delta": DELTA, "bound": self.logs.bound, "noise": noise},
            "quantiles": {},
            "moments": {"statistics": self.statistics},
        }
        return {"epsilon": self.epsilon, **extra[self.task]}

    def sfumato_job(self) -> tuple[str, dict[str, str]]:
        """Job and options of the same request."""
        jobs = {
            "counts": ("histogram", {"column": "item", "delta": DELTA, "max_items_per_user": self.logs.bound}),
            "quantiles": ("quantiles", {"column": "value", "range": RANGE, "quantiles": QUANTILES}),
            "moments": (
                "moments",
                {
                    "column": "value",
                    "range": RANGE,
                    "group_by": "group",
                    "groups": GROUPS,
                    "statistics": self.statistics,
                },
            ),
        }
        job, options = jobs[self.task]
        options_of_job = {
            "input": f"{self.logs.folder}/*.parquet",
            "trust": "central",
            "epsilon": self.epsilon,
            **options,
        }
        return job, {name: _text(value) for name, value in options_of_job.items()}


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def city(root: Path, users: int) -> Logs:
    """A synthetic city, made if it is missing: geometrically many records a user, about 3; items by Zipf's law."""
    folder = root / f"visits{users}"
    if not folder.exists():
        generator = np.random.default_rng(users)
        records = generator.geometric(1 / 3, users)
        shares = 1 / np.arange(1, CITY_ITEMS + 1)
        user = np.repeat(np.arange(users), records)
        item = generator.choice(CITY_ITEMS, len(user), p=shares / shares.sum())
        group = np.minimum(generator.geometric(0.2, users) - 1, len(GROUPS) - 1)[user]
        value = generator.lognormal(1, 1, users).clip(*RANGE)[user]
        order = generator.permutation(len(user))
        ids = user * 6364136223846793005 >> 1
        names = np.array([f"venue {number:05d}" for number in range(CITY_ITEMS)])[item]
        columns = {"user_id": ids, "item": names, "group": np.array(GROUPS)[group], "value": value}
        _write(folder, {name: column[order] for name, column in columns.items()}, 4)
    return Logs(f"city, {users:,} users", folder, CITY_BOUND)


def cabs(root: Path) -> Logs:
    """Cells of depth 8 in San Francisco, and the latitude in % of its side. Every trip is a user: no rider is known."""
    folder = root / "cabs"
    if not folder.exists():
        table = pq.read_table(Path(os.environ["SFUMATO_DATA"]) / "sf_cabs_starts.parquet")
        latitude, longitude = table["latitude"].to_numpy(), table["longitude"].to_numpy()
        cells = Grid(SF, 8).codes(longitude, latitude)
        value = RANGE[1] * (latitude - SF.south) / (SF.north - SF.south)
        _write(folder, {"user_id": table["user_id"], "item": cells.astype(str), "value": value}, 2)
    return Logs("SF cabs", folder, 1)


def check_ins(root: Path) -> Logs:
    """Categories of venues in Tokyo."""
    folder = root / "check_ins"
    if not folder.exists():
        table = pq.read_table(Path(os.environ["SFUMATO_DATA"]) / "foursquare_tokyo_checkins.parquet")
        _write(folder, {"user_id": table["user_id"], "item": table["venue_category"]}, 2)
    return Logs("Tokyo check-ins", folder, 5)


def _write(folder: Path, columns: Mapping[str, Any], files: int) -> None:
    folder.mkdir(parents=True)
    table = pa.table(dict(columns))
    rows = -(-len(table) // files)
    for number in range(files):
        pq.write_table(table.slice(number * rows, rows), folder / f"{number}.parquet")


def run_sfumato(setting: Setting) -> Any:
    """The complete job in this process, and its result in the form of dp_libraries."""
    job, options = setting.sfumato_job()
    release = getattr(sfumato, job)(options.pop("input"), **options)
    if setting.task == "counts":
        return dict(zip(release.items["item"], release.items["count"], strict=True))
    if setting.task == "quantiles":
        return release.quantiles["value"].tolist()
    return release.moments.pivot(index="group", columns="statistic", values="value").reindex(GROUPS)


def scores(setting: Setting, result: Any) -> dict[str, float]:
    """What is compared, by `HIGHER` or lower."""
    if setting.task == "counts":
        truth = setting.logs.item_users  # in descending order
        found = pd.Series(result, dtype=float)
        errors = found.reindex(truth.index, fill_value=0.0).sub(truth).abs()
        return {
            RECALL: float(truth.index[:TOP].isin(found.index).mean()),
            ITEMS: float(len(found)),
            f"mean error of the top {TOP}, users": float(errors.iloc[:TOP].mean()),
            "all errors, % of all counts": float(100 * errors.sum() / truth.sum()),
        }
    if setting.task == "quantiles":
        values, shares = np.sort(setting.logs.users["value"].to_numpy()), np.array(QUANTILES)
        below, up_to = (np.searchsorted(values, result, side) / len(values) for side in ("left", "right"))
        errors = np.maximum(np.maximum(below - shares, shares - up_to), 0)
        return {"mean rank error": float(errors.mean()), "largest rank error": float(errors.max())}
    values = setting.logs.users.groupby("group")["value"]
    truth = pd.DataFrame({"mean": values.mean(), "variance": values.var(ddof=0)})[list(setting.statistics)]
    found = result.reindex(truth.index)[truth.columns].clip(0, [MOST[name] for name in truth], axis=1)
    relative = (found / truth - 1).fillna(-1.0)  # a group without a result errs by all of its mean
    return {f"{name}: relative RMSE, %": float(100 * np.sqrt(np.mean(relative[name] ** 2))) for name in truth}


def measure(setting: Setting, libraries: Sequence[str], repetitions: int) -> dict[str, pd.DataFrame]:
    """By library, a row a run and a column a score."""
    found = {OURS: pd.DataFrame([scores(setting, run_sfumato(setting)) for _ in range(repetitions)])}
    for library in libraries:
        run = TASKS[setting.task][library]
        runs = -(-repetitions // 3) if library in SLOW[setting.task] else repetitions
        found[library] = pd.DataFrame(
            [scores(setting, run(setting.logs.folder, **setting.parameters)) for _ in range(runs)]
        )
    return found


def accuracy_table(measured: Mapping[Setting, Mapping[str, pd.DataFrame]]) -> str:
    """Markdown: mean (se: standard error). Bold: no other library's mean is better."""
    columns = list(dict.fromkeys(score for found in measured.values() for score in found[OURS]))
    lines = [["input", "epsilon", "library", *columns]]
    for setting, found in measured.items():
        means = pd.DataFrame({name: runs.mean() for name, runs in found.items()})
        for name, runs in found.items():
            cells = ["-"] * len(columns)
            for score, mean in means[name].items():
                best = means.loc[score].max() if score in HIGHER else means.loc[score].min()
                text = f"{significant(mean)} (se {significant(_error(runs[score]), 1)})"
                cells[columns.index(str(score))] = f"**{text}**" if mean == best else text
            lines.append([setting.what, f"{setting.epsilon:g}", name, *cells])
    return markdown_table(lines, left=(0, 2))


def _error(scores: pd.Series) -> float:
    """The standard error of the mean; of a single run nothing is known."""
    return float(scores.sem()) if len(scores) > 1 else 0.0


def comparisons(setting: Setting, found: Mapping[str, pd.DataFrame]) -> list[str]:
    """One line a score: ours against the strongest library, in standard errors of their difference."""
    lines = []
    for score in found[OURS]:
        sign = -1 if score in HIGHER else 1
        peers = {name: runs[score] for name, runs in found.items() if name != OURS}
        if not peers:
            continue
        strongest = min(peers, key=lambda name: sign * peers[name].mean())
        ours, theirs = found[OURS][score], peers[strongest]
        distance = sign * (ours.mean() - theirs.mean())
        deviation = float(np.hypot(_error(ours), _error(theirs)))
        verdict = "worse" if distance > 3 * deviation else "better" if distance < -3 * deviation else "level"
        lines.append(
            f"{verdict}: {score}, {setting.what}, epsilon {setting.epsilon:g}: {significant(ours.mean())} against "
            f"{significant(theirs.mean())} of {strongest}"
        )
    return lines


@dataclass(frozen=True)
class Cost:
    """One run of a command."""

    seconds: float
    processor: float


def watch(arguments: Sequence[str]) -> Cost:
    """Runs a command to its end."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait for it again
        if process.returncode:
            output.seek(0)
            raise SystemExit(output.read().decode())
    return Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime)


def sfumato_command(setting: Setting, out: Path) -> list[str]:
    job, options = setting.sfumato_job()
    texts = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "sfumato.pipelines.command_line.cli", job, f"--output={out}", "--overwrite", *texts]


def library_command(setting: Setting, library: str, **options: Any) -> list[str]:
    parameters = json.dumps(setting.parameters | options)
    program = [sys.executable, "-m", "benchmarks.baselines.dp_libraries", setting.task, library]
    return [*program, str(setting.logs.folder), parameters]


def speed_rows(setting: Setting, libraries: Sequence[str], repeats: int) -> list[list[str]]:
    """Cells of a table: medians over the repeats; ratios are of processor seconds within a repeat."""
    with tempfile.TemporaryDirectory() as out:
        commands = {"duckdb": library_command(setting, "duckdb"), OURS: sfumato_command(setting, Path(out))}
        commands |= {name: library_command(setting, name) for name in libraries}
        if "PipelineDP" in libraries:
            commands["PipelineDP on Beam"] = library_command(setting, "PipelineDP", beam=True)
        watch(commands["duckdb"])  # warms the page cache
        repeated = [
            {name: watch(command) for name, command in commands.items() if first or "PipelineDP" not in name}
            for first in (True, *[False] * (repeats - 1))
        ]
    rows = []
    for name in commands:
        costs = [run for run in repeated if name in run]
        measured = [
            np.median([run[name].seconds for run in costs]),
            np.median([run[name].processor for run in costs]),
            *(np.median([run[name].processor / run[other].processor for run in costs]) for other in ("duckdb", OURS)),
        ]
        label = "duckdb, exact, no privacy: the floor" if name == "duckdb" else name
        rows.append([setting.what, label, *(f"{number:.3g}" for number in measured)])
    return rows


def hidden_table() -> str:
    """Markdown: the least count that is published with a probability of 99%, from the stated noise and threshold."""
    lines = [["epsilon", "bound", "sfumato", "noise", "PyDP, PipelineDP: Laplace", "Gaussian"]]
    for epsilon, bound in itertools.product(EPSILONS, (1, 4, 20, 100)):
        plan = CentralCountPlan(epsilon=epsilon, delta=DELTA, bound=ItemBound(bound))
        (noise,) = plan.noises
        theirs = [pydp_shown(epsilon, DELTA, bound, kind, 0.99) for kind in ("laplace", "gaussian")]
        lines.append(
            [f"{epsilon:g}", f"{bound}", f"{noise.hidden_count() + 1:,}", noise.kind, *map("{:,}".format, theirs)]
        )
    return markdown_table(lines)


def report(task: str, options: argparse.Namespace, libraries: Sequence[str]) -> None:
    """Prints the tables of a task."""
    print(f"\n## {task}\n")
    small, large = city(options.data, options.users // 10), city(options.data, options.users)
    statistics = (("mean",), ("mean", "variance")) if task == "moments" else ((),)
    peers = [name for name in libraries if name != "duckdb"]
    if options.repetitions:
        real = {"counts": (cabs, check_ins), "quantiles": (cabs,), "moments": ()}[task] if options.real else ()
        logs = [*(make(options.data) for make in real), small]
        measured = {}
        for setting in (Setting(task, *one) for one in itertools.product(logs, options.epsilons, statistics)):
            measured[setting] = measure(setting, peers, options.repetitions)
            print(f"measured: {task}, {setting.what}, epsilon {setting.epsilon:g}", file=sys.stderr, flush=True)
        if task == "counts" and "PyDP" in libraries:
            print(hidden_table())
        print(accuracy_table(measured))
        if verdicts := [line for setting, found in measured.items() for line in comparisons(setting, found)]:
            tally = [
                f"{name} at {sum(line.startswith(name) for line in verdicts)}" for name in ("better", "level", "worse")
            ]
            print(f"Beside each score's best library, by three standard errors: {', '.join(tally)} of {len(verdicts)}.")
            print("\n".join(f"- {line}" for line in verdicts if line.startswith("worse")))
    if options.repeats and "duckdb" in libraries:
        fast = [name for name in peers if name != "PipelineDP"]
        lines = [["input", "command", "wall s", "processor s", "times the floor", "times sfumato"]]
        for one, compared in ((small, peers), (large, fast)):
            lines += speed_rows(Setting(task, one, EPSILONS[-1], statistics[-1]), compared, options.repeats)
        print(markdown_table(lines, left=(0, 1)), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--libraries", default=",".join(PACKAGES))
    parser.add_argument("--users", type=int, default=1_000_000, help="of the city; accuracy is measured on a tenth")
    parser.add_argument("--repetitions", type=int, default=12, help="runs by setting, for accuracy; 0: times alone")
    parser.add_argument("--repeats", type=int, default=3, help="runs by command, for time; 0: accuracy alone")
    parser.add_argument("--quick", action="store_true", help="one run at epsilon 1 on a city of 2,000, without times")
    options = parser.parse_args(arguments)
    if options.quick:
        options.users, options.repetitions, options.repeats = 20_000, 1, 0
    options.epsilons = EPSILONS[-1:] if options.quick else EPSILONS
    options.real = not options.quick and "SFUMATO_DATA" in os.environ
    libraries = [name for name in options.libraries.split(",") if name and all(map(_version, PACKAGES[name]))]
    packages = dict.fromkeys(package for name in libraries for package in PACKAGES[name])
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"{', '.join(f'{package} {_version(package)}' for package in packages)}; "
        f"accuracy: mean (se: standard error) of {options.repetitions} runs, time: median of {options.repeats}"
    )
    for task in options.tasks.split(","):
        report(task, options, libraries)


def _version(package: str) -> str:
    """Empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
