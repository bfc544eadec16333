"""Beam's runners for Flink, Spark and Prism, with job servers that end with the job.

Beam reaches these engines through a job server: a Java program for Flink and Spark, and Prism itself, a Go program. Its
file is named by an option of Beam or by an environment variable; `make flink-jar`, `make spark-jar` and `make prism`
make it. Without a file Beam downloads one.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import grpc
from apache_beam.options.pipeline_options import (
    DebugOptions,
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PrismRunnerOptions,
    SparkRunnerOptions,
)
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.runners.portability.spark_runner import SparkRunner
from apache_beam.runners.runner import PipelineResult
from apache_beam.runners.worker.sdk_worker_main import _get_state_cache_size_bytes
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.transforms.environments import ExternalEnvironment
from apache_beam.utils.thread_pool_executor import shared_unbounded_instance

from sfumato.pipelines.runners.folders import private_folder
from sfumato.schemas.errors import DataError, RequestError

_TIMEOUT_S = 10.0
_ERRORS = ("Error", "Exception in", "panic:")  # how lines of Java and Go begin that report an error
_WORKERS_TRACEBACK = "Traceback (most recent call last)"  # Beam sends a Python error as this text


@dataclass(frozen=True)
class Engine:
    """An engine that Beam reaches through a job server."""

    name: str  # in messages
    options: type[PipelineOptions]  # where Beam declares the engine's options
    option: str  # the option that names the job server's file
    variable: str  # environment variable that names it where the option does not
    target: str  # of make, which makes the file

    @property
    def needs_java(self) -> bool:
        """Returns whether the file is a jar."""
        return self.option.endswith("_jar")


FLINK = Engine("Flink", FlinkRunnerOptions, "flink_job_server_jar", "SFUMATO_FLINK_JAR", "flink-jar")
SPARK = Engine("Spark", SparkRunnerOptions, "spark_job_server_jar", "SFUMATO_SPARK_JAR", "spark-jar")
PRISM = Engine("Prism", PrismRunnerOptions, "prism_location", "SFUMATO_PRISM", "prism")


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
    """Beam's runner of an engine, with three differences.

    - The job server ends with the job. Beam's ends when Python exits, with warnings on the terminal.
    - The engine writes raw data into a private folder, and not into the common temporary folder.
    - The workers in this process listen on loopback. Beam's listen on all network interfaces.
    """

    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self._printed = BufferingHandler(1000)

    def default_job_server(self, options: PipelineOptions) -> Any:
        """Returns Beam's job server, not started yet, with a temporary folder that only this user can read."""
        folder = self._open.enter_context(private_folder())
        java = options.view_as(JobServerOptions)
        java.job_server_jvm_properties = [f"-Djava.io.tmpdir={folder}", *(java.job_server_jvm_properties or [])]
        # Otherwise Beam keeps one Prism for all jobs of the process.
        options.view_as(DebugOptions).add_experiment("disable_prism_server_singleton")
        log = logging.getLogger(f"{self.engine.name}{'Jar' if self.engine.needs_java else ''}JobServer")
        log.handlers, log.propagate = [self._printed], False
        log.setLevel(logging.INFO)
        server = super().default_job_server(options)
        self._open.callback(server.stop)
        return server

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
            printed = (record.getMessage() for record in self._printed.buffer)
            shown = next((line for line in printed if line.startswith(_ERRORS)), str(error) or type(error).__name__)
            raise RequestError(
                f"runner: {self.engine.name}'s job server cannot be reached or started ({' '.join(shown.split())}); "
                f"name another with --{self.engine.option} or {self.engine.variable}, or run: make {self.engine.target}"
            ) from error

    def run_portable_pipeline(self, pipeline: Any, options: PipelineOptions) -> PipelineResult:
        """Runs the job, and ends the job server.

        Raises:
            RuntimeError: a worker failed; the text holds its traceback.
            DataError: the engine failed, or its job server.
        """
        try:
            result = super().run_portable_pipeline(pipeline, options)
            state, metrics = result.wait_until_finish(), None
            with contextlib.suppress(grpc.RpcError):  # the job is done, so missing metrics are no failure
                metrics = result.metrics()
            return _Finished(state, metrics)
        except (RuntimeError, grpc.RpcError) as error:
            text = error.details() if isinstance(error, grpc.Call) else str(error)
            if _WORKERS_TRACEBACK in text:
                raise
            first = next(filter(None, map(str.strip, text.splitlines())), type(error).__name__)
            raise DataError(
                f"{self.engine.name} ended the job ({first}); run it again: a charged release is resumed"
            ) from error
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the job server that this runner started, and removes its folder."""
        self._open.close()


class _Finished(PipelineResult):
    """The result of a job whose job server has ended."""

    def __init__(self, state: str, metrics: Any):
        super().__init__(state)
        self._metrics = metrics

    def wait_until_finish(self, duration: int | None = None) -> Any:
        """Returns the final state."""
        return self._state

    def metrics(self) -> Any:
        """Returns the job's metrics."""
        return self._metrics


class OneJobFlinkRunner(OneJobRunner, FlinkRunner):
    """Beam's FlinkRunner with a job server of its own."""

    engine = FLINK


class OneJobSparkRunner(OneJobRunner, SparkRunner):
    """Beam's SparkRunner with a job server of its own, which is also Spark's driver."""

    engine = SPARK


class OneJobPrismRunner(OneJobRunner, PrismRunner):
    """Beam's PrismRunner with a Prism of its own."""

    engine = PRISM


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
    """Returns whether a process of this user listens at a `host:port` on loopback, by Linux's /proc/net/tcp."""
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


def _network_interfaces() -> list[str]:
    """Returns the network interfaces with an address, except loopback. Open servers are reachable through them."""
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
        raise RequestError(f"{source}: file not found: {file!r}; run: make {engine.target}")
    if not given.get(f"{engine.name.lower()}_submit_uber_jar"):  # with it a jar is sent, and no server starts here
        launcher = options.view_as(JobServerOptions).job_server_java_launcher
        if engine.needs_java and shutil.which(launcher) is None:
            raise RequestError(
                f"runner: {engine.name}'s job server requires Java 11 or later, but {launcher!r} was not found; "
                "install Java, or name it with --job_server_java_launcher"
            )
        if not options.view_as(JobServerAddedOptions).open_job_server and (reached := _network_interfaces()):
            raise RequestError(
                f"runner: Beam's job server for {engine.name} listens on all network interfaces and runs code for "
                f"any client; reachable through {', '.join(reached)}; run the job in a network namespace (see "
                "docs/how_to/runners.md), or add --open_job_server if a firewall protects this machine"
            )
    return kind()
