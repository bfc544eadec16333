"""What jobs count: against figures that follow from the data, on runners of one process and of several."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.portability.portable_runner import PortableMetrics
from apache_beam.runners.runner import PipelineResult, PipelineState

from sfumato.pipelines.runners.runner_settings import LocalRunner
from sfumato.schemas.locations import NUMBERS, ItemColumns, LocationColumns
from sfumato.schemas.moments import FixedPoint, Statistic, ValueColumns
from sfumato.schemas.region import Grid
from sfumato.transforms.heatmap.release import release_files
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.transform import CountHeatmap
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.sampling_round import Sampling
from sfumato.transforms.histogram.transform import Rounds, TrieHeavyHitters
from sfumato.transforms.locations.spill import DEFAULT_GROUP_BITS
from sfumato.transforms.moments.client_values import Values
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.transform import PushBits
from sfumato.transforms.observability import metrics
from sfumato.transforms.observability.metrics import METRICS, RAW, read_metrics
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.publishing import write_release
from tests import ROOT
from tests.conftest import REGION, make_logs, write_files

KEY = RunKey.derive(FixedSecret(b"counters" * 4), {"job": "heatmap"})  # the noisy user count is not exact under it
FACTS = ReleaseMetadata("heatmap", "counted", "2026-11-21T00:00:00+00:00", "seed", False, {})
USERS, RECORDS, FILES = 3137, 2, 3
BAD = {"null_user_id": 4, "null_coordinate": 3, "not_finite": 5, "out_of_range": 2, "out_of_region": 7}
IN_THREADS = ("--direct_num_workers=2",)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Good rows of USERS users, and so many bad ones of each kind, of users who have no other."""
    good = make_logs(USERS, RECORDS, 5)
    bad = {"user_id": [], "latitude": [], "longitude": []}
    places = {"null_coordinate": (None, 0.0), "not_finite": (np.nan, 0.0), "out_of_range": (91.0, 0.0)}
    for reason, number in BAD.items():
        latitude, longitude = places.get(reason, (50.5, 0.0) if reason == "null_user_id" else (52.0, 0.0))
        bad["user_id"] += [None if reason == "null_user_id" else 10**10 + n for n in range(number)]
        bad["latitude"] += [latitude] * number
        bad["longitude"] += [longitude] * number
    return pa.concat_tables([good, pa.table(bad, schema=good.schema)])


