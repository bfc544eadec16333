"""The runner of a job and Beam's options, from a configuration file and the command line.

Beam's local runner runs here with several threads in one process, without any server.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import difflib
import itertools
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, NoReturn

import apache_beam as beam
import yaml
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics.monitoring_infos import consolidate
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import BundleManager
from apache_beam.runners.runner import PipelineRunner, create_runner

from sfumato.pipelines.runners.job_servers import RUNNERS, check_endpoint, engine_runner
from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.publish_request import RunnerOptions
from sfumato.transforms.io.files import is_remote, read_file

_SECONDS_TO_UNWIND = 2.0  # after an interrupt, for each worker thread


def processors() -> int:
    """Returns number of processors that this process may use; in containers often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalRunner(FnApiRunner):
    """Beam's FnApiRunner whose workers are threads of this process and exchange data in memory.

    Beam's own modes with several workers (multi_threading, multi_processing) start gRPC servers on all network
    interfaces. One of the servers sends any file to any client (docs/explanation/beam_reports.md). This runner starts
    no server.
    """

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> Any:
        """Runs a pipeline with `direct_num_workers` threads; 0 means one thread for each processor."""
        direct = options.view_as(DirectOptions)
        requested = direct.direct_num_workers
        self._threads = requested or processors()
        direct.direct_num_workers = 1  # with more Beam warns, because its own in-memory mode has one worker
        try:
            return super().run_pipeline(pipeline, options)
        finally:
            direct.direct_num_workers = requested

    def run_stages(self, stage_context: Any, stages: Any) -> Any:
        """Runs the stages. Raises RuntimeError if one of them needs a server."""
        for environment in stage_context.components.environments.values():
            if environment.urn != python_urns.EMBEDDED_PYTHON:
                raise RuntimeError(f"{environment.urn}: only Python in this process runs without a server")
        self._num_workers = self._threads
        return super().run_stages(stage_context, stages)

    def _get_bundle_manager(self, bundle_context_manager: Any) -> Any:
        manager = super()._get_bundle_manager(bundle_context_manager)
        return manager if type(manager) is BundleManager else _ThreadedBundles(manager)


class _ThreadedBundles:
    """Divides a stage's input into parts and processes each in its own thread with its own worker.

    Beam's ParallelBundleManager assigns workers by a counter that all pipelines of a process share. So two bundles can
    reach one worker, and its in-memory channel cannot serve two. On an interrupt it also waits for all threads.
    """

    def __init__(self, beam_manager: BundleManager):
        self._beam_manager = beam_manager

    def process_bundle(self, inputs: Any, expected_outputs: Any, timers: Any, *more: Any, **options: Any) -> Any:
        """Processes the input. Returns one response for all parts, and the splits that were made."""
        context = self._beam_manager.bundle_context_manager
        parts: list[dict[str, Any]] = [{} for _ in range(context.num_workers)]
        for name, buffer in inputs.items():
            for part, share in zip(parts, buffer.partition(len(parts)), strict=True):
                part[name] = share
        parts = [part for part in parts if any(map(any, part.values()))] or parts[:1]
        assert context.process_bundle_descriptor  # a cached property: computed here, once for all copies

        def process(number: int) -> Any:
            own = copy.copy(context)
            own._worker_handlers = [context.worker_handlers[number]]
            manager = BundleManager(own, cache_token_generator=self._beam_manager._cache_token_generator)
            return manager.process_bundle(parts[number], expected_outputs, {} if number else timers, *more, **options)

        responses, splits = zip(*_in_threads(process, len(parts)), strict=True)
        return _merged(responses), list(itertools.chain(*splits))


def _merged(responses: Sequence[Any]) -> Any:
    """Joins the responses of all parts."""
    bundles = [response.process_bundle for response in responses]
    return beam_fn_api_pb2.InstructionResponse(
        process_bundle=beam_fn_api_pb2.ProcessBundleResponse(
            monitoring_infos=consolidate(itertools.chain(*(bundle.monitoring_infos for bundle in bundles))),
            residual_roots=itertools.chain(*(bundle.residual_roots for bundle in bundles)),
        )
    )


