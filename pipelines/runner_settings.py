"""The runner of a job and Beam's options, from a configuration file and the command line."""

from __future__ import annotations

import argparse
import difflib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, NoReturn

import apache_beam as beam
import yaml
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, PortableOptions, StandardOptions
from apache_beam.runners.runner import PipelineRunner, create_runner

from sfumato.pipelines.job_servers import RUNNERS, check_endpoint, engine_runner
from sfumato.pipelines.local_runner import LocalRunner, processors
from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.publish_request import RunnerOptions
from sfumato.transforms.files import read_file

LOCAL_RUNNERS = ("DirectRunner", "FnApiRunner")
_IN_THIS_PROCESS = "embed"  # a job_endpoint of Beam's
_SERVING_MODES = ("multi_threading", "multi_processing")
# From here on two threads are faster than one (benchmarks/speed.py); NumPy, Arrow and AES run beside each other.
LARGE_INPUT_ROWS = 10_000_000


@dataclass(frozen=True)
class RunnerSettings:
    """A runner and Beam's options.

    Attributes:
        runner: Beam's runner.
        options: Beam's options.
        local: whether the run takes place in this process.
        workers_chosen: whether the user set the number of threads of a local run.
        verbose: whether to show operations data.
        log_format: text or json.
    """

    runner: PipelineRunner
    options: PipelineOptions
    local: bool
    workers_chosen: bool
    verbose: bool = False
    log_format: str = "text"

    @property
    def in_cloud(self) -> bool:
        """Whether the workers run in the cloud, without access to this machine's disk."""
        return type(self.runner).__name__ == "DataflowRunner"

    def pipeline(self) -> beam.Pipeline:
        """An empty pipeline. Raises RequestError if Beam reports a missing or wrong option of the runner."""
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
        """Threads of a local run."""
        return self.options.view_as(DirectOptions).direct_num_workers or processors()

    def with_workers(self, workers: int) -> RunnerSettings:
        """Sets the number of threads of a local run. Returns the settings."""
        self.options.view_as(DirectOptions).direct_num_workers = workers
        return self


def settings_of(request: RunnerOptions, beam_arguments: Sequence[str] = ()) -> RunnerSettings:
    """The settings from a request's options and Beam's own. Raises RequestError."""
    settings = runner_settings(request.runner_config, beam_arguments)
    return replace(settings, verbose=request.verbose, log_format=request.log_format)


def runner_settings(config: str | None, beam_arguments: Sequence[str]) -> RunnerSettings:
    """The settings from a configuration file and Beam's options on the command line, which take precedence.

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
        advice = "leave it out, and give --runner_config direct_threads, or --direct_num_workers N for more"
        check_running_mode(options, advice)
    FileSystems.set_options(options)  # for files that are read before there is a pipeline
    workers_chosen = any(flag.startswith("--direct_num_workers") for flag in flags)
    return RunnerSettings(_runner(name, options), options, local, workers_chosen)


def check_running_mode(options: PipelineOptions, advice: str) -> None:
    """Raises RequestError if a local runner of Beam's would open servers. advice: the end of the message."""
    mode = options.view_as(DirectOptions).direct_running_mode
    if mode in _SERVING_MODES:
        raise RequestError(
            f"direct_running_mode: in {mode} Beam's servers listen on all network interfaces and send any file to "
            f"whoever asks; {advice}"
        )


def check_runner(name: str) -> None:
    """Raises RequestError for a runner whose results are wrong."""
    if "dask" in name.lower():
        raise RequestError("runner: Beam's DaskRunner silently leaves out stages of a job; choose another")


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
    """Beam flags from a YAML file, or from the shipped file of that name. Raises RequestError for unknown keys."""
    shipped = resources.files("sfumato.runner_configs") / f"{name}.yaml"
    try:
        content = shipped.read_bytes() if shipped.is_file() else read_file(name)
    except OSError:
        raise RequestError(f"runner_config: no file {name!r}, and no shipped configuration of that name") from None
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
    """`--name=value` for every value of a mapping or of its lists. True gives `--name`; false and null give nothing."""
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
        hint = f"; did you mean {near[0]}?" if near else ""
        raise RequestError(f"{where}: unknown option {name}: neither this job nor Beam has it{hint}")
    if left:
        raise RequestError(f"{where}: {left[0]!r} belongs to no option (a pattern must be quoted: 'logs/*.parquet')")
