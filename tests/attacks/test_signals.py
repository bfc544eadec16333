"""Issue 15, "Also broken": an interrupted run hung, printed tracebacks, ended with 70 and left folders of raw cells.

SIGINT and SIGTERM end every local run within five seconds, with 130 and 143, and leave nothing behind.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.attacks.city import REGION, make_city

JOBS = {
    "heatmap": ["heatmap", *REGION, "--depth", "6", "--epsilon", "4", "--shard_size", "300"],
    "compare": ["compare", *REGION, "--depth", "6", "--epsilon", "1", "--shard_size", "300", "--keys", "400"],
    "ranges build": ["ranges", "build", *REGION, "--epsilon", "1"],
}
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
SECONDS = 5.0
ON_DISK = "import sfumato.pipelines.scratch as s; s.available_memory = lambda: 0; "
RUN = "import sys; from sfumato.pipelines.cli import command; sys.exit(command(sys.argv[1:]))"


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_city(tmp_path_factory.mktemp("city"), 20_000)


def start(code: str, arguments: list[str], temporary: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "OPENBLAS_NUM_THREADS": "1"},
    )


def ended(job: subprocess.Popen[str], number: signal.Signals, temporary: Path) -> tuple[int, str]:
    """Sends the signal; exit status and standard error. Checks the time that it takes and what is left."""
    children = psutil.Process(job.pid).children(recursive=True)
    sent = time.monotonic()
    job.send_signal(number)
    _, told = job.communicate(timeout=60)
    assert time.monotonic() - sent < SECONDS, told
    assert not [one for one in children if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not list(temporary.glob("sfumato-*"))
    return job.returncode, told


@pytest.mark.parametrize(
    ("job", "threads"), [("heatmap", "1"), ("heatmap", "2"), ("compare", "2"), ("ranges build", "1")]
)
@pytest.mark.parametrize("number", list(STATUS), ids=lambda one: one.name)
def test_a_signal_ends_a_run_in_seconds(
    pattern: str, tmp_path: Path, job: str, threads: str, number: signal.Signals
) -> None:
    """Users' cells are kept on the disk here, as where memory is small; the moment is another in every trial."""
    output = tmp_path / "out"
    arguments = [*JOBS[job], "--input", pattern, "--output", str(output), "--direct_num_workers", threads]
    moment = random.Random(f"{job} {threads} {number.name}").uniform(0, 1.5)
    with start(ON_DISK + RUN, arguments, tmp_path) as run:
        assert run.stderr is not None
        first = run.stderr.readline()
        while "files to read" not in first:
            assert first, "the job ended by itself"
            first = run.stderr.readline()
        time.sleep(moment)
        if run.poll() is not None:
            pytest.fail("the job was done before the signal came")
        status, told = ended(run, number, tmp_path)
    assert status == STATUS[number]
    assert "Traceback" not in told
    assert "interrupted; run it again" in told or not output.exists()


# Threads of a run that a signal cannot reach, and code that swallows it, each of which hung before.
STUBBORN = {
    "a long call": "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)",
    "code that swallows it": """
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass""",
    "a thread that cannot be ended": """
        def forever():
            while True:
                try:
                    time.sleep(1)
                except BaseException:
                    pass
        threading.Thread(target=forever).start()
        time.sleep(60)""",
    "a child that takes no notice": """
        subprocess.Popen(['sh', '-c', 'trap "" INT TERM; sleep 99'])
        time.sleep(60)""",
}


@pytest.mark.parametrize("number", list(STATUS), ids=lambda one: one.name)
@pytest.mark.parametrize("how", list(STUBBORN))
def test_what_takes_no_notice_of_a_signal_ends_as_well(tmp_path: Path, how: str, number: signal.Signals) -> None:
    code = (
        "import subprocess, sys, threading, time\n"
        "from sfumato.pipelines.interrupts import ended_by_signals\n"
        "from sfumato.pipelines.folders import private_folder\n"
        "with ended_by_signals(), private_folder() as folder:\n"
        "    open(folder + '/cells', 'w').write('of a user')\n"
        "    print('ready', flush=True)\n" + textwrap.indent(textwrap.dedent(STUBBORN[how]), "    ")
    )
    with start(code, [], tmp_path) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        time.sleep(0.5)
        assert ended(run, number, tmp_path)[0] == STATUS[number]
