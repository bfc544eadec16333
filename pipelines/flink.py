"""Beam's FlinkRunner, with checks before it starts and servers that end with the job.

Beam reaches Flink through a Java program, the job server. Its jar is named by the option --flink_job_server_jar or the
environment variable SFUMATO_FLINK_JAR. Otherwise Beam downloads one from Maven Central. `make flink-jar` makes one.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
)
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES, FlinkRunner
from apache_beam.runners.runner import PipelineResult, PipelineState
from apache_beam.runners.worker.sdk_worker_main import _get_state_cache_size_bytes
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.transforms.environments import ExternalEnvironment
from apache_beam.utils.thread_pool_executor import shared_unbounded_instance

from sfumato.pipelines.folders import private_folder
from sfumato.schemas.errors import RequestError

JAR_VARIABLE = "SFUMATO_FLINK_JAR"
CONFIGURATION = "FLINK_CONF_DIR"
# By default Flink's own servers listen on all network interfaces.
_LOOPBACK_ONLY = "jobmanager.bind-host: localhost\ntaskmanager.bind-host: localhost\nrest.bind-address: localhost\n"
_SERVER_LOG = logging.getLogger("FlinkJarJobServer")  # where Beam writes what the job server prints


class FlinkJobOptions(PipelineOptions):  # Beam collects the subclasses' options
    """Options of a job on Flink that Beam's Python side does not declare. Undeclared options are refused."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--flink_conf_dir", help="folder with a Flink configuration, for restarts among others")
        parser.add_argument(
            "--flink_open_servers",
            action="store_true",
            help="start Beam's job server though all network interfaces reach it (docs/how_to/runners.md)",
        )


class OneJobFlinkRunner(FlinkRunner):
    """Beam's FlinkRunner whose job server ends with the job.

    Three things differ from Beam's FlinkRunner:

    - Beam stops the job server when Python exits, with warnings on the terminal.
    - Beam lets Flink write raw data into the common temporary folder. Here the folder is private.
    - Beam's and Flink's servers listen on all network interfaces. Here those of this process and Flink's listen on
      loopback.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self._server: Any = None
        self._printed = _LastLines()

    def default_job_server(self, options: PipelineOptions) -> Any:
        """The job server, not started yet, with a temporary folder that only this user can read."""
        folder = self._open.enter_context(private_folder())
        _SERVER_LOG.handlers, _SERVER_LOG.propagate = [self._printed], False
        _SERVER_LOG.setLevel(logging.INFO)
        java = options.view_as(JobServerOptions)
        java.job_server_jvm_properties = [f"-Djava.io.tmpdir={folder}", *java.job_server_jvm_properties]
        if options.view_as(FlinkRunnerOptions).flink_master in MAGIC_HOST_NAMES:
            flink = options.view_as(FlinkJobOptions)
            source = flink.flink_conf_dir or os.environ.get(CONFIGURATION)
            flink.flink_conf_dir = _loopback_configuration(source, Path(folder, "conf"))
            # Flink reads parts of its configuration from this variable only, whatever Beam's option says.
            self._open.callback(_set_environment, CONFIGURATION, os.environ.get(CONFIGURATION))
            os.environ[CONFIGURATION] = flink.flink_conf_dir
        self._server = super().default_job_server(options)
        self._open.callback(self._server.stop)
        return self._server

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
            raise RequestError(
                f"runner: Flink's job server cannot be reached or started ({why}); "
                f"name another jar with --flink_job_server_jar or {JAR_VARIABLE}, `make flink-jar` makes one"
            ) from error

    def run_portable_pipeline(self, pipeline: Any, options: PipelineOptions) -> PipelineResult:
        """Starts the job. Waiting for its result also waits for the end of the job server."""
        try:
            result = super().run_portable_pipeline(pipeline, options)
        except BaseException:
            self._stop()
            raise
        return result if self._server is None else _OneJobResult(result, self._stop)

    def _stop(self) -> None:
        self._open.close()


class _OwnWorkers(BeamFnExternalWorkerPoolServicer):
    """Starts a worker in this process, for a job server of this user only.

    A worker runs any code that its server sends. Flink's job server sends no token that identifies the run. So the
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

    def __init__(self, result: PipelineResult, stop: Callable[[], None]):
        super().__init__(PipelineState.UNKNOWN)
        self._result, self._stop = result, stop
        self._metrics: Any = None

    def wait_until_finish(self, duration: int | None = None) -> Any:
        """Waits for the job and the job server. Returns the final state. Raises RuntimeError if the job failed."""
        try:
            self._state = self._result.wait_until_finish(duration)
            with contextlib.suppress(grpc.RpcError):  # the job is done, so missing metrics are no failure
                self._metrics = self._result.metrics()
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
        """The first line in which Java reports an error; None without one."""
        return next((line for line in self._lines if line.startswith(("Error", "Exception in"))), None)


def _network_interfaces() -> list[str]:
    """The network interfaces with an address, without loopback. Servers on all interfaces can be reached there."""
    names = set()
    with contextlib.suppress(OSError):
        names |= {line.split()[-1] for line in Path("/proc/net/if_inet6").read_text().splitlines()}
    with contextlib.suppress(OSError):
        names |= {line.split()[0] for line in Path("/proc/net/route").read_text().splitlines()[1:]}
    return sorted(names - {"lo"})


def flink_runner(options: PipelineOptions) -> FlinkRunner:
    """Completes and checks the options, and returns the runner. Raises RequestError if Java or the jar is missing.

    With a running job server (--job_endpoint) neither is needed here.
    """
    flink = options.view_as(FlinkRunnerOptions)
    if not options.view_as(PortableOptions).job_endpoint:
        source = "flink_job_server_jar"
        if not flink.flink_job_server_jar and os.environ.get(JAR_VARIABLE):
            source, flink.flink_job_server_jar = JAR_VARIABLE, os.environ[JAR_VARIABLE]
        jar = flink.flink_job_server_jar
        if jar and "://" not in jar and not os.path.isfile(jar):
            raise RequestError(f"{source}: no file {jar!r}; `make flink-jar` makes a job server's jar")
        launcher = options.view_as(JobServerOptions).job_server_java_launcher
        if not flink.flink_submit_uber_jar and shutil.which(launcher) is None:
            raise RequestError(
                f"runner: Flink's job server needs Java 11 or later, and there is no program {launcher!r}; "
                "install Java, or name it with --job_server_java_launcher"
            )
        open_servers = options.view_as(FlinkJobOptions).flink_open_servers or flink.flink_submit_uber_jar
        if not open_servers and (reached := _network_interfaces()):
            raise RequestError(
                "runner: Beam's job server for Flink listens on all network interfaces, and runs or sends what anybody "
                f"asks for; it could be reached by {', '.join(reached)}. Run the job in a network namespace (see "
                "docs/how_to/runners.md), or give --flink_open_servers if a firewall protects this machine"
            )
    return OneJobFlinkRunner()
