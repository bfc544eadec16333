"""The PTransforms of the public API: options, keys, rows."""

from __future__ import annotations

import json
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
import yaml
from apache_beam.runners.runner import PipelineRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import typing_to_runner_api
from shapely.geometry import mapping

import sfumato
from sfumato.beam import (
    PrivateHeatmap,
    PrivateHistogram,
    PrivateHotspots,
    PrivateMoments,
    PrivateQuantiles,
    PrivateRanges,
    PrivateZones,
    row_type,
)
from sfumato.pipelines.command_line import cli
from sfumato.pipelines.frame import elements
from tests.jobs.api.conftest import REGION
from tests.keys import write_key
from tests.rejections import rejects


class RemoteRunner(PipelineRunner):
    """A runner whose workers are other machines, as far as a transform can know."""


def counts_of(transforms: list[PrivateHeatmap], city: Path, folder: Path) -> list[str]:
    """The cells' counts by each transform, in one pipeline."""
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        files = pipeline | beam.Create([str(path) for path in (city / "logs").glob("*.parquet")])
        for number, transform in enumerate(transforms):
            rows = files | f"Heatmap{number}" >> transform
            lines = rows | f"Line{number}" >> beam.Map(lambda row: f"{row.cell_id} {row.count!r}")
            _ = lines | f"Write{number}" >> beam.io.WriteToText(str(folder / str(number)), shard_name_template="")
    return [(folder / str(number)).read_text() for number in range(len(transforms))]


def heatmap(**options) -> PrivateHeatmap:
    return PrivateHeatmap(region=REGION, depth=2, method="flat", **options)


@pytest.mark.slow
def test_each_use_draws_its_own_noise(city: Path, tmp_path: Path):
    transform = heatmap()
    first, second = counts_of([transform, transform], city, tmp_path)
    assert len(first.splitlines()) == 16
    assert first != second


def test_a_remote_runner_needs_a_kept_key(tmp_path: Path):
    remote = beam.Pipeline(runner=RemoteRunner())
    files = remote | beam.Create(["logs.parquet"])
    with rejects("key_file"):
        _ = files | "Fresh" >> heatmap()
    assert cli.main(["key", "new", str(tmp_path / "key")]) == 0
    _ = files | "Kept" >> heatmap(key_file=tmp_path / "key")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PrivateHeatmap(region=REGION, epsilon=-1), "epsilon"),
        (lambda: PrivateHeatmap(region=(1, 2, 3)), "region"),
        (lambda: PrivateHotspots(region=REGION, epsilon=1, delta=2), "delta"),
        (lambda: PrivateHeatmap(region=REGION, shard_sise=9), "shard_sise: .*did you mean shard_size?"),
        (lambda: PrivateHeatmap(region=REGION, shard_size=9.5), "shard_size: must be a whole number"),
        (lambda: PrivateHistogram(epsilon=1, delta=1e-6), "column: "),
        (lambda: PrivateQuantiles(column="x", range=(0, 1), epsilon=1, delta=1e-6, quantiles=(2,)), "quantiles"),
        (lambda: PrivateMoments(column="x", epsilon=1, bits=99), "bits"),
        (lambda: PrivateRanges(region=REGION, method="none"), "method"),
    ],
)
def test_wrong_options_are_refused_at_once(make, message: str):
    with pytest.raises(sfumato.RequestError, match=message):
        make()


def test_hotspots_are_those_of_the_job(city: Path):
    """Every level is there, and a cell of the second lies in one of the first."""
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        files = pipeline | beam.Create([str(path) for path in (city / "logs").glob("*.parquet")])
        rows = files | PrivateHotspots(region=REGION, depth=4, levels=2, top=5, epsilon=1.0, delta=1e-6)

        def check(found: list[beam.Row]) -> None:
            cells = {depth: [row for row in found if row.depth == depth] for depth in (2, 4)}
            assert 0 < len(cells[2]) <= 16
            assert 0 < len(cells[4]) <= 5
            assert len(found) == len(cells[2]) + len(cells[4])
            for row in cells[4]:
                assert any(one.west <= row.west < one.east and one.south <= row.south < one.north for one in cells[2])

        assert_that(rows, check)


# --- rows in, rows out ---


