"""The command `sfumato JOB [options]`: `command`, then `main`, `run_command` and `run_job` of run.py."""

from __future__ import annotations

import argparse
import difflib
import functools
import gc
import logging
import os
import re
import select
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any, NoReturn, TypeVar

from pydantic.fields import FieldInfo

from sfumato.pipelines.command_line.run import JOBS, inspect_command, request_class, run_job
from sfumato.pipelines.frame.console import console
from sfumato.pipelines.runners.failures import error_of, message_of
from sfumato.pipelines.runners.signals import ended_by_signals, is_interrupted
from sfumato.schemas.errors import NotAdmittedError, RequestError, SfumatoError
from sfumato.schemas.requests.publish_request import LogOptions, RunnerOptions
from sfumato.schemas.requests.request_base import HELP_GROUPS, Request, extra_of, metavar_of, option_type
from sfumato.transforms.observability.logs import log_event

CRASHED = 70
_CLOSED_PIPE = 128 + signal.SIGPIPE
_COLLECT_EVERY = 50_000  # new objects; Python's own 700 make collections a tenth of the time of all imports
R = TypeVar("R", bound=Request)
HELP, HELP_ALL = ("-h", "--help"), "--help-all"
# Beam options with names similar to ours, without a "did you mean".
_BEAMS = frozenset({"runner", "region", "input_file", "output_executable_path", "job_name", "labels"})
_NEAR = 0.8
# What newcomers call the options of columns.
_MEANT = {
    "--user": "--user_id_column", "--user_id": "--user_id_column", "--user_column": "--user_id_column",
    "--lat": "--latitude_column", "--latitude": "--latitude_column", "--lon": "--longitude_column",
    "--lng": "--longitude_column", "--longitude": "--longitude_column", "--time": "--time_column",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a job. Returns its exit status: 0, the status of an error (schemas/errors.py), 130, or 143 after SIGTERM."""
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
    """Returns the job's name, of one or two words, and its arguments."""
    job, rest = arguments[0], list(arguments[1:])
    for at, argument in enumerate(rest):  # an option may select another form of a job: `zones --release FOLDER`
        option, equals, value = argument.partition("=")
        if option.startswith("--") and (form := f"{job} {option}") in JOBS:
            return form, [*rest[:at], *([value] if equals else []), *rest[at + 1 :]]
    two = " ".join(arguments[:2])
    return (two, rest[1:]) if two in JOBS else (job, rest)


def _run(job: str, arguments: Sequence[str], log_format: str) -> int:
    request_type: type[Request] | None = None
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
        if is_interrupted():  # Beam and others convert an interrupt into other errors
            return _interrupted()
        found = error_of(error)
        if found is not None:
            shown = {"error": type(found).__name__, "exit_code": found.exit_code}
            log_event("failed", _with_dashes(message_of(found), request_type), logging.ERROR, **shown)
            return found.exit_code
        if log_format != "json":
            raise
        trace = "".join(traceback.format_exception(error))
        log_event("crashed", str(error), logging.CRITICAL, error=type(error).__name__, stack_trace=trace)
        return CRASHED


def _with_dashes(message: str, request_type: type[Request] | None) -> str:
    """Returns a message that names its options as the command line does, `--region: ...` for `region: ...`.

    In Python and in the file of a refresh the same option has no dashes, so the message itself has none.
    """
    option = SfumatoError(message).option
    names = re.split(", | and | or ", option or "")
    fields = {} if request_type is None else request_type.model_fields
    if any(name not in fields or extra_of(fields[name])["style"] == "positional" for name in names):
        return message
    return re.sub(r"\w+(?=(?:, | and | or |$))", r"--\g<0>", option or "") + message[len(option or "") :]


def run_command(job: str, arguments: Sequence[str]) -> int:
    """Runs a job for the options of a command line, and returns its exit status. Raises SfumatoErrors."""
    request, beam_arguments = parse_command(request_class(job), arguments)
    try:
        return run_job(request, beam_arguments=beam_arguments)
    except NotAdmittedError as refusal:
        if (inspect := inspect_command(request)) is None:
            raise
        # Not in the reason that is published: the command names paths of this machine.
        raise type(refusal)(f"{refusal}; to see why: {inspect}") from refusal


def command(arguments: Sequence[str] | None = None) -> int:
    """The entry point of the process. Unexpected errors exit with EX_SOFTWARE of sysexits.h."""
    gc.set_threshold(_COLLECT_EVERY, *gc.get_threshold()[1:])
    with ended_by_signals():
        try:
            status = main(arguments)
            sys.stdout.flush()
            return status
        except Exception as error:  # noqa: BLE001  (every error is printed)
            if isinstance(error, BrokenPipeError) and _is_output_closed():
                return _CLOSED_PIPE
            traceback.print_exc()
            return CRASHED
        finally:
            gc.freeze()  # the process ends, and collecting Beam's million objects would take 0.2 s


def _is_output_closed() -> bool:
    """Returns whether nobody reads standard output any more, as after `| head`. Then nothing more is written to it."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    is_closed = any(event & select.POLLERR for _, event in output.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed


def _interrupted() -> int:
    log_event("interrupted", "interrupted; run it again to resume a charged release", logging.ERROR)
    return 130  # of an interrupt without a signal, as in a notebook


def _usage(names: Iterable[str]) -> str:
    jobs = {name: JOBS[name].summary for name in names}
    width = max(map(len, jobs))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, text in jobs.items())
    return f"usage: sfumato JOB [options]\n\njobs:\n{lines}\n\nsfumato JOB --help shows a job's options.\n"


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are RequestErrors."""

    def error(self, message: str) -> NoReturn:
        raise RequestError(message.removeprefix("argument --"))


def parse_command(kind: type[R], arguments: Sequence[str]) -> tuple[R, list[str]]:
    """Returns the request of a command line, and the remaining arguments for Apache Beam.

    Raises RequestError if an option is wrong, missing or misspelt, or unknown to a request without a runner.
    """
    values, left = _parser(kind).parse_known_args(join_negative_values(arguments))
    unknown = [argument.split("=")[0] for argument in left if argument.startswith("-")]
    names = [f"--{name}" for name in kind.model_fields if f"--{name}" not in unknown]  # those of positions are known
    for name in unknown:
        meant = _MEANT.get(name)
        near = [meant] if meant in names else difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
        if near and name.removeprefix("--") not in _BEAMS:
            raise RequestError(f"unknown option {name}; did you mean {near[0]}?")
    takes_files = "input" in kind.model_fields
    is_forgotten = takes_files and vars(values).get("input") is None and bool(left) and not unknown  # the word --input
    if left and (is_forgotten or not issubclass(kind, RunnerOptions)):
        what = f"unknown option {unknown[0]}" if unknown else f"unexpected argument {left[0]!r}"
        remedy = "give files with --input, patterns in quotes; " if takes_files and not unknown else ""
        raise RequestError(f"{what}; {remedy}see sfumato {kind.COMMAND} --help")
    return kind.of(vars(values)), left


def log_options(arguments: Sequence[str]) -> tuple[str, bool]:
    """Returns --log_format and --verbose of an unchecked command line."""
    try:
        options = LogOptions.of(vars(_parser(LogOptions).parse_known_args(list(arguments))[0]))
    except RequestError:  # the command's own parser reports it
        return "text", "--verbose" in arguments
    return options.log_format, options.verbose


def help_text(kind: type[Request], *, everything: bool) -> str:
    """Returns the help of a command: an example, then options by group.

    everything: whether to show all options, rather than common and required options.
    """
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    lines = [kind.ABOUT, "", "example:", *textwrap.wrap(
        f"sfumato {kind.COMMAND} {kind.EXAMPLE}", width - 2, initial_indent="  ", subsequent_indent="      ",
        break_on_hyphens=False, break_long_words=False,
    )]  # fmt: skip
    fields = kind.model_fields
    hidden = 0
    for group in HELP_GROUPS:
        mine = {name: field for name, field in fields.items() if extra_of(field)["group"] == group}
        shown = {
            name: field
            for name, field in mine.items()
            if everything or extra_of(field)["common"] or field.is_required()
        }
        hidden += len(mine) - len(shown)
        if shown:
            lines += ["", f"{group}:"]
        for name, field in shown.items():
            lines += _option_lines(name, field, width)
    lines.append("")
    if hidden:
        lines.append(f"{hidden} more options: sfumato {kind.COMMAND} {HELP_ALL}")
    if issubclass(kind, RunnerOptions):
        lines.append("Any other option goes to Apache Beam, such as --direct_num_workers 2.")
    return "\n".join(lines).rstrip() + "\n"


def wants_help(arguments: Sequence[str]) -> bool | None:
    """Returns the help that a command line requests: for common options (False), all options (True), or none (None)."""
    if HELP_ALL in arguments or "--help_all" in arguments:
        return True
    return False if any(option in arguments for option in HELP) else None


def join_negative_values(arguments: Sequence[str]) -> list[str]:
    """Joins `--option -1.5,2` into `--option=-1.5,2`, which argparse would read as two options."""
    joined: list[str] = []
    for argument in arguments:
        previous = joined[-1] if joined else ""
        if re.match(r"-[\d.]", argument) and re.fullmatch(r"--\w+", previous):
            joined[-1] = f"{previous}={argument}"
        else:
            joined.append(argument)
    return joined


@functools.cache
def _parser(kind: type[Request]) -> argparse.ArgumentParser:
    """Returns a parser that returns text; the request parses and checks the values."""
    parser = _Parser(allow_abbrev=False, add_help=False)
    for name, field in kind.model_fields.items():
        style: str = extra_of(field)["style"]
        if style == "positional":
            parser.add_argument(name, nargs="?", default=argparse.SUPPRESS)
        elif option_type(field.annotation) is bool:
            parser.add_argument(f"--{name}", action="store_true", default=argparse.SUPPRESS)
        else:
            more: dict[str, Any] = {"several": {"nargs": "+"}, "repeated": {"action": "append"}}.get(style, {})
            parser.add_argument(f"--{name}", default=argparse.SUPPRESS, **more)
    return parser


def _option_lines(name: str, field: FieldInfo, width: int) -> list[str]:
    extra, kind, metavar = extra_of(field), option_type(field.annotation), metavar_of(field)
    more = {"several": f" [{metavar} ...]"}.get(extra["style"], "")
    value = "" if kind is bool else f" {metavar}{more}"
    head = f"  {metavar}" if extra["style"] == "positional" else f"  --{name}{value}"
    text = field.description or ""
    if field.is_required():
        text += " (required)"
    elif field.default not in (None, False, ()):
        text += f" (default: {default_text(field.default)})"
    indent = 30
    body = textwrap.wrap(text, width - indent, break_on_hyphens=False)
    if len(head) > indent - 2:
        return [head, *(" " * indent + line for line in body)]
    return [f"{head:<{indent}}{body[0]}", *(" " * indent + line for line in body[1:])]


def default_text(value: Any) -> str:
    """Returns a default value as written on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(default_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(command())
