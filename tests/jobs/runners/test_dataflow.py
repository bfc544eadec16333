"""Dataflow as far as it goes without Google: the job's graph, what is staged, and what is refused."""

from __future__ import annotations

import base64
import bz2
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

from sfumato.pipelines.command_line import cli
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid
from sfumato.transforms.locations.read import LocationEncoding, ReadLogs
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret
from sfumato.transforms.privacy.user_hashes import rotation_key
from tests.conftest import REGION, make_logs, write_files
from tests.keys import SECRET, write_key
from tests.leaks import forms, holds
from tests.secret_manager import secret_manager
from tests.storage import BUCKET, names, put, storage_emulator, upload

pytest.importorskip(
    "apache_beam.runners.dataflow.dataflow_runner", reason="needs apache-beam[gcp]", exc_type=ImportError
)


CLOUD = ["--runner_config", "dataflow", "--project", "test-project", "--temp_location", f"{BUCKET}/temp"]
KEY_PATH = f"{BUCKET}/key"
KEY_NAME = "projects/test-project/secrets/run-key/versions/7"


@pytest.fixture(scope="module", autouse=True)
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A pattern of logs in a bucket that exists while this module's tests run."""
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
def dry(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The shipped settings with Beam's own `dry_run`, which builds the graph and submits nothing.

    On the command line `--dry_run` is ours: it builds no graph.
    """
    shipped = (resources.files("sfumato.runner_configs") / "dataflow.yaml").read_text()
    path = tmp_path_factory.mktemp("dry") / "dry.yaml"
    path.write_text(f'{shipped}\ndry_run: "True"\n')
    return ["--runner_config", str(path)]


@pytest.fixture(scope="module")
def job(logs: str, dry: list[str]) -> Any:
    """What the heatmap's command would submit: its `proto_pipeline` is the graph, `options` are Beam's."""
    return submitted([*command(logs), *dry])


def submitted(arguments: list[str], key: tuple[str, ...] = ("--key_file", KEY_PATH)) -> Any:
    """The job of a run that Beam does not submit, and which publishes nothing."""
    jobs = []
    run_pipeline = DataflowRunner.run_pipeline

    def watch(self: Any, pipeline: Any, options: Any) -> Any:
        result = run_pipeline(self, pipeline, options)
        jobs.append(result.job)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataflowRunner, "run_pipeline", watch)
        patch.setenv("CLOUDSDK_COMPUTE_REGION", "europe-west1")
        assert cli.main([*arguments, *key]) == 0
    assert len(jobs) == 1
    assert names(f"{BUCKET}/out") == []
    return jobs[0]


# --- secrets ---


def unpickled(graph: Any) -> dict[str, tuple[Any, ...]]:
    """The graph's DoFns with their arguments by the names of their steps, unpickled as a worker would."""
    found = {}
    for step in graph.components.transforms.values():
        if step.spec.urn == common_urns.primitives.PAR_DO.urn:
            function = beam_runner_api_pb2.ParDoPayload.FromString(step.spec.payload).do_fn
            if function.urn == python_urns.PICKLED_DOFN_INFO:
                found[step.unique_name] = pickler.loads(function.payload)
    return found


def dofns(graph: Any) -> dict[str, Any]:
    return {name: held[0] for name, held in unpickled(graph).items()}


def run_key(graph: Any) -> RunKey:
    key = dofns(graph)["Heatmap/ReadLocations/Encode/ParDo(_EncodeSliceFn)"]._encoding.run_key
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


def test_graph_of_a_cohort_holds_no_secret_of_the_division(logs: str, dry: list[str]) -> None:
    ledger = ("--ledger", f"{BUCKET}/book", "--dataset", "city", "--period", "2026-11-20", "--budget", "1/1d")
    found = submitted([*command(logs, *ledger, "--rotation", "2/3"), *dry, "--release_id", "one"])
    graph, submitted_job = found.proto_pipeline.SerializeToString(), str(found.proto).encode()
    division = rotation_key(FileSecret(KEY_PATH), "city", 3, "user_id")
    for derived in (SECRET, division._key, division.subkey("users"), division.subkey("places")):
        assert not holds(graph, derived)
        assert not holds(submitted_job, derived)


def test_a_key_of_secret_manager_travels_by_name(logs: str, dry: list[str]) -> None:
    with secret_manager({KEY_NAME: SECRET}):
        found = submitted([*command(logs), *dry], ("--key_secret", KEY_NAME))
        key = run_key(found.proto_pipeline)
        assert key.secret == SecretManagerSecret(KEY_NAME)
        secrets = [SECRET, key._key, key.subkey("users")]
    sent = [found.proto_pipeline.SerializeToString(), str(found.proto).encode()]
    assert holds(sent[0], KEY_NAME.encode())
    assert not any(holds(data, secret) for data in sent for secret in secrets)


@pytest.mark.parametrize(
    "options",
    [
        ["hotspots", "--region", "-1,50,1,51", "--depth", "6"],
        ["quantiles", "--column", "latitude", "--range", "50,51", "--method", "interactive", "--bits", "4"],
    ],
)
def test_graphs_of_sampling_jobs_hold_no_secret(logs: str, dry: list[str], options: list[str]) -> None:
    found = submitted([options[0], "--input", logs, "--output", f"{BUCKET}/out", *options[1:], *CLOUD, *dry])
    graph = found.proto_pipeline
    encodings = [fn._encoding for fn in dofns(graph).values() if hasattr(fn, "_encoding")]
    samplers = [one.draw for one in encodings]
    assert samplers
    assert samplers[0].key.secret == FileSecret(KEY_PATH)
    text = graph.SerializeToString()
    assert holds(text, KEY_PATH.encode())
    assert not holds(text, SECRET)
    for derived in (samplers[0].key._key, samplers[0].key.subkey("users"), samplers[0].key.subkey("participation")):
        assert not holds(text, derived)
    assert not holds(text, b"/sfumato-")  # samples travel in line: workers share no disk


@pytest.mark.parametrize("groups", [[], ["--cells", "2", "--region", "-1,50,1,51"]], ids=["all", "cells"])
def test_graphs_of_bit_pushing_hold_no_secret(logs: str, dry: list[str], groups: list[str]) -> None:
    options = ["--column", "latitude", "--bits", "8", "--epsilon", "2", "--statistics", "mean,variance", *groups]
    found = submitted(["moments", "--input", logs, "--output", f"{BUCKET}/out", *options, *CLOUD, *dry])
    graph = found.proto_pipeline
    steps = unpickled(graph).values()
    held = [getattr(fn, "_encoding", getattr(fn, "_bound", None)) for fn, *_ in steps]
    keys = [getattr(one, "__self__", one).key for one in held if one is not None]  # also of a bound method
    keys += [one for _, arguments, *_ in steps for one in arguments if isinstance(one, RunKey)]
    assert len(keys) == 7  # one that encodes, one that picks a record of each user, one a stage that draws
    assert {key.secret for key in keys} == {FileSecret(KEY_PATH)}
    sent = [graph.SerializeToString(), str(found.proto).encode()]
    assert holds(sent[0], KEY_PATH.encode())
    for secret in (SECRET, keys[0]._key, *(keys[0].subkey(name) for name in ("users", "places", "told"))):
        assert not any(holds(data, secret) for data in sent)
    assert not holds(sent[0], b"/sfumato-")  # blocks travel in line


def test_the_search_for_secrets_finds_one() -> None:
    """The same search, in a graph that carries its secret, as a local run's does."""
    grid = Grid(REGION, 6)
    root = beam.Pipeline()
    key = RunKey.derive(FixedSecret(SECRET), {})
    _ = root | beam.Create(["path"]) | ReadLogs(LocationEncoding(LocationColumns(), grid, key, Spill(None)))
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


def test_a_remote_run_without_a_key_file_is_refused(logs: str, dry: list[str], capsys: Any) -> None:
    assert cli.main(command(logs, *dry)) == 2
    error = capsys.readouterr().err
    assert "key_file: a remote runner would carry the key in the job's graph" in error
    assert "name it with --key_file" in error


# --- settings ---


def test_the_maps_region_is_not_dataflows_region(job: Any) -> None:
    assert job.options.view_as(GoogleCloudOptions).region == "europe-west1"
    assert (
        dofns(job.proto_pipeline)["Heatmap/ReadLocations/Encode/ParDo(_EncodeSliceFn)"]._encoding.locator.region
        == REGION
    )
    assert not holds(job.proto_pipeline.SerializeToString(), b"europe-west1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temp_location", f"{BUCKET}/temp"], "project"),
        (["--project", "Not a project", "--temp_location", f"{BUCKET}/temp"], "Invalid Project ID"),
        (["--runner", "SlideRule"], "Unexpected pipeline runner: SlideRule"),
    ],
)
def test_what_beam_finds_missing_is_a_bad_request(
    logs: str, dry: list[str], capsys: Any, arguments: list[str], message: str
) -> None:
    start = command(logs)[: -len(CLOUD)]
    runner = [] if "--runner" in arguments else dry
    assert cli.main([*start, *runner, *arguments, "--key_file", KEY_PATH]) == 2
    error = capsys.readouterr().err
    assert "sfumato heatmap: runner: " in error
    assert message in error