class Record(NamedTuple):
    user_id: int
    latitude: float
    longitude: float
    infected: bool


def rows_by(transform: beam.PTransform, given: list[Any], folder: Path, kind: Any = None) -> list[str]:
    """What a transform yields of some elements, as text, after a shuffle that encodes each row by its schema."""
    folder.mkdir()
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        create = beam.Create(given)
        rows = pipeline | (create.with_output_types(kind) if kind else create) | transform
        assert isinstance(rows.element_type, RowTypeConstraint)
        text = rows | beam.Reshuffle() | "Text" >> beam.Map(lambda row: repr(sorted(row._asdict().items())))
        _ = text | beam.io.WriteToText(str(folder / "rows"), shard_name_template="")
    return sorted((folder / "rows").read_text().splitlines())


@pytest.mark.parametrize(
    "make",
    [
        lambda **key: PrivateHeatmap(region=REGION, depth=4, **key),
        pytest.param(
            lambda **key: PrivateHistogram(column="infected", epsilon=2.0, trust="central", **key),
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda **key: PrivateZones(region=REGION, quadkey=14, **key), marks=pytest.mark.slow),
    ],
    ids=["heatmap", "histogram", "zones"],
)
def test_rows_tables_and_files_give_the_same(make, city: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elements, "_INPUTS", {})  # the key has one input by design, and these are four
    paths = [str(path) for path in (city / "logs").glob("*.parquet")]
    table = pq.read_table(paths).select(list(Record._fields))
    rows = table.to_pylist()
    write_key(tmp_path / "key")
    key = {"key_file": tmp_path / "key", "release_id": "monday"}
    found = rows_by(make(**key), paths, tmp_path / "files")
    assert len(found) >= 2
    for name, given, kind in (
        ("dictionaries", rows[::-1], None),
        ("beam.Row", [beam.Row(**row) for row in rows], None),
        ("NamedTuple", [Record(**row) for row in rows], Record),
        ("tables", [table.slice(0, 1000), *table.slice(1000).to_batches()], None),
        ("frames", [table.slice(0, 1000).to_pandas(), table.slice(1000).to_pandas()], None),
    ):
        elements._INPUTS.clear()
        assert rows_by(make(**key), given, tmp_path / name, kind) == found, name


def test_rows_without_a_column_are_refused_at_once():
    rows = beam.Pipeline() | beam.Create([Record(1, 50.0, 0.0, True)]).with_output_types(Record)
    with pytest.raises(sfumato.RequestError, match=r"no column 'user'; did you mean user_id"):
        _ = rows | PrivateHeatmap(region=REGION, user_id_column="user")


@pytest.mark.parametrize("complete", [True, False])
def test_a_field_that_a_row_lacks_is_missing(tmp_path: Path, complete: bool):
    """Whatever other rows of the bundle have: else one row would decide how those of other users are read."""
    rows: list[Any] = [{"user_id": user, "kind": "x"} for user in range(500)]
    rows += [defaultdict(str, user_id=500), *([] if complete else [{"user_id": 501}])]
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        histogram = PrivateHistogram(column="kind", epsilon=1, delta=1e-6, error_handling={"output": "unusable"})
        unusable = (pipeline | beam.Create(rows, reshuffle=False) | histogram)["unusable"]
        counts = unusable | beam.Map(lambda row: (row.reason, row.count))
        assert_that(counts, equal_to([("null_value", 2 - complete)]))


def test_elements_that_are_no_rows_are_refused():
    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create([7]) | heatmap()
    with pytest.raises(sfumato.DataError, match="got int"):
        pipeline.run().wait_until_finish()


