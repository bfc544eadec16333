"""Beam's runners for Flink, Spark and Prism: checks before a job server starts, and servers that end with the job.

Beam reaches these engines through a job server: a Java program for Flink and Spark, and Prism itself, a Go program. Its
file is named by an option of Beam or by an environment variable; `make flink-jar`, `make spark-jar` and `make prism`
make it. Without a file Beam downloads one.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shutil
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import grpc
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PrismRunnerOptions,
    SparkRunnerOptions,
)
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES, FlinkRunner
from apache_beam.runners.portability.job_server import StopOnExitJobServer
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner
from apache_beam.runners.portability.spark_runner import SparkJarJobServer, SparkRunner
from apache_beam.runners.runner import PipelineResult, PipelineState
from apache_beam.runners.worker.sdk_worker_main import _get_state_cache_size_bytes
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.transforms.environments import ExternalEnvironment
from apache_beam.utils.thread_pool_executor import shared_unbounded_instance

from sfumato.pipelines.folders import private_folder
from sfumato.schemas.errors import DataError, RequestError

CONFIGURATION = "FLINK_CONF_DIR"
_JAVA = 11
_TIMEOUT_S = 10.0
# By default Flink's own servers listen on all network interfaces.
_LOOPBACK_ONLY = "jobmanager.bind-host: localhost\ntaskmanager.bind-host: localhost\nrest.bind-address: localhost\n"
_WORKERS_TRACEBACK = "Traceback (most recent call last)"  # Beam sends a Python error as this text


@dataclass(frozen=True)
class Engine:
    """An engine that Beam reaches through a job server.

    Attributes:
        name: in messages.
        options: where Beam declares the engine's options.
        option: the option that names the job server's file.
        variable: environment variable that names it where the option does not.
        target: of make, which makes the file.
        log: the logger to which Beam writes what the job server prints.
        sends_jar: the option with which a jar is sent to a cluster, and no job server starts here; "" without one.
    """

    name: str
    options: type[PipelineOptions]
    option: str
    variable: str
    target: str
    log: str
    sends_jar: str = ""

    @property
    def needs_java(self) -> bool:
        """Whether the file is a jar."""
        return self.option.endswith("_jar")


FLINK = Engine(
    "Flink", FlinkRunnerOptions, "flink_job_server_jar", "SFUMATO_FLINK_JAR", "flink-jar", "FlinkJarJobServer",
    "flink_submit_uber_jar",
)  # fmt: skip
SPARK = Engine(
    "Spark", SparkRunnerOptions, "spark_job_server_jar", "SFUMATO_SPARK_JAR", "spark-jar", "SparkJarJobServer",
    "spark_submit_uber_jar",
)  # fmt: skip
PRISM = Engine("Prism", PrismRunnerOptions, "prism_location", "SFUMATO_PRISM", "prism", "PrismJobServer")


class JobServerAddedOptions(PipelineOptions):  # Beam collects the subclasses' options
    """Options that Beam's Python side does not declare. Undeclared options are refused."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--flink_conf_dir", help="folder with a Flink configuration, for restarts among others")
        parser.add_argument(
            "--open_job_server",
            action="store_true",
            help="start Beam's job server though all network interfaces reach it (docs/how_to/runners.md)",
        )


class OneJobRunner(PortableRunner):
    """Beam's runner of an engine, whose job server ends with the job.

    Three things differ from Beam's runners:

    - Beam stops the job server when Python exits, with warnings on the terminal.
    - Beam lets the engine write raw data into the common temporary folder. Here the folder is private.
    - Beam's workers in this process listen on all network interfaces. Here they listen on loopback.
    """

    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self._server: Any = None
        self._printed = _LastLines()

    def default_job_server(self, options: PipelineOptions) -> Any:
        """The job server, not started yet, with a temporary folder that only this user can read."""
        folder = self._open.enter_context(private_folder())
        java = options.view_as(JobServerOptions)
        java.job_server_jvm_properties = [f"-Djava.io.tmpdir={folder}", *(java.job_server_jvm_properties or [])]
        log = logging.getLogger(self.engine.log)
        log.handlers, log.propagate = [self._printed], False
        log.setLevel(logging.INFO)
        self._server = self.beams_job_server(options, Path(folder))
        self._open.callback(self._server.stop)
        return self._server

    def beams_job_server(self, options: PipelineOptions, folder: Path) -> Any:
        """Beam's job server for the engine. folder: a private one, removed with the job."""
        raise NotImplementedError

    @staticmethod
    def start_and_replace_loopback_environments(pipeline: Any, options: PipelineOptions) -> list[Callable[[], Any]]:
        """Starts this process's workers (LOOPBACK) on the loopback interface; Beam's listen on all interfaces.

        Returns:
            Functions that stop the servers.
        """
        stops: list[Callable[[], Any]] = []
        for environment in pipeline.components.environments.values():
            if environment.urn == python_urns.EMBEDDED_PYTHON_LOOPBACK:
                server = grpc.server(shared_unbounded_instance())
                port = server.add_insecure_port("127.0.0.1:0")
                pool = _OwnWorkers(state_cache_size=_get_state_cache_size_bytes(options))
                beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
                server.start()
                stops.append(partial(server.stop, 1))
                external = ExternalEnvironment(f"127.0.0.1:{port}").to_runner_api(None)
                environment.urn, environment.payload = external.urn, external.payload
        return stops

    def create_job_service(self, options: PipelineOptions) -> Any:
        """Starts the job server, or connects to the named one. Raises RequestError if that fails."""
        try:
            return super().create_job_service(options)
        except (RuntimeError, OSError, grpc.RpcError, grpc.FutureTimeoutError) as error:
            why = " ".join((self._printed.error or str(error) or type(error).__name__).split())
            one = self.engine
            raise RequestError(
                f"runner: {one.name}'s job server cannot be reached or started ({why}); "
                f"name another with --{one.option} or {one.variable}, `make {one.target}` makes one"
            ) from error

    def run_portable_pipeline(self, pipeline: Any, options: PipelineOptions) -> PipelineResult:
        """Starts the job. Waiting for its result also waits for the end of the job server."""
        try:
            result = super().run_portable_pipeline(pipeline, options)
        except BaseException:
            self.stop()
            raise
        return _OneJobResult(result, self.engine, self.stop)

    def stop(self) -> None:
        """Ends the job server that this runner started, and removes its folder."""
        self._open.close()