@pytest.fixture(scope="module")
def pattern(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(table, tmp_path_factory.mktemp("metrics") / "logs", FILES)


def paths_of(pattern: str) -> list[str]:
    return sorted(str(path) for path in Path(pattern).parent.glob("*.parquet"))


def run(build: Callable[[beam.Pipeline], object], options: tuple[str, ...]) -> dict:
    root = beam.Pipeline(runner=LocalRunner(), options=PipelineOptions(list(options)))
    build(root)
    result = root.run()
    result.wait_until_finish()
    return read_metrics(result)


def run_heatmap(pattern: str, output: Path, options: tuple[str, ...] = (), population: int | None = USERS) -> dict:
    chosen = {"depth": 5, "shard_size": 10, "dropout": 0.45, "epsilon": 4.0, "population": population}
    parameters = heatmap_parameters("adaptive", {**chosen, "shards": "shared", "participation": "paper"}, 1)

    def build(root: beam.Pipeline) -> None:
        _ = (
            root
            | beam.Create(paths_of(pattern))
            | CountHeatmap(REGION, parameters, KEY, LocationColumns())
            | beam.Map(release_files, parameters, FACTS, Grid(REGION, 5))
            | beam.Map(write_release, str(output), FACTS, False)
        )

    return run(build, options)


def run_quantiles(pattern: str) -> dict:
    items = NumberItems(ItemColumns("latitude", "user_id", NUMBERS), 50.45, 50.55, 6)

    def build(root: beam.Pipeline) -> None:
        _ = root | beam.Create(paths_of(pattern)) | TrieHeavyHitters(Rounds(items, KEY), Sampling.from_rate(0.5, 10))

    return run(build, ())


def run_moments(pattern: str, plan: MomentsPlan) -> dict:
    values = Values(ValueColumns("latitude"), plan.form)

    def build(root: beam.Pipeline) -> None:
        _ = root | beam.Create(paths_of(pattern)) | PushBits(values, plan, KEY)

    return run(build, ())


@pytest.fixture(scope="module")
def bit_pushing(pattern: str) -> dict:
    """What a mean and a variance, at two bits a client, count; latitudes have six bits, and one of them is beyond."""
    statistics = (Statistic("mean"), Statistic("variance"))
    return run_moments(pattern, MomentsPlan(form=FixedPoint(bits=6), statistics=statistics, bits_per_client=2))


@pytest.fixture(scope="module")
def private(pattern: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """What a heatmap of users that are counted privately counts, and its release."""
    output = tmp_path_factory.mktemp("private") / "out"
    return run_heatmap(pattern, output, population=None), output


def reading(table: pa.Table, pattern: str) -> dict:
    """What every job counts of these files: there is one slice a file."""
    sizes = [pq.read_metadata(path).num_rows for path in paths_of(pattern)]
    spread = {"count": FILES, "sum": table.num_rows, "min": min(sizes), "max": max(sizes)}
    return {"read_files": FILES, "read_rows": table.num_rows, "slice_rows": spread}


def check_times(found: dict, numbers: dict[str, int]) -> None:
    """Takes the times out of what was found: so many were taken, and they are sane."""
    for name, number in numbers.items():
        times = found.pop(name)
        assert times["count"] == number, name
        assert 0 <= times["min"] <= times["max"] <= times["sum"] < 60_000, name


@pytest.mark.parametrize("options", [(), IN_THREADS], ids=["one", "threads"])
def test_a_heatmap_counts_what_the_data_say(
    table: pa.Table, pattern: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    found = run_heatmap(pattern, tmp_path / "out", options)
    manifest = open_release(tmp_path / "out").manifest
    sub_queries = manifest["privacy"]["sub_queries"]
    shards = USERS // 10 + 1
    groups = -(-shards // 64)
    assert {one["shards"] for one in sub_queries} == {shards}
    check_times(
        found,
        {
            "slice_read_milliseconds": FILES,
            "sub_query_sum_milliseconds": groups * len(sub_queries),
            "release_write_milliseconds": 1,
        },
    )
    users, grouped = found.pop("shard_group_users"), found.pop("user_group_bytes")
    assert (users["count"], users["sum"]) == (groups, USERS)
    usable = table.num_rows - sum(BAD.values())
    assert (grouped["count"], grouped["sum"]) == (1 << DEFAULT_GROUP_BITS, 12 * usable)  # a hash and a code a record
    sizes = {name: 4 * value for name, value in users.items() if name != "count"}  # 4 bytes a key
    release = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert found == {
        **reading(table, pattern),
        **{f"dropped_{reason}_rows": BAD.get(reason, 0) for reason in metrics.DROP_REASONS},
        "clamped_rows": 0,
        "bounded_users": USERS,
        "shard_group_bytes": {"count": groups, **sizes},
        "sub_queries": len(sub_queries),
        "vector_entries": sum(one["vector_length"] for one in sub_queries),
        "lost_shards": sum(one["shards_lost"] for one in sub_queries),
        "release_bytes": {"count": 1, "sum": release, "min": release, "max": release},
    }
    assert found["sub_queries"] > 1
    assert found["lost_shards"] > 0


def test_bits_are_counted_as_the_data_say(table: pa.Table, pattern: str, bit_pushing: dict) -> None:
    found, stages = dict(bit_pushing), 4  # two rounds of the value, two of its distance from the mean
    check_times(found, {"slice_read_milliseconds": FILES, "block_tally_milliseconds": stages << DEFAULT_GROUP_BITS})
    usable = table.filter(pa.compute.is_finite(table["latitude"]))
    users = len(set(usable["user_id"].drop_null().to_pylist()))
    assert found.pop("user_group_bytes")["count"] == 1 << DEFAULT_GROUP_BITS
    dropped = {"null_user_id": 4, "null_value": table["latitude"].null_count, "not_finite": BAD["not_finite"]}
    assert found == {
        **reading(table, pattern),
        **{f"dropped_{reason}_rows": dropped.get(reason, 0) for reason in metrics.DROP_REASONS},
        "clamped_rows": BAD["out_of_range"],
        "bounded_users": users,
        "reported_bits": 2 * users,
    }


@pytest.mark.slow
def test_a_count_without_noise_counts_what_the_data_say(
    table: pa.Table, pattern: str, private: tuple[dict, Path], bit_pushing: dict
) -> None:
    counted_by_heatmaps, _ = private
    found = run_quantiles(pattern)
    values = table["latitude"].filter(pa.compute.is_valid(table["user_id"])).to_numpy()
    outside = int(((values < 50.45) | (values > 50.55)).sum())
    missing = table["latitude"].null_count
    times = {"slice_read_milliseconds": FILES, "group_count_milliseconds": 1 << DEFAULT_GROUP_BITS}
    check_times(found, times)
    dropped = {"null_user_id": 4, "null_value": missing, "not_finite": BAD["not_finite"]}
    assert found == {
        **reading(table, pattern),
        **{f"dropped_{reason}_rows": dropped.get(reason, 0) for reason in metrics.DROP_REASONS},
        "clamped_rows": outside,
    }
    assert outside > 100  # a third at least, wherever the clusters are: their deviation is half of the range
    of_days = {"earlier_days_rows", "later_days_rows"}  # see tests/jobs/refresh/test_nights.py
    assert {*found, *times, *counted_by_heatmaps, *bit_pushing, *of_days} == set(METRICS)  # each is counted by some job


@pytest.mark.pinned  # a noisy count may equal the exact one
def test_nothing_raw_that_is_counted_is_in_a_release(private: tuple[dict, Path]) -> None:
    found, output = private
    manifest, page = ((output / name).read_text() for name in ("manifest.json", "index.html"))
    for name, metric in METRICS.items():
        if metric.readers == RAW:
            assert name not in manifest + page
    for number in (found["read_rows"], found["bounded_users"]):
        assert number > 3000
        assert not re.search(rf"\b({number}|{number:,})(\.0)?\b", manifest + page)
    sub_queries = json.loads(manifest)["privacy"]["sub_queries"]
    assert found["sub_queries"] == len(sub_queries)  # what anybody may know is there


def test_the_document_shows_the_registry() -> None:
    text = (ROOT / "docs/reference/observability.md").read_text()
    command = "    python -m sfumato.transforms.observability.metrics\n"
    assert command in text
    after = text.split(command)[1]
    assert after[after.index("|") :].startswith(metrics.registry_table() + "\n")


class _FinishedResult(PipelineResult):
    """A result with the metrics that an engine sent."""

    def __init__(self, sent: beam_job_api_pb2.MetricResults):
        super().__init__(PipelineState.DONE)
        self._sent = PortableMetrics(beam_job_api_pb2.GetJobMetricsResponse(metrics=sent))

    def metrics(self) -> PortableMetrics:
        return self._sent


def test_a_committed_counter_of_zero_counts() -> None:
    """Prism sends committed counters without attempted ones. Of these Beam returns None where the count is 0."""
    sent = [
        monitoring_infos.int64_user_counter("sfumato", name, count, ptransform=step)
        for name, step, count in (("lost_shards", "a", 0), ("lost_shards", "b", 3), ("clamped_rows", "a", 0))
    ]
    assert read_metrics(_FinishedResult(beam_job_api_pb2.MetricResults(committed=sent))) == {
        "lost_shards": 3,
        "clamped_rows": 0,
    }