def _in_threads(process: Any, count: int) -> Iterable[Any]:
    """Returns the results of process(0), ..., process(count - 1). The first runs in this thread, each other in its own.

    If this thread is interrupted or a part fails, the other threads are ended before the exception is raised.
    """
    others: list[Future[Any]] = [Future() for _ in range(1, count)]

    def run(number: int, future: Future[Any]) -> None:
        try:
            future.set_result(process(number))
        except BaseException as error:  # noqa: BLE001  (`result` raises it in the main thread)
            future.set_exception(error)

    threads = [
        threading.Thread(target=run, args=(number, future), daemon=True) for number, future in enumerate(others, 1)
    ]
    for thread in threads:
        thread.start()
    try:
        first = process(0)
        wait(others)
        return [first, *(future.result() for future in others)]
    except BaseException:
        for thread in threads:
            if thread.is_alive() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        for thread in threads:
            thread.join(_SECONDS_TO_UNWIND)
        raise


LOCAL_RUNNERS = ("DirectRunner", "FnApiRunner")
_IN_THIS_PROCESS = "embed"  # a job_endpoint of Beam's
_SERVING_MODES = ("multi_threading", "multi_processing")
# From here on two threads are faster than one (benchmarks/speed.py); NumPy, Arrow and AES run in parallel.
LARGE_INPUT_ROWS = 10_000_000


@dataclass(frozen=True)
class RunnerSettings:
    """A runner and Beam's options."""

    runner: PipelineRunner  # Beam's runner
    options: PipelineOptions  # Beam's options
    local: bool  # whether the run takes place in this process
    workers_chosen: bool  # whether the user set the number of threads of a local run
    verbose: bool = False  # whether to show operations data
    log_format: str = "text"  # text or json

    @property
    def in_cloud(self) -> bool:
        """Returns whether the workers run in the cloud, without access to this machine's disk."""
        return type(self.runner).__name__ == "DataflowRunner"

    def check_reach(self, options: str, *places: str) -> None:
        """Raises RequestError for a path on this machine's disk if the workers are in the cloud. options: for it."""
        if self.in_cloud and not all(map(is_remote, places)):
            raise RequestError(
                f"{options}: must be in a bucket (gs://...), because Dataflow workers cannot reach this machine"
            )

    def pipeline(self) -> beam.Pipeline:
        """Returns an empty pipeline. Raises RequestError if Beam reports a missing or wrong option of the runner."""
        try:
            pipeline = beam.Pipeline(runner=self.runner, options=self.options)
        except ValueError as error:
            raise RequestError(f"runner: {error}") from None
        # A folder for transforms of other languages, which no job has. A killed run would leave it.
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
        return pipeline

    def sized(self, rows: int) -> RunnerSettings:
        """Sets the number of threads for this number of rows, unless the user chose it. Returns the settings."""
        if self.local and not self.workers_chosen:
            workers = min(processors(), 8) if rows >= LARGE_INPUT_ROWS else 1
            self.with_workers(workers)
        return self

    def workers(self) -> int:
        """Returns threads of a local run."""
        return self.options.view_as(DirectOptions).direct_num_workers or processors()

    def with_workers(self, workers: int) -> RunnerSettings:
        """Sets the number of threads of a local run. Returns the settings."""
        self.options.view_as(DirectOptions).direct_num_workers = workers
        return self


def settings_of(request: RunnerOptions, beam_arguments: Sequence[str] = ()) -> RunnerSettings:
    """Returns the settings from a request's options and Beam's own. Raises RequestError."""
    settings = runner_settings(request.runner_config, beam_arguments)
    return replace(settings, verbose=request.verbose, log_format=request.log_format)


def runner_settings(config: str | None, beam_arguments: Sequence[str]) -> RunnerSettings:
    """Returns the settings from a configuration file and Beam's options on the command line, which take precedence.

    Raises RequestError for an option that Beam does not have.
    """
    flags = [*(load_runner_config(config) if config else []), *beam_arguments]
    if flags:  # a parser of all that Beam knows takes its time
        _refuse_unknown(flags, "command line")
    name = PipelineOptions(flags).view_as(StandardOptions).runner or "DirectRunner"
    # Plain DirectRunner would first download Prism. Without Prism it falls back to the FnApi runner, as used here.
    local = name in LOCAL_RUNNERS
    flags = [flag for flag in flags if not (local and flag.startswith("--runner="))]
    options = PipelineOptions(flags)
    if local:
        advice = "omit it, and use --runner_config direct_threads, or --direct_num_workers N for more"
        check_running_mode(options, advice)
    FileSystems.set_options(options)  # for files that are read before there is a pipeline
    workers_chosen = any(flag.startswith("--direct_num_workers") for flag in flags)
    return RunnerSettings(_runner(name, options), options, local, workers_chosen)


