"""A user whose records say no place does not decide whether a run succeeds: its status would tell that they are there.

Bad coordinates are counted with noise. So are cells of another resolution and points of another reference system, also
where one file, and so one batch, holds them alone. A file that cannot be read at all is another matter: it is damaged.
"""

from __future__ import annotations

from pathlib import Path

import h3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from sfumato.pipelines import cli
from tests.keys import write_key

USERS = 600
_RNG = np.random.default_rng(3)
LONGITUDES, LATITUDES = _RNG.uniform(-1, 1, USERS), _RNG.uniform(50, 51, USERS)


def cells(resolution: int, users: int) -> pa.Array:
    places = zip(LATITUDES[:users], LONGITUDES[:users], strict=True)
    return pa.array([h3.latlng_to_cell(*place, resolution) for place in places])


def points(srid: int, users: int, order: int = 1) -> pa.Array:
    shapes = shapely.set_srid(shapely.points(LONGITUDES[:users], LATITUDES[:users]), srid)
    return pa.array(shapely.to_wkb(shapes, include_srid=True, byte_order=order))


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