class OneJobFlinkRunner(OneJobRunner, FlinkRunner):
    """Beam's FlinkRunner with a job server of its own. The embedded cluster's servers listen on loopback."""

    engine = FLINK

    def beams_job_server(self, options: PipelineOptions, folder: Path) -> Any:
        """Beam's job server for Flink; for the embedded cluster with a configuration of ours."""
        if options.view_as(FlinkRunnerOptions).flink_master in MAGIC_HOST_NAMES:
            added = options.view_as(JobServerAddedOptions)
            source = added.flink_conf_dir or os.environ.get(CONFIGURATION)
            added.flink_conf_dir = _loopback_configuration(source, folder / "conf")
            # Flink reads parts of its configuration from this variable only, whatever Beam's option says.
            self._open.callback(_set_environment, CONFIGURATION, os.environ.get(CONFIGURATION))
            os.environ[CONFIGURATION] = added.flink_conf_dir
        return FlinkRunner.default_job_server(self, options)


class OneJobSparkRunner(OneJobRunner, SparkRunner):
    """Beam's SparkRunner with a job server of its own, which is also Spark's driver."""

    engine = SPARK

    def beams_job_server(self, options: PipelineOptions, folder: Path) -> Any:
        """Beam's job server for Spark."""
        if options.view_as(SparkRunnerOptions).spark_submit_uber_jar:
            return SparkRunner.default_job_server(self, options)
        return StopOnExitJobServer(SparkJarJobServer(options))  # Beam keeps its own for the next job


class OneJobPrismRunner(OneJobRunner, PrismRunner):
    """Beam's PrismRunner with a Prism of its own."""

    engine = PRISM

    def beams_job_server(self, options: PipelineOptions, folder: Path) -> Any:
        """Prism, which is engine and job server in one."""
        return StopOnExitJobServer(PrismJobServer(options))  # Beam keeps its own for the next job


RUNNERS = {"flinkrunner": OneJobFlinkRunner, "sparkrunner": OneJobSparkRunner, "prismrunner": OneJobPrismRunner}