def check_running_mode(options: PipelineOptions, advice: str) -> None:
    """Raises RequestError if a local runner of Beam's would open servers. advice: the end of the message."""
    mode = options.view_as(DirectOptions).direct_running_mode
    if mode in _SERVING_MODES:
        raise RequestError(
            f"direct_running_mode: in {mode} Beam's servers listen on all network interfaces and send any file to any "
            f"client; {advice}"
        )


def check_runner(name: str) -> None:
    """Raises RequestError for a runner whose results are wrong."""
    if "dask" in name.lower():
        raise RequestError("runner: DaskRunner silently skips stages of a job; use another runner")


def _runner(name: str, options: PipelineOptions) -> PipelineRunner:
    if name in LOCAL_RUNNERS:
        return LocalRunner()
    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint and endpoint != _IN_THIS_PROCESS:
        check_endpoint(endpoint)
    if (engine := RUNNERS.get(name.lower())) is not None:
        return engine_runner(engine, options)
    check_runner(name)
    try:
        return create_runner(name)
    except (ImportError, ValueError) as error:  # the runner is not installed, or does not exist
        raise RequestError(f"runner: {error}") from None


def load_runner_config(name: str) -> list[str]:
    """Returns Beam flags from a YAML file, or the shipped file of that name. Raises RequestError for unknown keys."""
    shipped = resources.files("sfumato.runner_configs") / f"{name}.yaml"
    try:
        content = shipped.read_bytes() if shipped.is_file() else read_file(name)
    except OSError:
        raise RequestError(
            f"runner_config: not found: {name!r}, neither as a file nor as a shipped configuration"
        ) from None
    settings = parse_yaml("runner_config", name, content) or {}
    if not isinstance(settings, dict):
        raise RequestError(f"runner_config: {name} must map Beam options to values")
    flags = flags_of(settings)
    _refuse_unknown(flags, f"runner_config {name}")
    return flags


def parse_yaml(option: str, name: str, content: bytes) -> Any:
    """Parses a YAML file. option, name: for messages. Raises RequestError."""
    try:
        return yaml.safe_load(content)
    except yaml.YAMLError as error:  # also for bytes that are no text
        raise RequestError(f"{option}: {name} is not valid YAML ({' '.join(str(error).split())})") from None


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    """Returns `--name=value` for each value of a mapping or its lists; `--name` for true, nothing for false."""
    flags = []
    for name, setting in settings.items():
        for value in setting if isinstance(setting, list) else [setting]:
            if value is True:
                flags.append(f"--{name}")
            elif value is not None and value is not False:
                flags.append(f"--{name}={value}")
    return flags


class _BeamParser(argparse.ArgumentParser):
    """A parser of all of Beam's options. Its errors name the source of the options."""

    def __init__(self, where: str):
        super().__init__(allow_abbrev=False, conflict_handler="resolve", add_help=False)
        self._where = where
        for options in PipelineOptions.__subclasses__():
            options._add_argparse_args(self)

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{self._where}: {message}")


def _refuse_unknown(flags: Sequence[str], where: str) -> None:
    parser = _BeamParser(where)
    _, left = parser.parse_known_args(list(flags))
    if left and left[0].startswith("-"):
        name = left[0].split("=")[0]
        near = difflib.get_close_matches(name, parser._option_string_actions, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else "--help-all lists the job's options"
        raise RequestError(f"{where}: unknown option {name}; {hint}")
    if left:
        raise RequestError(
            f"{where}: unexpected argument {left[0]!r}; --input takes files, patterns in quotes: 'logs/*.parquet'"
        )


def flex_launch(settings: RunnerSettings) -> bool:
    """Returns whether Google's launcher of Flex templates runs this process. It takes the graph and starts the job
    itself.
    """
    location = settings.options.view_as(GoogleCloudOptions).template_location or ""
    launcher = "FLEX_TEMPLATE_PYTHON_PY_FILE" in os.environ
    return launcher and "/template_launches/" in location and location.endswith("/job_object")


def launch_nothing(settings: RunnerSettings) -> None:
    """Gives the launcher of a Flex template, if one waits, an empty graph: a program without one counts as failed."""
    if flex_launch(settings):
        with settings.pipeline() as root:
            _ = root | "Nothing" >> beam.Create([None])
