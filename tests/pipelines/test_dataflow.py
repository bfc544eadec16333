"""Dataflow as far as it goes without Google: the job's graph, what is staged, and what is refused."""

from __future__ import annotations

import base64
import bz2
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import DebugOptions, GoogleCloudOptions, WorkerOptions
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2

from sfumato.pipelines import cli
from sfumato.pipelines.options import runner_settings
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid
from sfumato.transforms.locations.read import ReadLocations
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.secrets import FileSecret
from tests.conftest import REGION, make_logs, write_files

pytest.importorskip(
    "apache_beam.runners.dataflow.dataflow_runner", reason="needs apache-beam[gcp]", exc_type=ImportError
)
pytest.importorskip("apache_beam.io.gcp.gcsio", reason="needs apache-beam[gcp]", exc_type=ImportError)
pytest.importorskip("gcp_storage_emulator.server", reason="needs the package gcp-storage-emulator")

from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

from tests.pipelines.test_gcs import BUCKET, SECRET, names, put, storage_emulator, upload

CLOUD = ["--runner_config", "dataflow", "--project", "test-project", "--temp_location", f"{BUCKET}/temp"]
KEY_PATH = f"{BUCKET}/key"


@pytest.fixture(scope="module", autouse=True)
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A pattern of logs in a bucket that stands as long as this module's tests."""
    folder = tmp_path_factory.mktemp("logs")
    write_files(make_logs(300, 1, seed=0), folder, 2)
    with storage_emulator():
        put(KEY_PATH, SECRET)
        yield upload(folder, f"{BUCKET}/logs")


def command(pattern: str, *more: str) -> list[str]:
    return [
        "heatmap", "--input", pattern, "--output", f"{BUCKET}/out", "--region", "-1,50,1,51", "--depth", "6",
        "--shard_size", "100", *CLOUD, *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def job(logs: str) -> Any:
    """What the heatmap's command would submit: its `proto_pipeline` is the graph, `options` are Beam's."""
    return submitted(command(logs))


def submitted(arguments: list[str]) -> Any:
    """The job of a dry run, which publishes nothing."""
    jobs = []
    run_pipeline = DataflowRunner.run_pipeline

    def watch(self: Any, pipeline: Any, options: Any) -> Any:
        result = run_pipeline(self, pipeline, options)
        jobs.append(result.job)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataflowRunner, "run_pipeline", watch)
        more = ["--key_file", KEY_PATH, "--dataflow_region", "europe-west1", "--dry_run=True"]
        assert cli.main([*arguments, *more]) == 0
    assert len(jobs) == 1
    assert names(f"{BUCKET}/out") == []
    return jobs[0]


# --- secrets ---


