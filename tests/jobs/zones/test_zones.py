"""`sfumato zones`: the job against an answer by plain loops, its files, options, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import apache_beam as beam
import h3
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import shapely
from apache_beam.options.pipeline_options import PipelineOptions
from numpy.typing import NDArray

import sfumato
from sfumato.pipelines.command_line import cli
from sfumato.pipelines.runners.runner_settings import LocalRunner
from sfumato.pipelines.zones import ZonesJob
from sfumato.schemas.errors import RequestError
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.counting.transform import CountLocations
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.privacy.additive_noise import GAUSSIAN, LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.zones.request import ZonesRequest
from tests.conftest import make_logs, write_files
from tests.keys import write_key
from tests.rejections import rejects
from tests.releases import assert_page_follows
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import brute_force, voronoi, write_geojson

KEY = RunKey.derive(FixedSecret(b"zones tests" * 3), {"job": "zones"})
BOX = (-1.0, 50.0, 1.0, 51.0)
ZONES = 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tracts in four counties, with a gap; logs of one record a user in three files, and a key."""
    folder = tmp_path_factory.mktemp("zones")
    shapes = voronoi(ZONES + 3, seed=5, box=BOX)[:ZONES]  # three are missing
    rows = [
        (shape, {"tract": f"t{i}", "county": f"c{int(shape.centroid.x > 0)}{int(shape.centroid.y > 50.5)}", "state": 7})
        for i, shape in enumerate(shapes)
    ]
    write_geojson(folder / "tracts.geojson", rows)
    table = make_logs(1900, 1, seed=3)
    kind = seeded_rng(4).random(table.num_rows) < 0.3
    write_files(table.append_column("sick", pa.array(kind)), folder / "logs", 3)
    write_key(folder / "key")
    return folder


def request(folder: Path, **options: Any) -> ZonesRequest:
    given = {"input": str(folder / "logs" / "*.parquet"), "output": "out", "zones": str(folder / "tracts.geojson")}
    index = {} if "levels" in options else {"id_column": "tract"}
    return ZonesRequest.of({**given, **index, **options})


def run(folder: Path, output: Path, *options: str) -> int:
    place = ["--input", str(folder / "logs" / "*.parquet"), "--output", str(output)]
    return cli.main(["zones", *place, "--key_file", str(folder / "key"), "--release_id", "monday", *options])


def true_counts(folder: Path, job: ZonesJob) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """The records that are in a zone, and the zone of each, by a search through all polygons."""
    logs = pd.concat(map(pd.read_parquet, sorted((folder / "logs").glob("*.parquet"))))
    zone = brute_force(job.zones, logs["longitude"].to_numpy(), logs["latitude"].to_numpy())
    return logs[zone >= 0], zone[zone >= 0]


def final_state(job: ZonesJob, pattern: str, out: Path) -> CountState:
    paths = [str(path) for path in sorted(Path(pattern).parent.glob(Path(pattern).name))]
    with beam.Pipeline(runner=LocalRunner(), options=PipelineOptions([])) as root:
        counts = CountLocations(ZoneLocator(job.zones), job.count_parameters, KEY, job.columns())
        state = root | beam.Create(paths) | counts
        _ = state | beam.Map(_keep, str(out))
    found: CountState = beam.coders.registry.get_coder(object).decode(out.read_bytes())
    return found


def _keep(state: CountState, path: str) -> None:
    Path(path).write_bytes(beam.coders.registry.get_coder(object).encode(state))


def noise_of(state: CountState, index: int) -> NDArray[np.int64]:
    """The central noise of a sub-query, drawn again from the key."""
    result = state.results[index]
    parts = (index + 1, result.encoding.fingerprint, result.cost.hex(), None, state.gamma, state.rounding)
    key = KEY.narrowed({"question": repr(parts)})
    streams = np.zeros(1, dtype=np.uint64)
    label = f"central noise {index + 1}"
    return LAPLACE.draw(key, label, streams, result.encoding.length, result.cost, state.gamma)[0]