def test_output_is_the_release_of_the_rows(city: Path, tmp_path: Path):
    west, south, east, north = (REGION[place] for place in range(4))
    middle = (west + east) / 2
    halves = [shapely.box(west, south, middle, north), shapely.box(middle, south, east, north)]
    features = [
        {"type": "Feature", "geometry": mapping(half), "properties": {"id": name, "name": f"The {name}"}}
        for name, half in zip(("west", "east"), halves, strict=True)
    ]
    halves_file = tmp_path / "halves.geojson"
    halves_file.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    options = {"zones": str(halves_file), "id_column": "id", "label_column": "name", "output": str(tmp_path / "out")}
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        files = pipeline | beam.Create([str(path) for path in (city / "logs").glob("*.parquet")])
        zones = files | PrivateZones(**options)
        text = zones | beam.Map(lambda zone: repr(sorted(zone._asdict().items())))
        _ = text | beam.io.WriteToText(str(tmp_path / "rows"), shard_name_template="")
    release = sfumato.open_release(tmp_path / "out")
    assert release.manifest["privacy"]["randomness"] == {"source": "operating system", "safe": True}
    assert not release.damage()
    table = pq.read_table(tmp_path / "out" / "zones.parquet")
    assert set(table["name"].to_pylist()) == {"The west", "The east"}
    lines = [repr(sorted(row.items())) for row in table.to_pylist()]
    assert sorted((tmp_path / "rows").read_text().splitlines()) == sorted(lines)
    with pytest.raises(sfumato.RequestError, match="output"):
        PrivateZones(**options)


def test_hot_spots_of_a_column_are_found_in_text_alone(tmp_path: Path):
    """The prefixes of integers are digits, and a graph is built before a file is read."""
    pq.write_table(pa.table({"user_id": range(500), "code": [7] * 500}), tmp_path / "log.parquet")
    hot = {"column": "code", "depth": 2, "levels": 2, "epsilon": 4.0, "delta": 1e-5}
    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create([str(tmp_path / "log.parquet")]) | PrivateHotspots(**hot)
    with pytest.raises(sfumato.DataError, match="contains integers"):
        pipeline.run().wait_until_finish()
    rows = [{"user_id": number, "code": "7b"} for number in range(500)]
    assert any("7b" in line for line in rows_by(PrivateHotspots(**hot), rows, tmp_path / "found"))


# --- other languages: declared types, options by name, unusable rows as a second output ---


PUBLISHED: dict[str, Any] = {
    "PrivateHeatmap": {"region": REGION, "depth": 2},
    "PrivateZones": {"region": REGION, "quadkey": 14},
    "PrivateFlows": {"region": REGION, "depth": 2, "time_column": "time"},
    "PrivateHistogram": {"column": "kind", "epsilon": 1, "delta": 1e-6},
    "PrivateHotspots": {"column": "kind", "depth": 1, "levels": 1, "epsilon": 1, "delta": 1e-6},
    "PrivateQuantiles": {"column": "km", "range": [0, 10], "epsilon": 1, "delta": 1e-6},
    "PrivateMoments": {"column": "km", "bits": 8, "epsilon": 1},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_have_types_that_every_language_knows(name: str):
    """Beam makes an opaque type of what it does not know, which Parquet, SQL and Java do not read."""
    transform = getattr(sfumato.beam, name)(**PUBLISHED[name])
    _, schema = transform.table(transform._job)
    fields = typing_to_runner_api(row_type(schema)).row_type.schema.fields
    assert [field.name for field in fields if field.type.WhichOneof("type_info") != "atomic_type"] == []


def test_the_listing_for_beam_yaml_names_the_transforms():
    listing = yaml.safe_load((files("sfumato") / "beam_providers.yaml").read_text())
    assert [provider["type"] for provider in listing] == ["python"]
    assert listing[0]["transforms"] == {name: f"sfumato.beam.{name}" for name in PUBLISHED}


def test_unusable_rows_are_a_second_output():
    good = [{"user_id": number, "latitude": 1.06, "longitude": 3.06} for number in range(200)]
    bad = [{**good[0], "user_id": None}, {**good[1], "latitude": 70.0}, {**good[2], "latitude": -70.0}]
    transform = heatmap(error_handling={"output": "unusable"})
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        found = pipeline | beam.Create([*good, *bad]) | transform
        assert set(found) == {"good", "unusable"}
        assert_that(found["good"] | beam.combiners.Count.Globally(), equal_to([16]))
        counts = found["unusable"] | beam.Map(lambda row: (row.reason, row.count))
        assert_that(counts, equal_to([("null_user_id", 1), ("out_of_region", 2)]), label="Unusable")


@pytest.mark.parametrize("wrong", ["unusable", {}, {"output": ""}, {"output": "good"}, {"output": "x", "log": True}, 7])
def test_a_wrong_error_output_is_refused(wrong: Any):
    with rejects("error_handling"):
        heatmap(error_handling=wrong)
