"""`sfumato ranges tune`: the tuner of public logs, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.random import default_rng

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.ranges_tune import read_public
from sfumato.schemas.errors import DataError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.ranges import Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.ranges.field_counts import CollectionSpec
from sfumato.transforms.ranges.tuner import open_tuner
from sfumato.transforms.ranges.width_search import entropy
from tests.seeds import seeded_rng

pytest.importorskip("sklearn")

REGION = Region(10.0, 50.0, 10.1, 50.06)
USERS = 4000


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two records of each user, 20 m apart, in lumps; every 50th user is far away."""
    rng = seeded_rng(1)
    lump = rng.integers(0, 30, USERS)
    centres = rng.random((30, 2))
    centres[0, 0] = 0.1  # so that, whatever is drawn, the logs begin near the region's border
    x, y = (np.clip(centres[lump] + rng.normal(0, 0.02, (USERS, 2)), 0, 0.999)).T
    east, north = 10 + 0.1 * x, 50 + 0.06 * y
    east[::50] = 70.0
    table = {
        "user_id": np.tile(np.arange(USERS), 2),
        "longitude": np.concatenate([east, east]),
        "latitude": np.concatenate([north, north + 0.0002]),
    }
    path = tmp_path_factory.mktemp("public") / "logs.parquet"
    pq.write_table(pa.table(table), path)
    return path


def tune(logs: Path, output: Path, *more: str) -> int:
    quick = ["--sizes", "100,400", "--epsilons", "0.2,1", "--users", "1000,3000,9000"]
    return cli.main(["ranges", "tune", "--public", str(logs), "--output", str(output), *quick, *more])


def test_of_each_user_one_record_in_the_region_counts(logs: Path) -> None:
    rng = seeded_rng(3)
    data = read_public(str(logs), REGION, LocationColumns(), rng)
    assert data.exact.users.sum() == USERS - USERS // 50
    assert data.field == Field(Grid(REGION, 12))
    with pytest.raises(DataError, match=r"no row of .* in the region"):
        read_public(str(logs), Region(-20, -20, -19, -19), LocationColumns(), rng)


def test_the_region_is_that_of_the_middle(logs: Path) -> None:
    """The 2% who are far away are more than the 0.2% that are left out, so the region reaches to them."""
    region = read_public(str(logs), None, LocationColumns(), seeded_rng(3)).field.grid.region
    assert region.east == 70.0
    assert region.west == pytest.approx(10.0, abs=0.02)


@pytest.mark.slow
def test_a_tuner_is_learned_and_the_same_each_time(
    logs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / name for name in ("one", "two", "three")]
    for path, seed in zip(paths, ("7", "7", "8"), strict=True):
        assert tune(logs, path, "--region", str(REGION), "--seed", seed, "--users", "3000,9000") == 0
    told = capfd.readouterr().out
    assert "2 searches" in told  # 9,000 users there are not
    assert "the best cells are" in told
    one, two, three = (open_tuner(str(path)) for path in paths)
    assert one.digest == two.digest != three.digest
    spec = CollectionSpec(Field(Grid(REGION, 12)), 3000.0, 0.2, Sizes(100.0, 400.0))
    assert one.width(spec) == two.width(spec)
    assert spec.default_width / 5 < one.width(spec) < 5 * spec.default_width
    ((region, held),) = one.places
    assert region == REGION
    assert held == pytest.approx(entropy(read_public(str(logs), REGION, LocationColumns(), default_rng([7, 0])).exact))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--epsilons", "0.2,nan"], "epsilons: must be numbers"),
        (["--users", "0"], "users: must be a number > 0"),
        (["--sizes", "100,90000"], "does not fit into the region"),
        (["--region", str(REGION)], "region: give it once, or once for each of the 1 data sets, got 2"),
        (["--user_id_column", "who"], "no column 'who'"),
        (["--output", "/nowhere/at/all"], "output: there is no folder"),
    ],
)
def test_what_cannot_be_is_refused(
    more: list[str], said: str, logs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tune(logs, tmp_path / "tuner", "--region", str(REGION), *more) == 2
    assert said in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
