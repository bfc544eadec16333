"""Logs for `sfumato moments`, and its command."""

from __future__ import annotations

import os
import re
from contextlib import chdir
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.pipelines.command_line import cli
from tests.conftest import make_logs
from tests.digests import undated
from tests.seeds import seeded_rng

REGION = ["--region", "-1,50,1,51"]
LENGTH = ["--column", "length", "--bits", "10"]
CENTRAL = ["--trust", "central", "--column", "length"]
KINDS = ("bus", "tram", "walk", "helicopter", "zeppelin")


def table(users: int = 1900, records: int = 2, seed: int = 0) -> pa.Table:
    """Places with a length (one in fifty is no number), a change of either sign, a kind of few and of rare values.

    Kinds belong to users, so that the size of a group is the number of its users: six in ten go by bus, whatever the
    seed. A user with several records has a length in one of them.
    """
    logs, rng = make_logs(users, records, seed), seeded_rng(seed + 1)
    rows = logs.num_rows
    length = rng.gamma(4.0, 60.0, rows)
    _, first, index = np.unique(logs["user_id"].to_numpy(), return_index=True, return_inverse=True)
    may_lack = np.isin(np.arange(rows), first, invert=True) if records > 1 else np.ones(rows, bool)
    length[may_lack & (rng.random(rows) < 0.01)] = np.nan
    length[may_lack & (rng.random(rows) < 0.005)] = np.inf
    drawn = ((seeded_rng(seed + 2).permutation(users) + 0.5) / users)[index]
    kind = np.array(KINDS)[np.searchsorted([0.6, 0.9, 0.99, 0.998], drawn)]
    return (
        logs.append_column("length", pa.array(length, mask=may_lack & (rng.random(rows) < 0.005)))
        .append_column("change", pa.array(rng.normal(-20, 50, rows)))
        .append_column("kind", pa.array(kind.tolist()))
        .append_column("night", pa.array(drawn < 0.4))
        .append_column("day", pa.array((drawn * 3).astype(np.int32), pa.date32()))
        .append_column("zone", pa.array((drawn * 4).astype(np.int16)))
    )


def run(pattern: str, output: Path, *more: str) -> int:
    """The exit status of the job; without a key among the options, that of a seed.

    The key depends on the names of the files and on when they were changed, so that here these are always the same.
    """
    key = [] if {"--key_file", "--seed"} & {*more} else ["--seed", "1"]
    privacy = [] if {"--epsilon", "--no_dp"} & {*more} else ["--epsilon", "4"]
    logs = Path(pattern)
    for file in logs.parent.glob(logs.name):
        os.utime(file, (1e9, 1e9))
    with chdir(logs.parent.parent):
        files = str(logs.relative_to(logs.parent.parent))
        return cli.main(["moments", "--input", files, "--output", str(output), *key, *privacy, *more])


def contents(release: Path) -> dict[str, bytes]:
    """A release's files without the time at which it was made."""
    return undated(release)


def usable(logs: pa.Table, column: str = "length") -> NDArray[np.bool_]:
    """Rows with a number."""
    return np.isfinite(logs[column].to_numpy())


def users_of(logs: pa.Table, rows: NDArray[np.bool_]) -> int:
    """How many users have one of these rows."""
    return len(np.unique(logs["user_id"].to_numpy()[rows]))


def shows(text: str, number: int) -> bool:
    """Whether a number is in a text, with or without a comma after the thousands; not within a picture's base64."""
    return bool(re.search(rf"(?<![\w.,+/])({number}|{number:,})(\.0+)?(?![\w+/=]|[.,]\d)", text))