# --- data ---


def spills_of(holder: Any) -> list[Spill]:
    """The spills that a function holds, itself or in what it holds."""
    held = list(vars(holder).values()) if hasattr(holder, "__dict__") else []
    mine = [one for one in held if isinstance(one, Spill)]
    return mine + [spill for one in held if type(one).__module__.startswith("sfumato.") for spill in spills_of(one)]


def test_bulky_data_travel_in_line(job: Any) -> None:
    """Workers share no disk, so no step may store its output in a folder."""
    spills = {name: spill for name, fn in dofns(job.proto_pipeline).items() for spill in spills_of(fn)}
    assert len(spills) >= 4  # read, bound users, split by shard, build index
    assert [name for name, spill in spills.items() if spill.place is not None] == []
    assert not holds(job.proto_pipeline.SerializeToString(), b"/sfumato-")


@pytest.mark.parametrize("field", ["input", "output", "key_file"])
def test_places_on_this_machines_disk_are_refused(
    logs: str, dry: list[str], tmp_path: Path, capsys: Any, field: str
) -> None:
    """A worker would read nothing there, or publish the release to a disk that vanishes with it."""
    write_files(make_logs(300, 1, seed=0), tmp_path, 1)
    write_key(tmp_path / "key")
    local = {"input": tmp_path / "*.parquet", "output": tmp_path / "out", "key_file": tmp_path / "key"}[field]
    assert cli.main(command(logs, "--key_file", KEY_PATH, f"--{field}", str(local), *dry)) == 2
    assert f"{field}: Dataflow's workers cannot reach {str(local)!r}" in capsys.readouterr().err