def layers(data: bytes) -> Iterator[bytes]:
    """The bytes, and all that is packed in them: Beam pickles functions, compresses and base64-encodes them, nested."""
    yield data
    for packed in re.findall(rb"(?:Qlpo|eN)[A-Za-z0-9+/]{16,}={0,2}", data):  # how bz2 and zlib data begin in base64
        raw = base64.b64decode(packed[: len(packed) // 4 * 4])
        unpack = bz2.BZ2Decompressor() if raw.startswith(b"BZh") else zlib.decompressobj()
        try:
            inner = unpack.decompress(raw)
        except (OSError, zlib.error):  # it only looked like it
            continue
        yield from layers(inner)


def forms(secret: bytes) -> list[bytes]:
    """A secret as it stands, in hexadecimal, as a Python literal, and in base64 at any offset."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret)[2:-1].encode()]
    for offset in range(3):
        inner = secret[offset:]
        inner = inner[: len(inner) // 3 * 3]
        found += [base64.b64encode(inner), base64.urlsafe_b64encode(inner)]
    return found


def holds(data: bytes, secret: bytes) -> bool:
    return any(form in layer for layer in layers(data) for form in forms(secret))


def dofns(graph: Any) -> dict[str, Any]:
    """The graph's DoFns by the names of their steps, unpickled as a worker would."""
    found = {}
    for step in graph.components.transforms.values():
        if step.spec.urn == common_urns.primitives.PAR_DO.urn:
            function = beam_runner_api_pb2.ParDoPayload.FromString(step.spec.payload).do_fn
            if function.urn == python_urns.PICKLED_DOFN_INFO:
                found[step.unique_name] = pickler.loads(function.payload)[0]
    return found


def run_key(graph: Any) -> RunKey:
    key = dofns(graph)["Heatmap/ReadLocations/Encode/ParDo(_EncodeSliceFn)"]._run_key
    assert isinstance(key, RunKey)
    return key


def test_the_graph_names_the_key_file_and_holds_no_secret(job: Any) -> None:
    graph = job.proto_pipeline.SerializeToString()
    key = run_key(job.proto_pipeline)
    assert key.secret == FileSecret(KEY_PATH)
    assert holds(graph, KEY_PATH.encode())  # so the search looks into pickled functions
    assert not holds(graph, SECRET)
    for derived in (key._key, key.subkey("users"), key.subkey("dropout", 0)):  # a worker can derive them: they are real
        assert not holds(graph, derived)
    submitted = str(job.proto).encode()
    assert len(submitted) > 100
    assert not holds(submitted, SECRET)


@pytest.mark.parametrize(
    "options",
    [
        ["hotspots", "--region", "-1,50,1,51", "--depth", "6"],
        ["quantiles", "--column", "latitude", "--range", "50,51", "--method", "interactive", "--bits", "4"],
    ],
)
def test_the_graphs_of_sampling_jobs_hold_no_secret_and_no_folder(logs: str, options: list[str]) -> None:
    found = submitted([options[0], "--input", logs, "--output", f"{BUCKET}/out", *options[1:], *CLOUD])
    graph = found.proto_pipeline
    samplers = [fn._sampler for fn in dofns(graph).values() if hasattr(fn, "_sampler")]
    assert samplers
    assert samplers[0].key.secret == FileSecret(KEY_PATH)
    text = graph.SerializeToString()
    assert holds(text, KEY_PATH.encode())
    assert not holds(text, SECRET)
    for derived in (samplers[0].key._key, samplers[0].key.subkey("users"), samplers[0].key.subkey("participation")):
        assert not holds(text, derived)
    assert not holds(text, b"/sfumato-")  # samples travel in line: workers share no disk


def test_the_search_for_secrets_finds_one() -> None:
    """The same search, in a graph that carries its secret, as a local run's does."""
    grid = Grid(REGION, 6)
    root = beam.Pipeline()
    key = RunKey.derive(FixedSecret(SECRET), {})
    _ = root | beam.Create(["path"]) | ReadLocations(LocationColumns(), grid, key, Spill(None))
    graph = root.to_runner_api().SerializeToString()
    assert SECRET not in graph
    assert holds(graph, SECRET)
    assert not holds(graph, SECRET[::-1])
    for form in forms(SECRET):
        assert holds(b"7" + base64.b64encode(bz2.compress(b"before" + form + b"after")), SECRET)
    assert holds(base64.b64encode(b"a" + SECRET), SECRET)
    assert holds(base64.b64encode(b"ab" + SECRET), SECRET)


def test_a_template_is_refused_for_it_would_repeat_its_noise(logs: str, capsys: Any) -> None:
    template = ["--template_location", f"{BUCKET}/template.json", "--no_auth"]
    before = names(BUCKET)
    assert cli.main(command(logs, "--key_file", KEY_PATH, *template)) == 2
    assert "template_location: a template would draw the same noise" in capsys.readouterr().err
    assert names(BUCKET) == before


def test_a_remote_run_without_a_key_file_is_refused(logs: str, capsys: Any) -> None:
    assert cli.main(command(logs, "--dry_run=True")) == 2
    error = capsys.readouterr().err
    assert "key_file: a remote runner would carry the key in the job's graph" in error
    assert "name it with --key_file" in error


# --- settings ---


def test_the_maps_region_is_not_dataflows_region(job: Any) -> None:
    assert job.options.view_as(GoogleCloudOptions).region == "europe-west1"
    assert dofns(job.proto_pipeline)["Heatmap/ReadLocations/Encode/ParDo(_EncodeSliceFn)"]._grid.region == REGION
    assert not holds(job.proto_pipeline.SerializeToString(), b"europe-west1")


def test_the_shipped_settings_arrive(job: Any) -> None:
    worker = job.options.view_as(WorkerOptions)
    assert (worker.machine_type, worker.max_num_workers) == ("n2-highmem-4", 20)
    assert worker.autoscaling_algorithm == "THROUGHPUT_BASED"
    assert "use_runner_v2" in job.options.view_as(DebugOptions).experiments
    assert job.options.view_as(GoogleCloudOptions).project == "test-project"


def test_the_command_line_wins_over_the_shipped_settings() -> None:
    shipped = runner_settings("dataflow", None, CLOUD[2:])
    assert shipped.options.view_as(GoogleCloudOptions).region == "us-central1"
    assert not shipped.local
    changed = runner_settings("dataflow", "asia-east1", [*CLOUD[2:], "--max_num_workers=3"])
    assert changed.options.view_as(GoogleCloudOptions).region == "asia-east1"
    assert changed.options.view_as(WorkerOptions).max_num_workers == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temp_location", f"{BUCKET}/temp", "--dry_run=True"], "project"),
        (["--project", "Not a project", "--temp_location", f"{BUCKET}/temp", "--dry_run=True"], "Invalid Project ID"),
        (["--runner", "SlideRule"], "Unexpected pipeline runner: SlideRule"),
    ],
)
def test_what_beam_finds_missing_is_a_bad_request(logs: str, capsys: Any, arguments: list[str], message: str) -> None:
    start = command(logs)[: -len(CLOUD)]
    runner = [] if "--runner" in arguments else ["--runner_config", "dataflow"]
    assert cli.main([*start, *runner, *arguments, "--key_file", KEY_PATH]) == 2
    error = capsys.readouterr().err
    assert "sfumato heatmap: runner: " in error
    assert message in error


# --- data ---


def test_bulky_data_travel_in_line(job: Any) -> None:
    """Workers share no disk, so no step may store its output in a folder."""
    spills = {name: fn._spill for name, fn in dofns(job.proto_pipeline).items() if hasattr(fn, "_spill")}
    assert len(spills) >= 4  # read, bound users, split by shard, build index
    assert [name for name, spill in spills.items() if spill.place is not None] == []
    assert not holds(job.proto_pipeline.SerializeToString(), b"/sfumato-")


@pytest.mark.parametrize("field", ["input", "output", "key_file"])
def test_places_on_this_machines_disk_are_refused(logs: str, tmp_path: Path, capsys: Any, field: str) -> None:
    """A worker would read nothing there, or publish the release to a disk that vanishes with it."""
    write_files(make_logs(300, 1, seed=0), tmp_path, 1)
    (tmp_path / "key").write_bytes(SECRET)
    local = {"input": tmp_path / "*.parquet", "output": tmp_path / "out", "key_file": tmp_path / "key"}[field]
    assert cli.main(command(logs, "--key_file", KEY_PATH, f"--{field}", str(local), "--dry_run=True")) == 2
    assert f"{field}: Dataflow's workers cannot reach {str(local)!r}" in capsys.readouterr().err
