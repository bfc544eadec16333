"""What each trust model costs in accuracy, job by job, on the demo's logs: one million users of the synthetic city.

    python -m benchmarks.trust [--logs 'demo/logs/*.parquet'] [--runs 5] [--only histogram,moments]

Every cell is the median over runs with keys of their own, of an error against the exact answer of the same logs. A
model that a job does not offer is a dash.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import sfumato
from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid, Region, deinterleave
from sfumato.schemas.trust import Trust
from sfumato.transforms.text_tables import markdown_table, significant

REGION = (3.00, 1.00, 3.13, 1.13)
EPSILON, DELTA, TOP = 1.0, 1e-8, 50
SHARES = np.arange(1, 10) / 10


def heatmap_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Half the L1 distance of the densities on a grid of 256 x 256 cells: the share of users in a wrong cell."""
    density = sfumato.heatmap(logs, region=REGION, epsilon=EPSILON, depth=8, **options).density
    exact = np.bincount(codes(users, 8), minlength=4**8) / len(users)
    x, y = deinterleave(np.arange(4**8, dtype=np.uint64))
    shown = density[y, x]
    return float(np.abs(shown / density.sum() - exact).sum() / 2)


def histogram_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Root mean square error of all 256 x 256 cells, in users; a cell that is not shown counts as 0."""
    cells = sfumato.histogram(logs, region=REGION, cells=8, epsilon=EPSILON, delta=DELTA, **options).cells
    error = np.bincount(codes(users, 8), minlength=4**8).astype(float)
    np.subtract.at(error, cell_codes(cells["cell_id"]), cells["count"].to_numpy())
    return float(np.sqrt((error**2).mean()))


def hotspots_error(logs: str, users: pd.DataFrame, **options: Any) -> float:
    """Share of the true 50 most frequent of 512 x 512 cells that are not among the 50 published."""
    spots = sfumato.hotspots(logs, region=REGION, depth=9, top=TOP, epsilon=EPSILON, delta=DELTA, **options).cells
    last = spots[spots["depth"] == 9].nlargest(TOP, "count")
    counts = np.bincount(codes(users, 9), minlength=4**9)
    least = np.sort(counts)[-TOP]
    return 1 - float((counts[cell_codes(last["cell_id"])] >= least).sum()) / TOP


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
    "histogram": ("root mean square error of 256 x 256 cells, users", histogram_error),
    "hotspots": ("share of the true top 50 that is missed", hotspots_error),
    "quantiles": ("mean rank error of nine deciles, share of users", quantiles_error),
    "moments": ("error of the mean distance from home, metres", moments_error),
    "ranges": ("median error of squares of 400 m, users", ranges_error),
}


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
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    users = pa.concat_tables([pq.read_table(path) for path in sorted(glob.glob(options.logs))]).to_pandas()
    rows = [["job", "error at epsilon 1", *Trust]]
    for job in options.only.split(","):
        text, measure = JOBS[job]
        rows.append([job, text])
        for trust in Trust:
            try:  # the jobs write their progress to standard error
                with contextlib.redirect_stderr(io.StringIO()):
                    errors = [measure(options.logs, users, trust=trust, seed=seed) for seed in range(options.runs)]
                rows[-1].append(significant(float(np.median(errors)), 2))
            except RequestError:  # not offered
                rows[-1].append("-")
    print(markdown_table(rows, left=(0, 1)))


if __name__ == "__main__":
    main()
