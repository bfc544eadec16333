"""Settings of runners, and job servers of Flink, Spark and Prism."""

from __future__ import annotations

import gc
import json
import logging
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, FlinkRunnerOptions, JobServerOptions, PrismRunnerOptions
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.flink_runner import FlinkRunner

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.cli import join_negative_values, parse_command
from sfumato.pipelines.command_line.run import JOBS, request_class, request_of
from sfumato.pipelines.runners import job_servers
from sfumato.pipelines.runners.job_servers import FLINK, PRISM, RUNNERS, OneJobFlinkRunner
from sfumato.pipelines.runners.runner_settings import RunnerSettings, load_runner_config, runner_settings
from sfumato.schemas.errors import DataError, RequestError
from tests import ROOT
from tests.engine_runs import RELEASES
from tests.keys import SECRET, write_key
from tests.rejections import rejects

# --- test_runner_settings.py ---

FILES = ["--input", "x", "--output", "y"]
HEATMAP = ["--input", "x", "--output", "y", "--region", "0,0,1,1"]
SHIPPED = sorted((ROOT / "runner_configs").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads_by_path_and_by_name(path: Path) -> None:
    flags = load_runner_config(str(path))
    assert flags
    assert load_runner_config(path.stem) == flags
    assert any(flag.startswith("--runner=") for flag in flags)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", "just words"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(text)
    with pytest.raises(RequestError, match="runner_config"):
        load_runner_config(str(config))


def test_the_command_line_wins_over_the_configuration() -> None:
    settings = runner_settings("direct_threads", ["--direct_num_workers=3"])
    direct = settings.options.view_as(DirectOptions)
    assert direct.direct_num_workers == 3
    assert settings.local


def test_number_of_threads_follows_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.pipelines.runners.runner_settings.processors", lambda: 6)

    def threads(size: int, *flags: str) -> int:
        return runner_settings(None, flags).sized(size).options.view_as(DirectOptions).direct_num_workers

    assert threads(10**6) == 1
    assert threads(10**9) == 6
    assert threads(10**9, "--direct_num_workers=1") == 1
    assert threads(1000, "--direct_num_workers=3") == 3


@pytest.mark.parametrize("mode", ["multi_threading", "multi_processing"])
@pytest.mark.parametrize("runner", ["DirectRunner", "FnApiRunner"])
def test_modes_that_open_servers_are_refused(mode: str, runner: str) -> None:
    with pytest.raises(RequestError, match=r"listen on all network interfaces.*--runner_config direct_threads"):
        runner_settings(None, [f"--runner={runner}", f"--direct_running_mode={mode}"])
    assert runner_settings(None, ["--direct_running_mode=in_memory"]).local


@pytest.mark.parametrize("flag", ["--nonsense", "--nonsense=1", "-x"])
def test_unknown_flags_are_refused_by_name(flag: str) -> None:
    with pytest.raises(RequestError, match=flag.split("=")[0]):
        runner_settings(None, [flag])


@pytest.mark.parametrize("name", ["DaskRunner", "apache_beam.runners.dask.dask_runner.DaskRunner"])
def test_dask_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="DaskRunner silently skips stages"):
        runner_settings(None, [f"--runner={name}"])


@pytest.mark.parametrize(
    ("given", "joined"),
    [
        (["--region", "-1,2,3,4", "--depth", "3"], ["--region=-1,2,3,4", "--depth", "3"]),
        (["--region", "-.5,2,3,4"], ["--region=-.5,2,3,4"]),
        (["--overwrite", "--depth", "3"], ["--overwrite", "--depth", "3"]),
        (["--region=-1,2,3,4"], ["--region=-1,2,3,4"]),
    ],
)
def test_values_that_begin_with_a_minus_sign(given: list[str], joined: list[str]) -> None:
    assert join_negative_values(given) == joined


def test_the_command_without_and_with_wrong_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "heatmap" in capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert cli.main(["--version"]) == 0
    assert cli.main(["heatmaps"]) == 2
    assert "no job named 'heatmaps'" in capsys.readouterr().err


