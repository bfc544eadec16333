"""What each trust model costs in accuracy, job by job, on the demo's logs: one million users of the synthetic city.

    python -m benchmarks.trust [--logs 'demo/logs/*.parquet'] [--runs 5] [--only histogram,moments] [--baselines]

Every cell is the median over runs with keys of their own, of an error against the exact answer of the same logs. A
model that a job does not offer is a dash. The second table has baselines in models that the job does not offer, with
the same measures: `local`, and `shuffle`, where a shuffler that nobody controls mixes the messages of all users.
`--baselines`: this table alone.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import io
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import sfumato
from benchmarks.baselines.emd_trusted_server import emd_aggregate
from benchmarks.baselines.histogram_mechanisms import BernoulliShuffle, HistogramMechanism, UnaryEncoding
from benchmarks.baselines.location_oracles import local_epsilon, reported_shares, share_messages, shuffled_noise_shares
from benchmarks.evaluation.earth_mover import earth_mover
from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.region import Grid, Region, by_row, deinterleave
from sfumato.transforms.counting.methods import Emd
from sfumato.transforms.observability.text_tables import markdown_table, significant

REGION = (3.00, 1.00, 3.13, 1.13)
EPSILON, DELTA, TOP = 1.0, 1e-8, 50
SHARES = np.arange(1, 10) / 10
FEW = 200  # users of the map by the EMD method
FEW_USERS = "heatmap --method emd"
SHUFFLE, LOCAL = "shuffle", "local"
Measure = Callable[[pd.DataFrame, np.random.Generator], float]
"""The error of one run."""


def heatmap_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Half the L1 distance of the densities on a grid of 256 x 256 cells: the share of users in a wrong cell."""
    density = sfumato.heatmap(logs, region=REGION, epsilon=EPSILON, depth=8, **options).density
    x, y = deinterleave(np.arange(4**8, dtype=np.uint64))
    return misplaced(density[y, x] / density.sum(), counts_of(users, 8))


def misplaced(shares: np.ndarray, counts: np.ndarray) -> float:
    """Half the L1 distance of shares by cell code from those of exact counts."""
    return float(np.abs(shares - counts / counts.sum()).sum() / 2)


def few_users_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Earth mover's distance of the density of 200 of the users on 256 x 256 cells, in sides (paper 001)."""
    some = few_users(users, options["seed"])
    wanted = {"method": "emd", "depth": 8, "epsilon": EPSILON, "region": REGION, "population": FEW}
    if options["trust"] == Trust.SECAGG:
        wanted["shard_size"] = FEW
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_pandas(some), f"{folder}/logs.parquet")
        density = sfumato.heatmap(f"{folder}/logs.parquet", **wanted, **options).density
    return moved(density, some)


def few_users(users: pd.DataFrame, seed: int) -> pd.DataFrame:
    """200 users, drawn by a seed."""
    return users.sample(FEW, random_state=seed)


def moved(density: np.ndarray, users: pd.DataFrame) -> float:
    """The earth mover's distance of a density from the users' own, in sides."""
    return earth_mover(density / density.sum(), by_row(counts_of(users, 8) / len(users)))


def histogram_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Root mean square error of all 256 x 256 cells, in users; a cell that is not shown counts as 0."""
    if options["trust"] != Trust.SPLIT:  # whose noise needs no delta
        options["delta"] = DELTA
    cells = sfumato.histogram(logs, region=REGION, cells=8, epsilon=EPSILON, **options).cells
    error = counts_of(users, 8).astype(float)
    np.subtract.at(error, cell_codes(cells["cell_id"]), cells["count"].to_numpy())
    return float(np.sqrt((error**2).mean()))


def hotspots_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Share of the true 50 most frequent of 512 x 512 cells that are not among the 50 published."""
    spots = sfumato.hotspots(logs, region=REGION, depth=9, top=TOP, epsilon=EPSILON, delta=DELTA, **options).cells
    last = spots[spots["depth"] == 9].nlargest(TOP, "count")
    return missed(cell_codes(last["cell_id"]), counts_of(users, 9))


def missed(found: np.ndarray, counts: np.ndarray) -> float:
    """Share of the 50 largest counts that are not among the cells that were found."""
    return 1 - float((counts[found] >= np.sort(counts)[-TOP]).sum()) / TOP