class _OwnWorkers(BeamFnExternalWorkerPoolServicer):
    """Starts a worker in this process, for a job server of this user only.

    A worker runs any code that its server sends. No engine's job server sends a token that identifies the run. So the
    server's address must be one where a process of this user listens.
    """

    def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: N802  (gRPC's name)
        """Starts a worker for a control endpoint. Responds with an error if the endpoint is another user's."""
        url = request.control_endpoint.url
        if not listens_for_us(url):
            return beam_fn_api_pb2.StartWorkerResponse(error=f"{url} is not served on loopback by this process's user")
        return super().StartWorker(request, context)


def listens_for_us(url: str) -> bool:
    """Whether a process of this user listens at a `host:port` on loopback, by Linux's /proc/net/tcp."""
    host, _, port = url.rpartition(":")
    if host not in ("localhost", "127.0.0.1", "[::1]") or not port.isdigit():
        return False
    owners = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user, *_ = line.split()
                if state == "0A" and int(local.rsplit(":", 1)[1], 16) == int(port):
                    owners.add(int(user))
    return owners == {os.getuid()}


def _set_environment(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _loopback_configuration(source: str | None, folder: Path) -> str:
    """Copies a Flink configuration, and sets its servers to listen on loopback only. Returns the new folder."""
    if source is None:
        folder.mkdir()
    else:
        shutil.copytree(source, folder)
    names = [name for name in ("flink-conf.yaml", "config.yaml") if (folder / name).exists()]
    for name in names or ["flink-conf.yaml"]:
        with open(folder / name, "a") as file:
            file.write("\n" + _LOOPBACK_ONLY)
    return str(folder)


class _OneJobResult(PipelineResult):
    """A job's result that stays readable after the job server has ended: it keeps the metrics."""

    def __init__(self, result: PipelineResult, engine: Engine, stop: Callable[[], None]):
        super().__init__(PipelineState.UNKNOWN)
        self._result, self._engine, self._stop = result, engine, stop
        self._metrics: Any = None

    def wait_until_finish(self, duration: int | None = None) -> Any:
        """Waits for the job and the job server. Returns the final state.

        Raises:
            RuntimeError: a worker failed; the text holds its traceback.
            DataError: the engine failed, or its job server.
        """
        try:
            self._state = self._result.wait_until_finish(duration)
            with contextlib.suppress(grpc.RpcError):  # the job is done, so missing metrics are no failure
                self._metrics = self._result.metrics()
        except (RuntimeError, grpc.RpcError) as error:
            text = error.details() if isinstance(error, grpc.Call) else str(error)
            if _WORKERS_TRACEBACK in text:
                raise
            first = next(filter(None, map(str.strip, text.splitlines())), type(error).__name__)
            raise DataError(
                f"{self._engine.name} ended the job ({first}); run it again: what was charged is resumed"
            ) from error
        finally:
            self._stop()
        return self._state

    def metrics(self) -> Any:
        """The job's metrics."""
        return self._metrics if self._metrics is not None else self._result.metrics()

    def cancel(self) -> Any:
        """Ends the job and the job server."""
        try:
            return self._result.cancel()
        finally:
            self._stop()


class _LastLines(logging.Handler):
    """Keeps the last lines that the job server printed, for the message if it does not start."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=50)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    @property
    def error(self) -> str | None:
        """The first line in which Java or Go reports an error; None without one."""
        return next((line for line in self._lines if line.startswith(("Error", "Exception in", "panic:"))), None)


def _network_interfaces() -> list[str]:
    """The network interfaces with an address, without loopback. Servers on all interfaces can be reached there."""
    names = set()
    with contextlib.suppress(OSError):
        names |= {line.split()[-1] for line in Path("/proc/net/if_inet6").read_text().splitlines()}
    with contextlib.suppress(OSError):
        names |= {line.split()[0] for line in Path("/proc/net/route").read_text().splitlines()[1:]}
    return sorted(names - {"lo"})


def check_endpoint(endpoint: str) -> None:
    """Raises RequestError if nothing answers at a job server's HOST:PORT."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host or "localhost", int(port)), _TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise RequestError(f"job_endpoint: no job server answers at {endpoint} ({error}); start it first") from None


def engine_runner(kind: type[OneJobRunner], options: PipelineOptions) -> OneJobRunner:
    """Completes and checks the options, and returns the runner. Raises RequestError if Java or a file is missing.

    With a running job server (--job_endpoint) neither is needed here.
    """
    engine = kind.engine
    given = options.get_all_options()
    if given["job_endpoint"]:
        return kind()
    source, file = engine.option, given[engine.option]
    if not file and os.environ.get(engine.variable):
        source, file = engine.variable, os.environ[engine.variable]
        setattr(options.view_as(engine.options), engine.option, file)
    if file and "://" not in file and not os.path.isfile(file):
        raise RequestError(f"{source}: no file {file!r}; `make {engine.target}` makes one")
    if not given.get(engine.sends_jar):
        if engine.needs_java:
            _check_java(engine, options.view_as(JobServerOptions).job_server_java_launcher)
        if not options.view_as(JobServerAddedOptions).open_job_server and (reached := _network_interfaces()):
            raise RequestError(
                f"runner: Beam's job server for {engine.name} listens on all network interfaces, and runs or sends "
                f"what anybody asks for; it could be reached by {', '.join(reached)}. Run the job in a network "
                "namespace (see docs/how_to/runners.md), or give --open_job_server if a firewall protects this machine"
            )
    return kind()


def _check_java(engine: Engine, launcher: str) -> None:
    """Raises RequestError unless a program is Java of a version that a job server needs."""
    found, version = _java(launcher)
    if version < _JAVA:
        raise RequestError(
            f"runner: {engine.name}'s job server needs Java {_JAVA} or later, and {found}; install Java, or name it "
            "with --job_server_java_launcher"
        )


@cache
def _java(launcher: str) -> tuple[str, int]:
    """What a program is, in words, and its version of Java; 0 if it has none."""
    try:
        done = subprocess.run([launcher, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return f"there is no program {launcher!r} that says its version", 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if done.returncode or found is None:
        return f"{launcher} -version ends with status {done.returncode}", 0
    return f"{launcher} is Java {found[1]}", int(found[1])
