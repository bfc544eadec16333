"""The command `sfumato JOB [options]`."""

from __future__ import annotations

import gc
import logging
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata

from sfumato.pipelines.command_line import help_text, parse_command, wants_help
from sfumato.pipelines.console import console, log_options
from sfumato.pipelines.interrupts import ended_by_signals, exit_status
from sfumato.pipelines.run import JOBS, request_class, run_job
from sfumato.schemas.errors import DataError, SfumatoError
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
        # A worker's exception arrives wrapped by the runner, as the text of its traceback.
        found = error if isinstance(error, SfumatoError) else worker_error(error)
        if found is None and type(error).__name__ == "DataflowRuntimeException":
            lines = list(filter(str.strip, str(error).splitlines()))  # a traceback may be between first and last line
            found = DataError(" ".join(dict.fromkeys((lines[0], lines[-1]))))
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


def worker_error(error: BaseException) -> SfumatoError | None:
    """Returns the error of this package that a worker raised and the runner wrapped; None if there is none."""
    # Between runner and worker Beam carries an error as text only (InstructionResponse.error, a formatted traceback),
    # in the local runner too. So the type is read from the traceback's line `package.module.Type: text`. Only names
    # qualified with their module count: other lines may quote anything, such as a file's content.
    text = "".join(traceback.format_exception(error))
    types = {
        f"{error_type.__module__}.{error_type.__qualname__}": error_type for error_type in _subclasses(SfumatoError)
    }
    lines = re.findall(rf"^({'|'.join(map(re.escape, types))}): (.*)$", text, flags=re.MULTILINE)
    if not lines:
        return None
    name, message = lines[-1]
    return types[name](message_of(message))


def message_of(error: object) -> str:
    """An error's message without the step that Beam names after it."""
    return re.sub(r" \[while running .*?\]\s*$", "", str(error))


def _subclasses(base: type[SfumatoError]) -> Iterator[type[SfumatoError]]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


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
