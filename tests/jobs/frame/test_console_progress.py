"""What a command writes to standard error: for people and for machines, and what it keeps to itself."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.frame.console import Console, console, current_console, identify, show_progress, shown_on
from sfumato.transforms.observability.logs import PROGRESS, log_event

WITH_WARNING = ("--seed", "1")  # a release of a known key says so


def arguments(pattern: str, output: Path, *more: str) -> list[str]:
    small = ["--depth", "5", "--shard_size", "300", "--dropout", "0.4", "--epsilon", "4"]
    return ["heatmap", "--input", pattern, "--output", str(output), "--region", "-1,50,1,51", *small, *more]


def written(text: str) -> list[dict[str, Any]]:
    """The JSON objects of a log, each of which has what every one must have."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert list(line)[:4] == ["time", "severity", "message", "job"]
        assert line["time"].endswith("Z")
        age = datetime.now().astimezone() - datetime.fromisoformat(line["time"])
        assert timedelta(seconds=-1) < age < timedelta(minutes=5)
        assert line["severity"] in {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}
        assert line["event"]
    return lines


def shown(log_format: str = "text", verbose: bool = False) -> tuple[Console, io.StringIO]:
    found = Console("heatmap", log_format, verbose)
    found.stream = io.StringIO()
    return found, found.stream


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("verbose", [False, True])
def test_the_noise_of_runners(log_format: str, verbose: bool) -> None:
    """Servers that start and stop outside of the block that shows progress, and threads that die with them."""

    def read() -> None:
        raise RuntimeError("Multiplexer hanging up")

    found, stream = shown(log_format, verbose)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with shown_on(found):
            logging.getLogger("apache_beam.utils.subprocess_server").warning("Really starting service at %s", "here")
            try:
                raise RuntimeError("lost")
            except RuntimeError:
                data_plane = logging.getLogger("apache_beam.runners.worker.data_plane")
                data_plane.exception("Failed to read inputs in the data plane.")
            thread = threading.Thread(target=read, name="read_grpc_client_inputs")
            thread.start()
            thread.join()
            warnings.warn("old", stacklevel=1)
    text = stream.getvalue()
    if not verbose:
        assert text == ""
        return
    expected = ("Really starting service at here", "RuntimeError: lost", "Multiplexer hanging up", "UserWarning: old")
    assert all(one in text for one in expected)
    if log_format == "json":
        told = written(text)
        assert [line["severity"] for line in told] == ["WARNING", "ERROR", "ERROR", "WARNING"]
        assert "RuntimeError: lost" in told[1]["stack_trace"]


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("verbose", [False, True])
def test_a_worker_that_prints_after_its_job(log_format: str, verbose: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Beam's workers print tracebacks to standard error. One of Prism's did so after its engine had been stopped."""
    found, stream = shown(log_format, verbose)
    with shown_on(found):
        with show_progress(1):
            pass
        worker = threading.Thread(target=lambda: sys.stderr.write("Channel closed prematurely.\n"))
        worker.start()
        worker.join()
        sys.stderr.write("of the command\n")
    written = stream.getvalue() + capsys.readouterr().err
    assert ("Channel closed prematurely." in written) == verbose
    assert "of the command" in written


@pytest.mark.parametrize("more", [[], ["--log_format", "json"], ["--log_format", "json", "--verbose"]])
def test_nothing_is_written_as_the_process_ends(more: list[str]) -> None:
    code = (
        "import atexit, logging, sys, threading\n"
        "from sfumato.pipelines.command_line.cli import log_options\n"
        "from sfumato.pipelines.frame.console import console\n"
        "def stop():\n"
        "    logging.getLogger('apache_beam.utils.subprocess_server').warning('Really destroying service')\n"
        "    for target in (lambda: 1 / 0, lambda: print('lost', file=sys.stderr)):\n"
        "        thread = threading.Thread(target=target)\n"
        "        thread.start(); thread.join()\n"
        "with console('heatmap', *log_options(sys.argv[1:])):\n"
        "    atexit.register(stop)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *more], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["zones", "--help-all"], ["plan", "--users", "1000"]])
def test_a_closed_pipe_ends_a_command_without_a_traceback(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "sfumato.pipelines.command_line.cli", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_command_starts_before_beam_is_imported(tmp_path: Path) -> None:
    """The first line comes at once, also of a run that then finds no file."""
    command = [
        sys.executable,
        "-m",
        "sfumato.pipelines.command_line.cli",
        *arguments("none/*.parquet", tmp_path / "out"),
    ]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    first, last = done.stderr.splitlines()
    assert (done.returncode, first) == (2, "sfumato heatmap: starting")
    assert "none/*.parquet" in last


def test_everything_is_put_back() -> None:
    root = logging.getLogger()
    before = (root.handlers, root.level, PROGRESS.level, threading.excepthook, warnings.showwarning, sys.stderr)
    with contextlib.suppress(ZeroDivisionError), console("heatmap", "json", verbose=True):
        assert current_console() is not None
        raise ZeroDivisionError
    assert current_console() is None
    after = (root.handlers, root.level, PROGRESS.level, threading.excepthook, warnings.showwarning, sys.stderr)
    assert after == before


def test_what_else_goes_to_standard_error_becomes_json() -> None:
    found, stream = shown("json")
    with shown_on(found):
        identify(release_id="night-1")
        sys.stderr.write("half a ")
        sys.stderr.write("line\n\n")
        identify(release_id=None)
        log_event("done", "done")
    stray, done = written(stream.getvalue())
    assert (stray["event"], stray["message"], stray["release_id"]) == ("stderr", "half a line", "night-1")
    assert "release_id" not in done


@pytest.mark.usefixtures("no_coast")
@pytest.mark.parametrize("runner", ["direct", "direct_threads"])
def test_a_run_in_json(logs, tmp_path: Path, capfd: pytest.CaptureFixture[str], runner: str) -> None:
    options = [*WITH_WARNING, "--log_format", "json", "--runner_config", runner]
    assert cli.main(arguments(logs(613), tmp_path / "out", *options)) == 0
    told = written(capfd.readouterr().err)
    events = [line["event"] for line in told]
    assert events[:2] == ["files", "no_coast"]
    assert events.count("read_file") == 3
    assert events.count("read_logs") == 1
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    sub_queries = manifest["privacy"]["sub_queries"]
    for line, query in zip([one for one in told if one["event"] == "sub_query"], sub_queries, strict=True):
        assert (line["sub_query"], line["entries"]) == (query["index"], query["vector_length"])
        assert line["epsilon"] == pytest.approx(query["epsilon"], rel=1e-3)  # the digits that the message shows
        assert line["noise_stddev"] == pytest.approx(query["noise_stddev"], rel=1e-2)
    assert [line["message"] for line in told if line["event"] == "warning"] == manifest["warnings"]
    assert {line["release_id"] for line in told} == {manifest["release_id"]}
    assert {line["job"] for line in told} == {"heatmap"}


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_nothing_raw_is_shown_unless_asked_for(
    logs, tmp_path: Path, capfd: pytest.CaptureFixture[str], log_format: str
) -> None:
    pattern = logs(2749, 3)  # 8,247 rows; no vector of depth 4 has so many entries or bits
    raw = re.compile(r"\b(2,?749|8,?247)\b")
    public = ["--population", "2700", "--depth", "4"]
    command = arguments(pattern, tmp_path / "out", *WITH_WARNING, *public, "--log_format", log_format)
    assert cli.main(command) == 0
    shown = capfd.readouterr().err
    # The noisy count of users may equal the exact one, so it is left out.
    assert not any(raw.search(line) for line in shown.splitlines() if "noisy count" not in line)
    assert not re.search(r"8,?247", shown)
    assert cli.main([*command, "--overwrite", "--verbose"]) == 0
    text = capfd.readouterr().err
    assert len(raw.findall(text)) > 3
    if log_format == "text":
        assert "operations data: rows read: 8,247; dropped: none; clamped: 0" in text
        assert re.search(r"\| bounded_users +\| +2,749 \|", text)
        return
    (counted,) = [line["metrics"] for line in written(text) if line["event"] == "metrics"]
    assert (counted["read_rows"], counted["bounded_users"]) == (8247, 2749)
    assert counted["slice_rows"] == {"count": 1, "sum": 8247, "min": 8247, "max": 8247}  # small files share an element


def test_errors_in_json(logs, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pattern = logs(300)
    wrong = ["--log_format", "json", "--depth", "zero"]
    assert cli.main(arguments(pattern, tmp_path / "out", *wrong)) == 2
    (line,) = written(capfd.readouterr().err)
    assert (line["severity"], line["event"], line["error"], line["exit_code"]) == ("ERROR", "failed", "RequestError", 2)
    elsewhere = ["--log_format", "json", "--population", "5000", "--release_id", "night-1"]
    assert cli.main(arguments(pattern, tmp_path / "out", *elsewhere)) == 1
    *_, cost, line = written(capfd.readouterr().err)
    assert (cost["event"], cost["epsilon"]) == ("refused", 0.04)  # 1% of 4
    assert (line["error"], line["exit_code"], line["release_id"]) == ("NotAdmittedError", 1, "night-1")
    assert "5,000 users" in line["message"]
    assert cli.main(["heatmp", "--log_format", "json"]) == 2
    (line,) = written(capfd.readouterr().err)
    assert line["job"] == "heatmp"


def test_an_error_that_nobody_expected_is_one_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> int:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("sfumato.pipelines.operations.starting.run_plan", run)
    assert cli.main(["plan", "--users", "1000", "--log_format", "json"]) == cli.CRASHED == 70
    (line,) = written(capfd.readouterr().err)
    assert (line["severity"], line["event"], line["message"]) == ("CRITICAL", "crashed", "by nothing")
    assert "ZeroDivisionError" in line["stack_trace"]
    with pytest.raises(ZeroDivisionError):
        cli.main(["plan", "--users", "1000"])
