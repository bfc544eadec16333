"""The command `sfumato JOB [options]`."""

from __future__ import annotations

import gc
import logging
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import metadata

from sfumato.pipelines.command_line import help_text, log_options, parse_command, wants_help
from sfumato.pipelines.console import console
from sfumato.pipelines.failures import error_of, message_of
from sfumato.pipelines.interrupts import ended_by_signals, exit_status
from sfumato.pipelines.run import JOBS, request_class, run_job
from sfumato.schemas.errors import SfumatoError
from sfumato.transforms.logs import log_event

CRASHED = 70
_COLLECT_EVERY = 50_000  # new objects; Python's own 700 make collections a tenth of the time of all imports


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a job. Exit status: 0 done; else that of the error (schemas/errors.py), or 130, after SIGTERM 143."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments in ([], ["-h"], ["--help"]):
        sys.stdout.write(_usage(JOBS))
        return 0 if arguments else 2
    if arguments == ["--version"]:
        sys.stdout.write(f"sfumato {metadata.version('sfumato')}\n")
        return 0
    job, rest = _split(arguments)
    with console(job, *log_options(rest)) as shown:
        return _run(job, rest, shown.log_format)


def _split(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The job's name, of one word or two, and its arguments."""
    job, rest = arguments[0], list(arguments[1:])
    for at, argument in enumerate(rest):  # an option may name another form of a job: `zones --release FOLDER`
        option, equals, value = argument.partition("=")
        if option.startswith("--") and (form := f"{job} {option}") in JOBS:
            return form, [*rest[:at], *([value] if equals else []), *rest[at + 1 :]]
    two = " ".join(arguments[:2])
    return (two, rest[1:]) if two in JOBS else (job, rest)


def _run(job: str, arguments: Sequence[str], log_format: str) -> int:
    try:
        parts = [] if job in JOBS else [name for name in JOBS if name.startswith(f"{job} ")]
        if parts and (not arguments or wants_help(arguments) is not None):
            sys.stdout.write(_usage(parts))
            return 0 if arguments else 2
        request_type = request_class(job if not parts else " ".join([job, *arguments[:1]]))
        if (everything := wants_help(arguments)) is not None:
            sys.stdout.write(help_text(request_type, everything=everything))
            return 0
        return run_command(job, arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if exit_status() is not None:  # Beam and others convert an interrupt into other errors
            return _interrupted()
        found = error_of(error)
        if found is not None:
            return _fail(found)
        if log_format != "json":
            raise
        trace = "".join(traceback.format_exception(error))
        log_event("crashed", str(error), logging.CRITICAL, error=type(error).__name__, stack_trace=trace)
        return CRASHED


def run_command(job: str, arguments: Sequence[str]) -> int:
    """Runs a job for the options of a command line, and returns its exit status. Raises SfumatoErrors."""
    request, beam_arguments = parse_command(request_class(job), arguments)
    return run_job(request, beam_arguments=beam_arguments)


def command(arguments: Sequence[str] | None = None) -> int:
    """The entry point of the process. Unexpected errors exit with EX_SOFTWARE of sysexits.h."""
    gc.set_threshold(_COLLECT_EVERY, *gc.get_threshold()[1:])
    with ended_by_signals():
        try:
            return main(arguments)
        except Exception:  # noqa: BLE001  (every error is printed)
            traceback.print_exc()
            return CRASHED
        finally:
            gc.freeze()  # the process ends: searching Beam's million objects for cycles would take 0.2 s


def _interrupted() -> int:
    log_event("interrupted", "interrupted; run it again: what was charged is resumed", logging.ERROR)
    return exit_status() or 130


def _fail(error: SfumatoError) -> int:
    log_event("failed", message_of(error), logging.ERROR, error=type(error).__name__, exit_code=error.exit_code)
    return error.exit_code


def _usage(names: Iterable[str]) -> str:
    jobs = {name: JOBS[name].summary for name in names}
    width = max(map(len, jobs))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, text in jobs.items())
    return f"usage: sfumato JOB [options]\n\njobs:\n{lines}\n\nsfumato JOB --help shows a job's options.\n"


if __name__ == "__main__":
    sys.exit(command())
