"""A user whose records say no place does not decide whether a run succeeds: its status would tell that they are there.

Bad coordinates are counted with noise. So are cells of another resolution and points of another reference system, also
where one file, and so one batch, holds them alone. A file that cannot be read at all is another matter: it is damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from sfumato.pipelines import cli
from tests.keys import write_key
from tests.seeds import seeded_rng

USERS = 600
_RNG = seeded_rng(3)
LONGITUDES, LATITUDES = _RNG.uniform(-1, 1, USERS), _RNG.uniform(50, 51, USERS)


def cells(resolution: int, users: int) -> pa.Array:
    places = zip(LATITUDES[:users], LONGITUDES[:users], strict=True)
    return pa.array([h3.latlng_to_cell(*place, resolution) for place in places])


def with_bytes(good: list[str], bad: bytes) -> pa.Array:
    """Texts, the last of which is not UTF-8, as no check of Parquet finds."""
    raw = pa.array([*(one.encode() for one in good), bad], pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


def points(srid: int, users: int, order: int = 1) -> pa.Array:
    shapes = shapely.set_srid(shapely.points(LONGITUDES[:users], LATITUDES[:users]), srid)
    return pa.array(shapely.to_wkb(shapes, include_srid=True, byte_order=order))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("good", "bad", "options"),
    [
        (cells(9, USERS), cells(8, 1), ["--cell_column=place", "--cell_index=h3:9"]),
        (points(4326, USERS), points(3857, 1), ["--geometry_column=place"]),
        (points(4326, USERS), points(3857, 1, 0), ["--geometry_column=place"]),
    ],
    ids=["cell", "point", "big-endian point"],
)
def test_a_user_without_a_place_does_not_end_the_run(
    good: pa.Array, bad: pa.Array, options: list[str], tmp_path: Path
) -> None:
    write_key(tmp_path / "key")
    (tmp_path / "logs").mkdir()
    pq.write_table(pa.table({"user_id": np.arange(USERS), "place": good}), tmp_path / "logs" / "a.parquet")
    run = ["heatmap", "--input", str(tmp_path / "logs"), "--region=-1,50,1,51", "--depth=4", "--epsilon=2", *options]
    run += [f"--key_file={tmp_path / 'key'}"]
    assert cli.main([*run, "--release_id=without", "--output", str(tmp_path / "without")]) == 0
    pq.write_table(pa.table({"user_id": [USERS], "place": bad}), tmp_path / "logs" / "b.parquet")
    assert cli.main([*run, "--release_id=with", "--output", str(tmp_path / "with")]) == 0


SECRET = 2**53 + 1  # no float64 is this integer
_E7 = (10**7 * LATITUDES).astype(np.int64), (10**7 * LONGITUDES).astype(np.int64)
_TEXTS = [f"POINT ({x} {y})" for x, y in zip(LONGITUDES, LATITUDES, strict=True)]
_STRUCTS = pa.StructArray.from_arrays([pa.array([0] * USERS + [SECRET]), pa.array([50] * USERS + [51])], ["x", "y"])


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (
            {"latitude": np.append(_E7[0], SECRET), "longitude": np.append(_E7[1], SECRET)},
            ["--coordinates=e7"],
        ),
        ({"place": _STRUCTS}, ["--geometry_column=place"]),
        ({"place": with_bytes(_TEXTS, b"\xff9007199254740993")}, ["--geometry_column=place"]),
        (
            {"place": with_bytes(cells(9, USERS).to_pylist(), b"\xff9007199254740993")},
            ["--cell_column=place", "--cell_index=h3:9"],
        ),
    ],
    ids=["e7", "struct", "WKT", "H3"],
)
def test_a_value_that_cannot_be_converted_is_quoted_nowhere(
    columns: dict[str, Any], options: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Libraries quote the value that they cannot convert. One user's value ended the run, and stood in its log."""
    write_key(tmp_path / "key")
    pq.write_table(pa.table({"user_id": np.arange(USERS + 1), **columns}), tmp_path / "log.parquet")
    run = ["heatmap", "--input", str(tmp_path / "log.parquet"), "--region=-1,50,1,51", "--depth=4", "--epsilon=2"]
    status = cli.main([*run, *options, f"--key_file={tmp_path / 'key'}", "--output", str(tmp_path / "out")])
    said = capfd.readouterr()
    assert str(SECRET) not in said.err + said.out
    assert status == 0
