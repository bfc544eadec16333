"""The configuration of a refresh, with the options of its job checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from sfumato.pipelines.command_line.run import JOBS, request_class, request_of
from sfumato.pipelines.runners.runner_settings import parse_yaml
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period
from sfumato.schemas.refresh import RefreshConfig, check_known, resolved_place
from sfumato.schemas.requests.publish_request import ReleaseRequest, RunnerOptions
from sfumato.schemas.requests.request_base import metavar_of
from sfumato.transforms.io.files import read_option

# Options with a key of their own in the configuration, or that a refresh sets itself.
_OWN = frozenset({
    "input", "output", "ledger", "dataset", "period", "budget", "key_file", "key_secret", "release_id", "timeline",
    "min_users", "allow_reuse", "day_column", "warm_start", "night", "rotation", "corrects", "seed",
    "overwrite", "dry_run", *RunnerOptions.model_fields,
})  # fmt: skip
_ANY_DAY = date(2026, 1, 1)


def read_config(path: str) -> RefreshConfig:
    """Reads and checks a refresh's configuration. Raises RequestError."""
    settings = parse_yaml("config", path, read_option("config", path))
    folder = path.rsplit("/", 1)[0] if "://" in path else os.path.dirname(os.path.abspath(path))
    config = RefreshConfig.read(settings, folder)
    check_known([config.job], [name for name, job in JOBS.items() if job.publishes], "config: job")
    fields = request_class(config.job).model_fields
    names = set(fields)
    rows = config.rows_of_day
    for name in config.options:
        if name == "day_column" or (name == "hours" and rows is None):
            raise RequestError(
                f"config: options: {name}: requires `rows_of_day: {{time_column: NAME}}` at the top level of "
                "the file, which names the column of times"
            )
        if name == "average_day":
            raise RequestError("config: options: average_day: cannot be set, because each release has one day")
        if name in _OWN:
            raise RequestError(
                f"config: options: {name} cannot be set here; the refresh or the top level of the file sets it"
            )
    check_known(config.options, names - _OWN, "config: options")
    files = {
        name: resolved_place(f"config: options: {name}", place, folder)
        for name, place in config.options.items()
        if metavar_of(fields[name]) == "FILE" and isinstance(place, str)
    }
    config = config.model_copy(update={"options": {**config.options, **files}})
    for name in config.beam:
        if name in (names | _OWN) - {"region"}:
            raise RequestError(f"config: beam: {name} is an option of sfumato; set it at the top level or in options")
    if config.rotation > 1 and "rotation" not in type(example_request(config)).model_fields:
        raise RequestError(f"config: rotation: applies only with job: heatmap, got {config.job}")
    example_request(config)
    if rows is not None and config.options.get("time_zone", rows.time_zone) != rows.time_zone:
        raise RequestError("config: options: time_zone: move it to rows_of_day")
    return config


def options_of_day(config: RefreshConfig, day: date) -> dict[str, Any]:
    """Returns the job's options for a day: those of the file, and the selection of the day's rows."""
    if (rows := config.rows_of_day) is None:
        return dict(config.options)
    zone = {} if rows.time_zone is None else {"time_zone": rows.time_zone}
    return {**config.options, **zone, "day_column": rows.time_column, "period": Period(day, day)}


def example_request(config: RefreshConfig, **given: Any) -> ReleaseRequest:
    """Returns a request of the configured job, for the input folder instead of a day's. Raises RequestError.

    given: more options.
    """
    options = options_of_day(config, _ANY_DAY)
    request = request_of(config.job, {**options, "input": config.input, "output": config.output, **given})
    assert isinstance(request, ReleaseRequest)
    return request


def newest_day(config: RefreshConfig) -> date:
    """Returns the last day that is over in the time zone of the days, with all folders that are read for it."""
    after = max(0, config.folders[-1])
    return datetime.now(ZoneInfo(config.time_zone)).date() - timedelta(days=1 + after)


def check_arguments(job: str, config_file: str, arguments: Sequence[str]) -> None:
    """Raises RequestError for an option of the job on the command line, whose place is the configuration."""
    names = set(request_class(job).model_fields) - _OWN - {"region"}  # Dataflow has a --region too
    for argument in arguments:
        name = argument.removeprefix("--").partition("=")[0]
        if argument.startswith("--") and name in names:
            raise RequestError(
                f"{name}: cannot be set on the command line of a refresh; set `{name}:` in options of {config_file}"
            )