def test_every_level_holds_the_exact_counts_and_its_own_noise(folder: Path, tmp_path: Path) -> None:
    """With one record a user nothing is drawn but noise, so the counts less the noise are those of plain loops."""
    job = ZonesJob.of(request(folder, levels="tract,county,state", auxiliary="sick"))
    state = final_state(job, str(folder / "logs" / "*.parquet"), tmp_path / "state")
    logs, zone = true_counts(folder, job)
    assert job.method.queried == (2, 0)  # four counties are not worth a question of their own
    for index, (level, result) in enumerate(zip(job.method.queried, state.results, strict=True)):
        size = len(job.zones.ids_of_levels[level])
        expected = np.zeros((2, size), dtype=np.int64)
        for sick, one in zip(logs["sick"], zone, strict=True):
            expected[int(sick), job.zones.ancestors[level][one]] += 1
        np.testing.assert_array_equal(
            result.counts.reshape(2, size) - noise_of(state, index).reshape(2, size), expected
        )


@pytest.mark.false_alarm(1e-10)
def test_secure_aggregation_counts_the_same_users(folder: Path, tmp_path: Path) -> None:
    job = ZonesJob.of(request(folder, trust="secagg", shard_size=400, epsilon=30))
    state = final_state(job, str(folder / "logs" / "*.parquet"), tmp_path / "state")
    _, zone = true_counts(folder, job)
    assert state.shard_plan.shards > 3
    error = state.results[0].counts - np.bincount(zone, minlength=ZONES)
    # At epsilon 29.96 the noise of a zone in a shard differs from 0 with a probability of 2e-13.
    assert (error == 0).all()


@pytest.mark.false_alarm(4e-9)  # 6 deviations of the users who are drawn, and noise of a few users
@pytest.mark.parametrize(
    ("contribution", "expected"), [("one", [0.5, 0.5]), ("top", [0.0, 1.0]), ("all", [0.25, 0.75])]
)
def test_a_user_adds_one_in_all(contribution: str, expected: list[float], tmp_path: Path) -> None:
    """4,000 users with a record in a zone and three in another: one of them, the other, or shares of both."""
    users = 4000
    table = pa.table(
        {
            "user_id": np.repeat(np.arange(users), 4),
            "longitude": np.tile([0.5, 1.5, 1.5, 1.5], users),
            "latitude": np.full(4 * users, 0.5),
        }
    )
    write_files(table, tmp_path / "logs", 2)
    rows = [(shapely.box(i, 0, i + 1, 1), {"id": f"z{i}"}) for i in range(3)]
    write_geojson(tmp_path / "z.geojson", rows)
    given = {"input": "logs", "output": "out", "zones": str(tmp_path / "z.geojson"), "id_column": "id"}
    job = ZonesJob.of(ZonesRequest.of({**given, "contribution": contribution, "epsilon": 10}))
    state = final_state(job, str(tmp_path / "logs" / "*.parquet"), tmp_path / "state")
    counts = state.results[0].counts / users
    assert abs(counts.sum() - 1) < 0.01
    assert abs(counts[2]) < 0.005
    if contribution == "one":  # the code of a drawn record: one of four
        expected = [0.25, 0.75]
    spare = 6 * math.sqrt(0.25 * 0.75 / users) + 0.005
    np.testing.assert_allclose(counts[:2], expected, atol=spare)


