"""The command `sfumato JOB [options]`."""

from __future__ import annotations

import importlib
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import metadata

from sfumato.pipelines.console import console, log_options
from sfumato.pipelines.interrupts import ended_by_signals, exit_status
from sfumato.schemas.errors import DataError, RequestError, SfumatoError
from sfumato.transforms.logs import log_event

CRASHED = 70
JOBS = {
    "synth": "make location logs of a synthetic city",
    "plan": "tell what a heatmap will cost and show; no data are read",
    "heatmap": "publish a differentially private heatmap of location logs",
    "compare": "try heatmap methods side by side on data that you may look at: an evaluation",
    "histogram": "publish how many users hold each category or visit each map cell, without noise",
    "hotspots": "publish popular places, words or codes, level by level, without noise",
    "quantiles": "publish the distribution of a number over users: quantiles and range counts",
    "moments": "publish means, variances and moments of a number, of which each user tells one bit",
    "ranges": "publish a model that answers how many people are in any square",
    "refresh": "publish the release of a day, once, as a configuration file says: for every night",
    "key": "make a key: the secret behind the noise of a release",
    "ledger": "show or verify what releases have cost",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a job. Exit status: 0 done; else that of the error (schemas/errors.py), or 130, after SIGTERM 143."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments in ([], ["-h"], ["--help"]):
        sys.stdout.write(_usage())
        return 0 if arguments else 2
    if arguments == ["--version"]:
        sys.stdout.write(f"sfumato {metadata.version('sfumato')}\n")
        return 0
    job, *rest = arguments
    with console(job, *log_options(rest)) as shown:
        return _run(job, rest, shown.log_format)


def _run(job: str, arguments: Sequence[str], log_format: str) -> int:
    try:
        if job not in JOBS:
            raise RequestError(f"no job named {job!r}; there are: {', '.join(JOBS)}")
        run = importlib.import_module(f"sfumato.pipelines.{job}").run
        return int(run(arguments))
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if exit_status() is not None:  # Beam and others make errors of their own of an interrupt
            return _interrupted()
        # A worker's exception arrives wrapped by the runner, as the text of its traceback.
        found = error if isinstance(error, SfumatoError) else worker_error(error)
        if found is None and type(error).__name__ == "DataflowRuntimeException":
            lines = list(filter(str.strip, str(error).splitlines()))  # between them a traceback, if there is one
            found = DataError(" ".join(dict.fromkeys((lines[0], lines[-1]))))
        if found is not None:
            return _fail(found)
        if log_format != "json":
            raise
        trace = "".join(traceback.format_exception(error))
        log_event("crashed", str(error), logging.CRITICAL, error=type(error).__name__, stack_trace=trace)
        return CRASHED


def command(arguments: Sequence[str] | None = None) -> int:
    """Runs a job as a process of its own, whose unexpected errors end with EX_SOFTWARE of sysexits.h: run it again."""
    with ended_by_signals():
        try:
            return main(arguments)
        except Exception:  # noqa: BLE001  (whatever it is, it is told)
            traceback.print_exc()
            return CRASHED


def _interrupted() -> int:
    log_event("interrupted", "interrupted; run it again: what was charged is resumed", logging.ERROR)
    return exit_status() or 130


def worker_error(error: BaseException) -> SfumatoError | None:
    """Returns the error of this package that a worker raised and the runner wrapped; None if there is none."""
    # Beam's protocol between runner and worker carries an error as text alone (InstructionResponse.error, a formatted
    # traceback), for the local runner too. So the type is read from the traceback's line `package.module.Type: text`.
    # Only names qualified with their module count: other lines may quote anything, such as a file's content.
    text = "".join(traceback.format_exception(error))
    kinds = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _kinds(SfumatoError)}
    found = re.findall(rf"^({'|'.join(map(re.escape, kinds))}): (.*)$", text, flags=re.MULTILINE)
    if not found:
        return None
    kind, message = found[-1]
    return kinds[kind](message_of(message))


def message_of(error: object) -> str:
    """An error's message without the step that Beam names after it."""
    return re.sub(r" \[while running .*?\]\s*$", "", str(error))


def _kinds(base: type[SfumatoError]) -> Iterator[type[SfumatoError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def _fail(error: SfumatoError) -> int:
    log_event("failed", message_of(error), logging.ERROR, error=type(error).__name__, exit_code=error.exit_code)
    return error.exit_code


def _usage() -> str:
    width = max(map(len, JOBS))
    jobs = "\n".join(f"  {name:<{width}}  {text}" for name, text in JOBS.items())
    return f"usage: sfumato JOB [options]\n\njobs:\n{jobs}\n\nsfumato JOB --help tells a job's options.\n"


if __name__ == "__main__":
    sys.exit(command())