def quantiles_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Mean distance of the nine deciles from their rank, as a share of the users; users within 1 m count as near."""
    release = sfumato.quantiles(
        logs,
        column="km_from_home",
        range=(-1, 15),
        quantiles=SHARES,
        bits=None if options["trust"] == "central" else 16,
        epsilon=EPSILON,
        **options,
    )
    values = np.sort(users["km_from_home"].to_numpy())
    found = release.quantiles["value"].to_numpy()
    below, up_to = (np.searchsorted(values, found + metres / 1000) / len(values) for metres in (-1, 1))
    return float(np.maximum(0, np.maximum(below - SHARES, SHARES - up_to)).mean())


def moments_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Error of the mean distance from home, in metres."""
    release = sfumato.moments(logs, column="km_from_home", bits=16, fraction_bits=8, epsilon=EPSILON, **options)
    mean = release.moments.set_index("statistic").loc["mean", "value"]
    return float(abs(mean - users["km_from_home"].clip(0).mean()) * 1000)


def ranges_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Median error of the users in 400 squares about users, with sides of 400 m, in users; cells of 200 m."""
    release = sfumato.ranges(
        logs, region=REGION, epsilon=EPSILON, method="grid", cell_width=200, population=len(users), **options
    )
    places = users.sample(400, random_state=1)
    squares = places["longitude"].to_numpy(), places["latitude"].to_numpy()
    half = 200 / 111_195
    east, north = users["longitude"].to_numpy(), users["latitude"].to_numpy()
    exact = [
        int(((np.abs(east - x) < half / np.cos(np.radians(y))) & (np.abs(north - y) < half)).sum())
        for x, y in zip(*squares, strict=True)
    ]
    answers, _ = release.model.answer(*squares, np.full(400, 400.0))
    return float(np.median(np.abs(answers.users - exact)))


JOBS: dict[str, tuple[str, Callable[..., float]]] = {
    "heatmap": ("share of users in a wrong cell of 256 x 256", heatmap_error),
    FEW_USERS: (f"earth mover's distance of a map of {FEW} users, sides", few_users_error),
    "histogram": ("root mean square error of 256 x 256 cells, users", histogram_error),
    "hotspots": ("share of the true top 50 that is missed", hotspots_error),
    "quantiles": ("mean rank error of nine deciles, share of users", quantiles_error),
    "moments": ("error of the mean distance from home, metres", moments_error),
    "ranges": ("median error of squares of 400 m, users", ranges_error),
}


def oracle_error(mechanism: HistogramMechanism) -> Measure:
    """`histogram_error` of a mechanism that counts 256 x 256 cells."""

    def error(users: pd.DataFrame, generator: np.random.Generator) -> float:
        counts = counts_of(users, 8)
        return float(np.sqrt(((mechanism.estimate(counts, generator) - counts) ** 2).mean()))

    return error


def oracle_missed(mechanism: HistogramMechanism) -> Measure:
    """`hotspots_error` of a mechanism that counts 512 x 512 cells."""

    def error(users: pd.DataFrame, generator: np.random.Generator) -> float:
        counts = counts_of(users, 9)
        return missed(np.argsort(-mechanism.estimate(counts, generator), kind="stable")[:TOP], counts)

    return error


def reported_errors(epsilon: float) -> list[Measure]:
    """`heatmap_error` of one report a user, on one of the first 2 to 8 levels."""

    def error(levels: int, users: pd.DataFrame, generator: np.random.Generator) -> float:
        counts = counts_of(users, 8)
        return misplaced(reported_shares(counts, epsilon, levels, generator), counts)

    return [partial(error, levels) for levels in range(2, 9)]


def shuffled_noise_error(users: pd.DataFrame, generator: np.random.Generator) -> float:
    """`heatmap_error` of shuffled noise messages."""
    counts = counts_of(users, 8)
    return misplaced(shuffled_noise_shares(counts, EPSILON, DELTA, generator), counts)


def emd_error(variates: int) -> Measure:
    """`few_users_error` of paper 001's method, with the sum of so many Laplace variates as noise on each sum."""

    def error(users: pd.DataFrame, generator: np.random.Generator) -> float:
        def noise(scale: float, n: int) -> np.ndarray:
            return generator.laplace(0, scale, (variates, n)).sum(axis=0)

        some = few_users(users, int(generator.integers(2**31)))
        return moved(emd_aggregate(by_row(counts_of(some, 8)).astype(np.float64), EPSILON, Emd(), noise), some)

    return error