@pytest.mark.parametrize("job", JOBS)
def test_every_example_is_a_request(job: str) -> None:
    kind = request_class(job)
    request, left = parse_command(kind, shlex.split(kind.EXAMPLE))
    if job == "audit --job":  # the options of the audited job follow
        assert parse_command(request_class(request.job), [*left, "--output", "map"])[1] == []
    else:
        assert left == []
    assert request_of(job, {name: getattr(request, name) for name in request.model_fields_set}) == request


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["heatmap", "--input", "x", "--output", "y"],
            "heatmap: --region: required; for example: sfumato heatmap --input",
        ),
        (["heatmap", "--regoin", "0,0,1,1"], "unknown option --regoin; did you mean --region?"),
        (["changes", "--before", "a", "--after", "b"], "unknown option --before; see sfumato changes --help"),
        (["heatmap", *HEATMAP, "--user", "rider"], "did you mean --user_id_column?"),
        (["heatmap", *HEATMAP, "--depth", "x"], "--depth: must be a whole number between 1 and 20, got 'x'"),
        (
            ["heatmap", *HEATMAP, "--trust", "zentral"],
            "one of central, split, secagg, got 'zentral'; did you mean central?",
        ),
        (["heatmap", *HEATMAP, "--region", "0,0,1"], "--region: must be four numbers WEST,SOUTH,EAST,NORTH"),
        (["key", "make", "x"], "key: action: must be one of new, got 'make'"),
        (["ledger", "show"], "--ledger: required"),
        (
            ["histogram", "--input", "x", "--output", "y"],
            "--column: required; give --column NAME, --cells DEPTH --region W,S,E,N, --zones FILE",
        ),
        (["ranges", "bild"], "no job named 'ranges bild'; did you mean ranges build?"),
    ],
)
def test_bad_arguments_are_named_before_any_pipeline_is_imported(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


QUICK = [
    *([*job.split(), "--help"] for job in JOBS),
    ["heatmap", "--regoin", "0,0,1,1"],
    ["heatmap", *HEATMAP, "--depth", "21"],
    ["--help"],
    ["heatmap", "--help-all"],
    ["plan", "--users", "1000000"],
    ["key", "new", "FILE"],
    ["ledger", "show", "--ledger", "FILE"],
    ["ledger", "limit", "--ledger", "FILE", "--dataset", "taxis", "--budget", "1/1d"],
    ["ledger", "backup", "copy", "--ledger", "FILE"],
    ["histogram", "--colum", "x"],
    ["histogram", *FILES, "--column", "kind", "--delta", "2"],
    ["histogram", *FILES, "--column", "kind", "--contact", "limited"],
    ["hotspots", *FILES, "--column", "kind", "--levels", "40"],
    ["quantiles", *FILES, "--column", "km", "--range", "0,1", "--quantiles", "1.5"],
    ["moments", *FILES, "--column", "km", "--epsilon", "1", "--bits_per_client", "20"],
    ["moments", *FILES, "--column", "km", "--epsilon", "1", "--warm_start", "nowhere"],
    ["heatmap", *HEATMAP, "--warm_start", "nowhere"],
    ["heatmap", *HEATMAP, "--delta", "1e-20"],
    ["ranges", "build", *FILES, "--region", "0,0,1,1", "--method", "grid", "--trust", "secagg"],
    ["ranges", "build", *FILES, "--region", "0,0,1,1", "--method", "grid", "--sizes", "100,25"],
    ["moments", "--input", "x", "--output", "y", "--column", "c", "--bits", "x"],
]
# Each command runs in a fork of a process that has imported the command line and nothing else.
RUN_QUICK = """
import json, os, sys
from sfumato.pipelines.command_line import cli
for arguments in json.load(sys.stdin):
    if not os.fork():
        cli.main(arguments)
        heavy = ("apache_beam", "pandas", "matplotlib", "scipy.optimize")
        print([name for name in heavy if name in sys.modules], file=sys.stderr)
        sys.stderr.flush()
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_quick_commands_import_no_beam(tmp_path: Path) -> None:
    """Nor other large packages."""
    commands = [
        [str(tmp_path / str(number)) if one == "FILE" else one for one in arguments]
        for number, arguments in enumerate(QUICK)
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUN_QUICK], input=json.dumps(commands), capture_output=True, text=True, check=True
    )
    found = [line for line in done.stderr.splitlines() if line.startswith("[")]
    loaded = dict(zip(map(" ".join, QUICK), found, strict=True))
    assert {command: names for command, names in loaded.items() if names != "[]"} == {}


def test_a_pipeline_leaves_no_folder_to_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pipeline = runner_settings(None, []).pipeline()
    assert pipeline.local_tempdir.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# --- engines as far as they go without one ---


def launcher(folder: Path, script: str = "exit 0") -> str:
    """A program in place of `java`."""
    path = folder / "java"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def jar(tmp_path: Path) -> str:
    path = tmp_path / "server.jar"
    path.write_bytes(b"PK")
    return str(path)


@pytest.fixture
def pipes_collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Collects within the test what would else make a warning in another; kept log records would keep it as well."""
    monkeypatch.setattr(logging.getLogger("apache_beam.utils.subprocess_server"), "disabled", True)
    yield
    gc.collect()


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A server that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def settings(*flags: str) -> RunnerSettings:
    return runner_settings("flink", ["--open_job_server", *flags])


def test_jar_comes_from_option_variable_or_beam(tmp_path: Path, jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.jar"
    other.write_bytes(b"PK")
    java = f"--job_server_java_launcher={launcher(tmp_path)}"

    def chosen(*flags: str) -> str | None:
        return settings(java, *flags).options.view_as(FlinkRunnerOptions).flink_job_server_jar

    monkeypatch.setenv(FLINK.variable, jar)
    assert chosen() == jar
    assert chosen(f"--flink_job_server_jar={other}") == str(other)
    assert chosen("--flink_job_server_jar=https://example.com/server.jar") == "https://example.com/server.jar"
    monkeypatch.delenv(FLINK.variable)
    assert chosen() is None
    runner = settings(java).runner
    assert isinstance(runner, OneJobFlinkRunner)
    assert not settings(java).local  # nothing travels by reference, and no key in the graph


def test_what_is_missing_is_named(tmp_path: Path, jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    java = f"--job_server_java_launcher={launcher(tmp_path)}"
    with rejects("flink_job_server_jar"):
        settings(java, "--flink_job_server_jar=/nowhere.jar")
    monkeypatch.setenv(FLINK.variable, "/nowhere.jar")
    with pytest.raises(RequestError, match=r"^SFUMATO_FLINK_JAR: file not found: '/nowhere\.jar'"):
        settings(java)
    monkeypatch.setenv(FLINK.variable, jar)
    with rejects("runner"):
        settings("--job_server_java_launcher=/nowhere/java")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(RequestError, match="'java' was not found"):
        settings()


def test_somebody_elses_job_server_needs_neither_java_nor_jar(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLINK.variable, "/nowhere.jar")
    assert settings(f"--job_endpoint={endpoint}", "--job_server_java_launcher=/nowhere/java")


@pytest.mark.slow
@pytest.mark.usefixtures("pipes_collected")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Beam leaves a pipe to the collector
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # and a thread with a closed channel
def test_a_job_server_that_does_not_start_is_a_wrong_request(
    tmp_path: Path, jar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is Java's own; the folder that Java was given is gone."""
    places = tmp_path / "places"
    java = launcher(tmp_path, f"echo $1 >> {places}; echo starting; echo 'Error: Invalid or corrupt jarfile'; exit 1")
    monkeypatch.setenv(FLINK.variable, jar)
    wrong = settings(f"--job_server_java_launcher={java}", "--job_server_jvm_properties=-Xmx1g")
    with (
        pytest.raises(RequestError, match=r"\(Error: Invalid or corrupt jarfile\); name another"),
        wrong.pipeline() as root,
    ):
        _ = root | beam.Create([1])
    assert wrong.options.view_as(JobServerOptions).job_server_jvm_properties[-1] == "-Xmx1g"
    given = {line.removeprefix("-Djava.io.tmpdir=") for line in places.read_text().split()}
    assert len(given) == 1
    assert not os.path.exists(given.pop())


@pytest.mark.parametrize("workers", ["LOOPBACK", "DOCKER"])
def test_the_graph_names_the_key_file_and_holds_no_secret(
    logs: Any,
    tmp_path: Path,
    workers: str,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tests.jobs.runners.test_dataflow import dofns, holds

    handed: list[Any] = []

    def watch(self: Any, pipeline: Any, options: Any) -> None:
        handed.extend([pipeline, options])
        raise DataError("seen")

    monkeypatch.setattr(FlinkRunner, "run_portable_pipeline", watch)
    key_file = tmp_path / "key"
    write_key(key_file)
    arguments = [
        "heatmap", "--input", logs(600), "--output", str(tmp_path / "out"), "--region", "-1,50,1,51", "--depth", "6",
        "--shard_size", "100", "--runner_config", "flink", "--job_endpoint", endpoint,
        "--environment_type", workers,
    ]  # fmt: skip
    assert cli.main(arguments) == 2
    assert "key_file: a remote runner would carry the key" in capsys.readouterr().err
    assert not handed
    assert cli.main([*arguments, "--key_file", str(key_file)]) == 1
    assert "seen" in capsys.readouterr().err
    graph, options = handed
    key = dofns(graph)["Heatmap/ReadLocations/Encode/ParDo(_EncodeSliceFn)"]._encoding.run_key
    text = graph.SerializeToString()
    assert holds(text, str(key_file).encode())  # so the search looks into pickled functions
    for secret in (SECRET, key._key, key.subkey("users"), key.subkey("dropout", 0)):
        assert not holds(text, secret)
        assert not holds(repr(options.get_all_options()).encode(), secret)
    assert not holds(text, b"/sfumato-")  # the data travel in line: a cluster's workers share no disk


@pytest.mark.parametrize("engine", ["flink", "spark", "prism"])
def test_a_job_server_that_others_could_reach_is_refused(
    engine: str, tmp_path: Path, jar: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line 1 of the attack table: Beam's job servers listen on all network interfaces."""
    monkeypatch.setenv(RUNNERS[f"{engine}runner"].engine.variable, jar)
    java = f"--job_server_java_launcher={launcher(tmp_path)}"
    monkeypatch.setattr(job_servers, "_network_interfaces", lambda: ["eth0"])
    with pytest.raises(RequestError, match=r"reachable through eth0.*--open_job_server"):
        runner_settings(engine, [java])
    assert runner_settings(engine, [java, "--open_job_server"])
    assert runner_settings(engine, [f"--job_endpoint={endpoint}"])  # somebody else's
    monkeypatch.setattr(job_servers, "_network_interfaces", list)
    assert runner_settings(engine, [java])


def test_prism_needs_a_program_and_no_java(tmp_path: Path, jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    none = ["--open_job_server", "--job_server_java_launcher=/nowhere/java"]
    monkeypatch.setenv(PRISM.variable, "/nowhere/prism")
    with pytest.raises(RequestError, match=r"^SFUMATO_PRISM: file not found: '/nowhere/prism'; run: make prism"):
        runner_settings("prism", none)
    monkeypatch.setenv(PRISM.variable, jar)
    options = runner_settings("prism", none).options
    assert options.view_as(PrismRunnerOptions).prism_location == jar
    other = str(tmp_path / "other")
    Path(other).touch()
    options = runner_settings("prism", [*none, f"--prism_location={other}"]).options
    assert options.view_as(PrismRunnerOptions).prism_location == other


def test_worker_starts_for_this_users_loopback_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert job_servers.listens_for_us(f"localhost:{port}")
        assert not job_servers.listens_for_us(f"192.0.2.1:{port}")
        assert not job_servers.listens_for_us(f"127.0.0.1.example.com:{port}")
        request = beam_fn_api_pb2.StartWorkerRequest(worker_id="1")
        request.control_endpoint.url = f"192.0.2.1:{port}"
        assert "is not served on loopback" in job_servers._OwnWorkers().StartWorker(request, None).error
    assert not job_servers.listens_for_us(f"localhost:{port}")


def test_every_publishing_job_is_tried_on_the_engines() -> None:
    assert {job for job, *_ in RELEASES.values()} == {name for name, job in JOBS.items() if job.publishes}
