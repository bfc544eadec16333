"""Engines as far as they go without one: what is checked before anything starts, and what is handed over."""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import FlinkRunnerOptions, JobServerOptions, PrismRunnerOptions
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.flink_runner import FlinkRunner

from sfumato.pipelines import cli, job_servers
from sfumato.pipelines.job_servers import FLINK, PRISM, RUNNERS, OneJobFlinkRunner
from sfumato.pipelines.run import JOBS
from sfumato.pipelines.runner_settings import RunnerSettings, runner_settings
from sfumato.schemas.errors import DataError, RequestError
from tests import ROOT
from tests.engine_runs import RELEASES
from tests.keys import SECRET, write_key
from tests.rejections import rejects


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


def test_the_jar_comes_from_the_option_then_the_variable_and_else_from_beam(
    tmp_path: Path, jar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(RequestError, match=r"^SFUMATO_FLINK_JAR: no file '/nowhere\.jar'"):
        settings(java)
    monkeypatch.setenv(FLINK.variable, jar)
    with rejects("runner"):
        settings("--job_server_java_launcher=/nowhere/java")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(RequestError, match="there is no program 'java'"):
        settings()


def test_somebody_elses_job_server_needs_neither_java_nor_jar(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLINK.variable, "/nowhere.jar")
    assert settings(f"--job_endpoint={endpoint}", "--job_server_java_launcher=/nowhere/java")


def test_flinks_own_option_is_known(tmp_path: Path, jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLINK.variable, jar)
    java = f"--job_server_java_launcher={launcher(tmp_path)}"
    found = settings(java, "--flink_conf_dir=/etc/flink").options
    assert found.get_all_options(drop_default=True)["flink_conf_dir"] == "/etc/flink"
    with pytest.raises(RequestError, match="unknown option --flink_config"):
        settings(java, "--flink_config=/etc/flink")


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
    from tests.jobs.test_dataflow import dofns, holds

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
    with pytest.raises(RequestError, match=r"reached by eth0\..*--open_job_server"):
        runner_settings(engine, [java])
    assert runner_settings(engine, [java, "--open_job_server"])
    assert runner_settings(engine, [f"--job_endpoint={endpoint}"])  # somebody else's
    monkeypatch.setattr(job_servers, "_network_interfaces", list)
    assert runner_settings(engine, [java])


def test_prism_needs_a_program_and_no_java(tmp_path: Path, jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    none = ["--open_job_server", "--job_server_java_launcher=/nowhere/java"]
    monkeypatch.setenv(PRISM.variable, "/nowhere/prism")
    with pytest.raises(RequestError, match=r"^SFUMATO_PRISM: no file '/nowhere/prism'; `make prism` makes one"):
        runner_settings("prism", none)
    monkeypatch.setenv(PRISM.variable, jar)
    options = runner_settings("prism", none).options
    assert options.view_as(PrismRunnerOptions).prism_location == jar
    other = str(tmp_path / "other")
    Path(other).touch()
    options = runner_settings("prism", [*none, f"--prism_location={other}"]).options
    assert options.view_as(PrismRunnerOptions).prism_location == other


def test_the_page_of_engines_shows_each_command() -> None:
    page = (ROOT / "docs" / "how_to" / "runners.md").read_text().replace("\\\n", "")
    shown = "\n".join(line for line in page.splitlines() if line.startswith("    "))
    for name, kind in RUNNERS.items():
        engine = kind.engine
        for command in (f"make {engine.target}", f"export {engine.variable}=", f"--runner_config {name[:-6]} "):
            assert command in shown


def test_a_worker_is_started_for_a_server_of_this_user_on_loopback_alone() -> None:
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