@dataclass(frozen=True)
class Baseline:
    """A baseline in a trust model that its job does not offer.

    Attributes:
        job: as in JOBS.
        model: `shuffle` or `local`.
        mechanism: what a client sends.
        errors: of its variants; the one that errs least is shown.
    """

    job: str
    model: str
    mechanism: str
    errors: Sequence[Measure]

    def error(self, users: pd.DataFrame, runs: int) -> float:
        """The least median error of the variants."""
        found = [[one(users, np.random.default_rng(run)) for run in range(runs)] for one in self.errors]
        return float(np.median(found, axis=1).min())


def baselines(users: int) -> list[Baseline]:
    """The baselines for a public number of users."""
    amplified = local_epsilon(users, EPSILON, DELTA)
    report = "one report of one cell, by optimised unary encoding"
    shuffled = f"{report}; epsilon {amplified:.3g} before the shuffle"
    noise = "their cell, and noise messages for all cells (Balcer and Cheu)"
    shares = f"the method's sums in additive shares, {share_messages(FEW, 32)} messages for each entry of 32 bits"
    return [
        Baseline("heatmap", SHUFFLE, noise, [shuffled_noise_error]),
        Baseline("heatmap", SHUFFLE, f"{shuffled}, on a drawn level", reported_errors(amplified)),
        Baseline("heatmap", LOCAL, f"{report}, on a drawn level", reported_errors(EPSILON)),
        Baseline(FEW_USERS, SHUFFLE, shares, [emd_error(1)]),
        Baseline(FEW_USERS, LOCAL, "the method's vectors, each entry with Laplace noise", [emd_error(FEW)]),
        Baseline("histogram", SHUFFLE, noise, [oracle_error(BernoulliShuffle(1.0, EPSILON, DELTA))]),
        Baseline("histogram", SHUFFLE, shuffled, [oracle_error(UnaryEncoding(1.0, amplified))]),
        Baseline("histogram", LOCAL, report, [oracle_error(UnaryEncoding(1.0, EPSILON))]),
        Baseline("hotspots", SHUFFLE, noise, [oracle_missed(BernoulliShuffle(1.0, EPSILON, DELTA))]),
        Baseline("hotspots", LOCAL, report, [oracle_missed(UnaryEncoding(1.0, EPSILON))]),
    ]


def counts_of(users: pd.DataFrame, depth: int) -> np.ndarray:
    """Users of every cell of a depth by code: int64[4^depth]."""
    return np.bincount(codes(users, depth), minlength=4**depth)


def codes(users: pd.DataFrame, depth: int) -> np.ndarray:
    """The cell of each user: int64[n]."""
    grid = Grid(Region(*REGION), depth)
    return grid.codes(users["longitude"].to_numpy(), users["latitude"].to_numpy()).astype(np.int64)


def cell_codes(cell_ids: pd.Series) -> np.ndarray:
    """Codes of cells of one depth: int64[n]."""
    return np.array([int(name[1:], 4) for name in cell_ids], dtype=np.int64)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", default="demo/logs/*.parquet")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--baselines", action="store_true", help="their table alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    users = pa.concat_tables([pq.read_table(path) for path in sorted(glob.glob(options.logs))]).to_pandas()
    jobs = options.only.split(",")
    if not options.baselines:
        print(markdown_table(trust_rows(jobs, users, options), left=(0, 1)))
    rows = [["model", "job", "a client sends", "error"]]
    for one in baselines(len(users)):
        if one.job in jobs:
            rows.append([one.model, one.job, one.mechanism, significant(one.error(users, options.runs), 2)])
    print("\n" + markdown_table(rows, left=(0, 1, 2)))


def trust_rows(jobs: Sequence[str], users: pd.DataFrame, options: argparse.Namespace) -> list[list[str]]:
    """The first table: a row for each job, a column for each trust model. options: --logs and --runs."""
    rows = [["job", "error at epsilon 1", *Trust]]
    for job in jobs:
        text, measure = JOBS[job]
        rows.append([job, text])
        for trust in Trust:
            try:  # the jobs write their progress to standard error
                with contextlib.redirect_stderr(io.StringIO()):
                    errors = [measure(options.logs, users, trust=trust, seed=seed) for seed in range(options.runs)]
                rows[-1].append(significant(float(np.median(errors)), 2))
            except RequestError:  # not offered
                rows[-1].append("-")
    return rows


if __name__ == "__main__":
    main()