@pytest.mark.slow
def test_the_files_of_a_release(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (
        run(
            folder,
            out,
            "--zones",
            str(folder / "tracts.geojson"),
            "--levels",
            "tract,county,state",
            "--auxiliary",
            "sick",
            "--epsilon",
            "4",
        )
        == 0
    )
    release = open_release(str(out))
    assert set(release.listed or ()) == {"basemap.json", "index.html", "zones.parquet", "zones.png", "rates.png"}
    table = release.table("zones")
    job = ZonesJob.of(request(folder, levels="tract,county,state", auxiliary="sick", epsilon=4))
    assert table["zone"].tolist() == [*job.zones.ids, *job.zones.levels[0].ids, "7"]
    assert table["level"].tolist() == ["tract"] * ZONES + ["county"] * 4 + ["state"]
    fine, coarse = table[table["level"] == "tract"], table[table["level"] == "county"].set_index("zone")
    assert coarse["parent"].tolist() == ["7"] * 4
    assert table["parent"].isna().tolist() == [False] * (ZONES + 4) + [True]
    for column in ("users", "count_true", "area"):
        np.testing.assert_allclose(fine.groupby("parent")[column].sum(), coarse[column].sort_index(), rtol=1e-12)
    np.testing.assert_allclose(fine["count_true"] + fine["count_false"], fine["users"], atol=1e-9)
    np.testing.assert_allclose(table["density"] * table["area"], table["users"])
    assert (table["low"] <= table["users"]).all()
    assert (table["users"] <= table["high"]).all()
    assert (table["low"] < table["high"]).all()
    assert table.geometry.is_valid.all()
    joined = shapely.union_all(fine.geometry.to_numpy())
    assert shapely.area(shapely.symmetric_difference(joined, shapely.union_all(coarse.geometry.to_numpy()))) < 1e-9
    assert math.isclose(coarse["users"].sum(), table["users"].iloc[-1], rel_tol=1e-12)
    for row in (0, ZONES, ZONES + 4):  # a zone of each level, as the sum of its parts
        users, stddev = sfumato.open_release(out).zones_total(np.arange(len(table)) == row)
        np.testing.assert_allclose([users, stddev], table.loc[row, ["users", "stddev"]].to_numpy(float), rtol=1e-9)
    with pytest.raises(RequestError, match="one value for each of 85 zones"):
        sfumato.open_release(out).zones_total(np.ones(3))
    manifest = release.manifest
    assert manifest["zones"]["sha256"] == job.zones.digest
    assert [level["zones"] for level in manifest["zones"]["levels"]] == [ZONES, 4, 1]
    spent = [one["epsilon"] for one in manifest["privacy"]["sub_queries"]]
    assert math.isclose(sum(spent) + manifest["privacy"]["population"]["epsilon"], 4, rel_tol=1e-12)
    assert_page_follows(out)


@pytest.mark.slow
@pytest.mark.false_alarm(5e-9)
def test_empty_zones_have_noise_too_and_nothing_raw_is_published(tmp_path: Path) -> None:
    """A zone far from all users: its count is noise. No published count is exact with its probability alone.

    Limits are 6 deviations of a share, which is binomial, and 8 of the noise's standard deviation.
    """
    logs = write_files(make_logs(1900, 1, seed=3), tmp_path / "logs", 3)
    far = [(shapely.box(10 + i / 10, 10, 10.1 + i / 10, 11), {"id": f"far{i}"}) for i in range(400)]
    here = [(shapely.box(*BOX), {"id": "here"})]
    write_geojson(tmp_path / "z.geojson", [*here, *far])
    status = cli.main([
        "zones", "--input", logs, "--zones", str(tmp_path / "z.geojson"), "--id_column",
        "id", "--seed", "4", "--output", str(tmp_path / "out"),
    ])  # fmt: skip
    assert status == 0
    users = open_release(str(tmp_path / "out")).table("zones")["users"].to_numpy()
    decay = math.exp(-0.998)
    zero = (1 - decay) / (1 + decay)  # the probability that noise is 0
    spare = 6 * math.sqrt(zero * (1 - zero) / 400)
    assert abs((users[1:] == 0).mean() - zero) < spare
    assert abs(users[1:].std() - 1.36) < 8 * 1.36 * math.sqrt(5.6 / 4 / 400)  # the kurtosis of the noise is 6.5
    content = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir() if path.suffix == ".json")
    assert b'"dropped"' not in content


