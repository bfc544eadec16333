"""Small logs with every column that a job reads, the smallest command line of each job, and runs under a ledger."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sfumato.pipelines.command_line import cli
from sfumato.schemas.ledger import Charge
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.conftest import make_logs

REGION = "--region=-1,50,1,51"
DAY = "--period=2026-11-20"
# They read the columns of `city`, but for --zones, which reads a file.
JOBS = {
    "heatmap": f"heatmap {REGION} --depth=4",
    "zones": f"zones {REGION} --quadkey=8",
    "flows": f"flows {REGION} --origin=longitude,latitude --destination=to_longitude,to_latitude",
    "histogram": "histogram --column=kind --population=900 --delta=1e-5",
    "central histogram": "histogram --column=kind --trust=central --delta=1e-5",
    "hotspots": "hotspots --column=kind --population=900 --levels=2 --depth=2",
    "quantiles": "quantiles --column=latitude --range=49,52 --bits=4 --population=900",
    "central quantiles": "quantiles --column=latitude --range=50,51 --trust=central",
    "moments": "moments --column=latitude --bits=6",
    "ranges": f"ranges build {REGION} --method=grid --sizes=500,900",
}


def city(users: int = 900, kind: Any = None, seed: int = 1, ids: str = "string") -> pa.Table:
    """One record a user, also as a trip, of three kinds or of one, with kilometres and a time."""
    table, number = make_logs(users, 1, seed, ids), np.arange(users)
    kinds = [f"k{one % 3}" for one in number] if kind is None else [kind] * users
    columns = {
        "kind": pa.array(kinds, pa.string()),
        "to_longitude": pa.array(np.roll(table["longitude"].to_numpy(), 7)),
        "to_latitude": pa.array(np.roll(table["latitude"].to_numpy(), 7)),
        "km": pa.array(number % 40 / 4),
        "time": pa.array(1_795_168_800 + 60 * number),
    }
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def run(words: str, where: str | Path, folder: Path, *more: str, release_id: str = "day", epsilon: float = 2) -> int:
    """The exit status of a job, a name or words, under the key in a folder, which its release goes to as well."""
    place = [f"--input={where}", f"--output={folder / release_id}", f"--release_id={release_id}"]
    key = f"--key_file={folder / 'key'}"
    return cli.main([*JOBS.get(words, words).split(), f"--epsilon={epsilon}", *place, key, *more])


def charged_run(words: str, where: str | Path, folder: Path, *more: str, period: str = DAY, **options: Any) -> int:
    """The same under the ledger in the folder, which such a release has room in, unless `more` has other limits."""
    budget = () if any(one.startswith("--budget") for one in more) else ("--budget=9:0.1/1d",)
    ledger = (f"--ledger={folder / 'ledger.db'}", "--dataset=city", period)
    return run(words, where, folder, *ledger, *budget, *more, **options)


def charges(folder: Path) -> list[Charge]:
    """What the ledger in a folder was charged, nothing if there is none."""
    path = folder / "ledger.db"
    return open_ledger(str(path)).history().charges if path.exists() else []


def spent(folder: Path) -> Decimal:
    """The sum of the epsilons that the ledger in a folder was charged."""
    return sum((one.epsilon for one in charges(folder)), Decimal(0))
