"""Issue 15, "Also broken": an interrupted run hung, printed tracebacks, ended with 70 and left folders of raw cells.

SIGINT and SIGTERM end every local run within five seconds, with 130 and 143, and leave nothing behind.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.attacks.city import REGION, make_city

JOBS = {
    "heatmap": ["heatmap", *REGION, "--depth", "6", "--epsilon", "4", "--shard_size", "300"],
    "ranges build": ["ranges", "build", *REGION, "--epsilon", "1"],
}
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
SECONDS = 5.0
ON_DISK = "import sfumato.pipelines.frame.scratch as s; s.available_memory = lambda: 0; "
RUN = "import sys; from sfumato.pipelines.command_line.cli import command; sys.exit(command(sys.argv[1:]))"
# Forks a process for each line that it reads, and writes its number, then its exit status. It imports Beam once.
SERVER = """
import json, os, sys, tempfile
import sfumato.pipelines.heatmap, sfumato.pipelines.ranges_build
for line in sys.stdin:
    code, arguments, folder = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, name in (1, "stdout"), (2, "stderr"):
            os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["TMPDIR"], tempfile.tempdir, sys.argv = folder, None, ["-c", *arguments]
        exec(code, {"__name__": "__main__"})
        sys.exit()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_city(tmp_path_factory.mktemp("city"), 20_000)


@dataclass
class Run:
    """A process that runs code. Its output goes to the files `stdout` and `stderr` of a folder."""

    server: subprocess.Popen[str]
    pid: int
    folder: Path
    ended_with: int | None = None

    def written(self, name: str) -> str:
        """What the process has written so far."""
        return (self.folder / name).read_text()

    def wait_for(self, name: str, text: str) -> None:
        """Waits until the process has written a text."""
        while text not in self.written(name):
            assert self.status(0.005) is None, f"the process ended by itself: {self.written('stderr')}"

    def status(self, seconds: float) -> int | None:
        """The exit status, None if the process has not ended after these seconds."""
        assert self.server.stdout is not None
        if self.ended_with is None and select.select([self.server.stdout], [], [], seconds)[0]:
            self.ended_with = int(self.server.stdout.readline())
        return self.ended_with


Start = Callable[[str, list[str], Path], Run]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """start(code, arguments, folder of temporary files and output) -> the process, forked from one that has Beam."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=0
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        runs: list[Run] = []

        def run(code: str, arguments: list[str], folder: Path) -> Run:
            if runs and runs[-1].status(0) is None:  # of a test that failed
                os.kill(runs[-1].pid, signal.SIGKILL)
                assert runs[-1].status(60) is not None
            for name in ("stdout", "stderr"):
                (folder / name).touch()
            print(json.dumps([code, arguments, str(folder)]), file=server.stdin, flush=True)
            runs.append(Run(server, int(server.stdout.readline()), folder))
            return runs[-1]

        yield run
        server.kill()


def ended(run: Run, number: signal.Signals) -> int:
    """Sends the signal; the exit status. Checks the time that it takes and what is left."""
    children = psutil.Process(run.pid).children(recursive=True)
    sent = time.monotonic()
    os.kill(run.pid, number)
    status = run.status(60)
    assert status is not None
    assert time.monotonic() - sent < SECONDS, run.written("stderr")
    while left := [one for one in children if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() - sent < 60, left  # a killed child is gone once the machine has time for it
        time.sleep(0.05)
    assert not list(run.folder.glob("sfumato-*"))
    return status


@pytest.mark.parametrize(("job", "threads"), [("heatmap", "1"), ("heatmap", "2"), ("ranges build", "1")])
@pytest.mark.parametrize("number", list(STATUS), ids=lambda one: one.name)
def test_a_signal_ends_a_run_in_seconds(
    pattern: str, start: Start, tmp_path: Path, job: str, threads: str, number: signal.Signals
) -> None:
    """Users' cells are kept on the disk here, as where memory is small; the moment is another in every trial."""
    output = tmp_path / "out"
    arguments = [*JOBS[job], "--input", pattern, "--output", str(output), "--direct_num_workers", threads]
    moment = random.Random(f"{job} {threads} {number.name}").uniform(0, 0.3)
    run = start(ON_DISK + RUN, arguments, tmp_path)
    run.wait_for("stderr", "files to read")
    assert run.status(moment) is None, "the job was done before the signal came"
    status, told = ended(run, number), run.written("stderr")
    assert status == STATUS[number]
    assert "Traceback" not in told
    assert "interrupted; run it again" in told or not output.exists()


# Threads of a run that a signal cannot reach, and code that swallows it, each of which hung before.
STUBBORN = {
    "a long call": """
        # A lock that is held already: C code that waits on it starts again after a signal.
        import ctypes
        lock, library = ctypes.create_string_buffer(128), ctypes.CDLL(None)
        library.pthread_mutex_lock(lock)
        library.pthread_mutex_lock(lock)""",
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


@pytest.mark.slow
@pytest.mark.parametrize("number", list(STATUS), ids=lambda one: one.name)
@pytest.mark.parametrize("how", list(STUBBORN))
def test_what_takes_no_notice_of_a_signal_ends_as_well(
    start: Start, tmp_path: Path, how: str, number: signal.Signals
) -> None:
    code = (
        "import subprocess, sys, threading, time\n"
        "from sfumato.pipelines.runners.signals import ended_by_signals\n"
        "from sfumato.pipelines.runners.folders import private_folder\n"
        "with ended_by_signals(), private_folder() as folder:\n"
        "    open(folder + '/cells', 'w').write('of a user')\n"
        "    print('ready', flush=True)\n" + textwrap.indent(textwrap.dedent(STUBBORN[how]), "    ")
    )
    run = start(code, [], tmp_path)
    run.wait_for("stdout", "ready\n")
    time.sleep(0.5)
    assert ended(run, number) == STATUS[number]