def test_users_outside_of_all_zones_are_unusable(folder: Path, tmp_path: Path) -> None:
    """Most users have no record in this zone, and the run is refused by noisy counts."""
    zones = write_geojson(tmp_path / "z.geojson", [(shapely.box(5, 50, 6, 51), {"tract": "sea"})])
    options = ["--zones", zones, "--id_column", "tract", "--epsilon", "30"]
    assert run(folder, tmp_path / "out", *options) == 1
    assert "no usable record" in json.loads((tmp_path / "out" / "manifest.json").read_text())["reason"]
    assert run(folder, tmp_path / "out", *options, "--max_bad_fraction", "1", "--overwrite") == 0


@pytest.mark.false_alarm(1e-9)  # noise of 4 users or more at epsilon 8 has a probability of 3e-14
def test_cells_of_an_index_are_zones(folder: Path, tmp_path: Path) -> None:
    logs = folder / "logs" / "*.parquet"
    place = ["--h3", "4", "--region=-1,50,1,51", "--output", str(tmp_path / "out")]
    assert cli.main(["zones", "--input", str(logs), *place, "--seed", "4", "--epsilon", "8"]) == 0
    release = sfumato.open_release(tmp_path / "out")
    table = release.zones_table
    assert abs(table["users"].sum() - 1900) < 60  # hundreds of zones whose noise is 0 but for one in a thousand
    records = pd.concat(map(pd.read_parquet, sorted(logs.parent.glob("*.parquet"))))
    named = [h3.latlng_to_cell(y, x, 4) for x, y in zip(records["longitude"], records["latitude"], strict=True)]
    counts = pd.Series(named).value_counts().reindex(table["zone"], fill_value=0).to_numpy()
    assert np.abs(table["users"] - counts).max() <= 3
    # Weights of 1 and -1 give a difference, and independent noise adds up in its variance.
    weights = np.zeros(len(table))
    weights[:3] = 1, -1, 2
    users, stddev = release.zones_total(weights)
    assert math.isclose(users, float(table["users"] @ weights), abs_tol=1e-9)
    assert math.isclose(stddev, float(np.sqrt((table["stddev"] ** 2) @ weights**2)), rel_tol=1e-9)


INDEX = {"zones": None, "id_column": None, "h3": 5, "region": "0,0,1,1"}


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("id_column", {"id_column": None}),
        ("zones", {"levels": "county,tract"}),  # a county is there more than once, so it is not the finest level
        ("shard_size", {"shard_size": 100}),
        ("zones and h3", {"h3": 5}),
        ("zones", {**INDEX, "h3": None, "region": None}),
        ("region", {**INDEX, "region": None}),
        ("h3", {**INDEX, "h3": 12}),  # too many cells
        ("region", {"region": "0,0,1,1"}),
        ("zones", {"id_column": "ward"}),
    ],
)
def test_options_of_zones_that_cannot_be_are_refused(folder: Path, option: str, options: dict[str, Any]) -> None:
    with rejects(option):
        ZonesJob.of(request(folder, **options))


@pytest.mark.parametrize(("delta", "noise"), [(0, LAPLACE), (1e-6, GAUSSIAN)])
def test_noise_of_a_zone_at_epsilon_1(folder: Path, delta: float, noise: AdditiveNoise) -> None:
    job = ZonesJob.of(request(folder, delta=delta))
    assert (job.count_parameters.noise_kind, job.cost().delta) == (noise, delta)
    assert job.admission().cost + 0.998 <= 1
    assert LAPLACE.stddev(1 - job.admission().cost) <= 1.36


def test_dry_run_names_the_time_column_and_caps_places(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.csv").write_text("user_id,latitude,longitude,time\n")
    zones = ["--zones", str(folder / "tracts.geojson"), "--id_column", "tract", "--dry_run"]
    zones += ["--input", str(tmp_path / "log.csv")]
    assert run(folder, tmp_path / "out", *zones, "--day_column", "time", "--hours", "8-9") == 0
    text = capsys.readouterr().out
    assert "columns user_id, latitude, longitude, time" in " ".join(text.split())
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")]
    assert [row[-2].strip() for row in rows[-2:]] == [str(ZONES)] * 2
