"""Beam's FlinkRunner: what it needs is checked before anything starts, and nothing of it is left over.

Flink is reached through a Java program, the job server, from a jar: the option --flink_job_server_jar names it, or the
environment variable SFUMATO_FLINK_JAR; else Beam fetches its own from Maven Central. `make flink-jar` makes one.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
)
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.runner import PipelineResult, PipelineState

from sfumato.schemas.errors import RequestError

JAR_VARIABLE = "SFUMATO_FLINK_JAR"
_SERVER_LOG = logging.getLogger("FlinkJarJobServer")  # where Beam writes what the job server prints


class FlinkJobOptions(PipelineOptions):  # Beam collects the subclasses' options
    """An option of Flink's job server that Beam's Python side does not list, so that it would be refused here."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--flink_conf_dir", help="folder with a Flink configuration, for restarts among others")


class OneJobFlinkRunner(FlinkRunner):
    """Beam's FlinkRunner whose job server lives as long as the job.

    Beam's own stops it when Python ends, with warnings on the terminal, and lets it write what Flink spills, which is
    raw data, to where everybody's temporary files are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._folder: str | None = None
        self._server: Any = None
        self._printed = _LastLines()

    def default_job_server(self, options: PipelineOptions) -> Any:
        """The job server, not started yet, with a temporary folder that only this user can read."""
        self._folder = tempfile.mkdtemp(prefix="sfumato-")
        _SERVER_LOG.handlers, _SERVER_LOG.propagate = [self._printed], False
        _SERVER_LOG.setLevel(logging.INFO)
        java = options.view_as(JobServerOptions)
        java.job_server_jvm_properties = [f"-Djava.io.tmpdir={self._folder}", *java.job_server_jvm_properties]
        self._server = super().default_job_server(options)
        return self._server

    def create_job_service(self, options: PipelineOptions) -> Any:
        """Starts the job server, or reaches the one that is named. Raises RequestError where that fails."""
        try:
            return super().create_job_service(options)
        except (RuntimeError, OSError, grpc.RpcError, grpc.FutureTimeoutError) as error:
            why = " ".join((self._printed.error or str(error) or type(error).__name__).split())
            raise RequestError(
                f"runner: Flink's job server cannot be reached or started ({why}); "
                f"name another jar with --flink_job_server_jar or {JAR_VARIABLE}, `make flink-jar` makes one"
            ) from error

    def run_portable_pipeline(self, pipeline: Any, options: PipelineOptions) -> PipelineResult:
        """Starts the job; whoever waits for its end also waits for that of the job server."""
        try:
            result = super().run_portable_pipeline(pipeline, options)
        except BaseException:
            self._stop()
            raise
        return result if self._server is None else _OneJobResult(result, self._stop)

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class _OneJobResult(PipelineResult):
    """A job's result that outlives the job server: it keeps what would have to be asked for."""

    def __init__(self, result: PipelineResult, stop: Callable[[], None]):
        super().__init__(PipelineState.UNKNOWN)
        self._result, self._stop = result, stop
        self._metrics: Any = None

    def wait_until_finish(self, duration: int | None = None) -> Any:
        """The final state, once the job server has ended as well. Raises RuntimeError where the job failed."""
        try:
            self._state = self._result.wait_until_finish(duration)
            with contextlib.suppress(grpc.RpcError):  # the job is done, whatever can be told of it
                self._metrics = self._result.metrics()
        finally:
            self._stop()
        return self._state

    def metrics(self) -> Any:
        """What the job counted."""
        return self._metrics if self._metrics is not None else self._result.metrics()

    def cancel(self) -> Any:
        """Ends the job and the job server."""
        try:
            return self._result.cancel()
        finally:
            self._stop()


class _LastLines(logging.Handler):
    """Keeps the last lines that the job server printed, in case it does not start."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=50)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    @property
    def error(self) -> str | None:
        """The first line that Java itself wrote of an error, None without one."""
        return next((line for line in self._lines if line.startswith(("Error", "Exception in"))), None)


def flink_runner(options: PipelineOptions) -> FlinkRunner:
    """The runner, after its options have been completed and checked. Raises RequestError for what is not there.

    A job server that somebody else runs (--job_endpoint) needs neither Java nor a jar here.
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
                f"runner: Flink's job server needs Java 11 or later, and there is no {launcher!r} to be run; "
                "install it, or name it with --job_server_java_launcher"
            )
    return OneJobFlinkRunner()
