"""Line 1 of the attack table: a run's servers listened on all interfaces and sent the key and the logs to any client.

Every job that runs a pipeline is run in every local mode. Meanwhile its processes are watched: none listens anywhere,
none shows the secret in its command line or environment, and none makes a file that others may read.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.attacks.city import SECRET, local_jobs, make_city
from tests.engine_runs import ENGINES, missing
from tests.leaks import forms, holds

# What runs the jobs, one after the other. Users' cells are kept on the disk, as where memory is small. Of every graph
# that a runner is given, it is written down whether it holds the secret. Pictures are laid out and not drawn.
DRIVER = """
import json, sys
import sfumato.pipelines.frame.scratch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from sfumato.pipelines.command_line import cli
from sfumato.pipelines.runners.runner_settings import LocalRunner
from tests.beam_caches import beam_caches
from tests.leaks import holds

commands, secret, report = json.loads(sys.argv[1]), bytes.fromhex(open(sys.argv[2]).read()), sys.argv[3]
sfumato.pipelines.frame.scratch.available_memory = lambda: 0
FigureCanvasAgg.draw = FigureCanvasAgg.get_renderer
run, graphs = LocalRunner.run_via_runner_api, []

def watched(self, proto, options):
    graphs.append(holds(proto.SerializeToString(), secret))
    return run(self, proto, options)

LocalRunner.run_via_runner_api = watched
with beam_caches():
    found = {name: [cli.main(command), len(graphs), any(graphs)] for name, command in commands.items()}
open(report, "w").write(json.dumps(found))
"""
# The controls: Beam's own mode with two threads, which is what jobs of ten million rows used; and a
# process that the run started.
BEAMS_OWN = """
import time
from collections.abc import Iterator
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

options = PipelineOptions(["--direct_running_mode=multi_threading", "--direct_num_workers=2"])
with beam.Pipeline(runner=FnApiRunner(), options=options) as root:
    root | beam.Create([1]) | beam.Map(lambda _: time.sleep(1))
"""
A_CHILDS = """
import subprocess, sys
listen = "import socket, time; server = socket.create_server(('0.0.0.0', 0)); time.sleep(0.5)"
subprocess.run([sys.executable, "-c", listen], check=True)
"""
LISTENS = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, also as an IPv6 address


@dataclass
class Seen:
    """What was seen of the processes of a run; own: where the first of them listens."""

    own: set[str] = field(default_factory=set)
    listening: set[str] = field(default_factory=set)
    readable_by_others: set[str] = field(default_factory=set)
    scratch: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)
    looks: int = 0

    def look(self, run: int, temporary: Path) -> None:
        """Looks at a process and all that it started, and at their temporary files."""
        self.looks += 1
        for process in _tree(run):
            with contextlib.suppress(OSError):
                self.listening |= _listening(process)
                for name in ("cmdline", "environ"):
                    text = Path(f"/proc/{process}/{name}").read_bytes()
                    self.shown |= {name for form in forms(SECRET) if form in text}
        for path in _paths_under(temporary):
            with contextlib.suppress(OSError):
                if path.name.startswith("sfumato-scratch-"):
                    self.scratch.add(path.name)
                if stat.S_IMODE(path.stat().st_mode) & 0o077:
                    self.readable_by_others.add(str(path))


def _paths_under(folder: Path) -> Iterator[Path]:
    """Every file and folder beneath; what goes away meanwhile is left out, which os.walk does and rglob does not."""
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *names))


def _tree(run: int) -> list[int]:
    """The numbers of a process and of all that it started."""
    found = [run]
    for process in found:  # which grows
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


def _listening(process: int) -> set[str]:
    """The local addresses, as the kernel writes them, at which a process listens, on TCP or a socket of the machine."""
    inodes = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in inodes:
                found.add(fields[1].split(":")[0])
    return found


def watch(arguments: list[str], temporary: Path) -> tuple[Seen, bytes]:
    """Runs Python with the arguments; what was seen of it, and what it wrote to the terminal."""
    temporary.mkdir()
    with open(temporary.parent / f"{temporary.name}.log", "w+b") as log:
        environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
        run = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=environment)
        seen = Seen()
        try:
            while run.poll() is None:
                seen.look(run.pid, temporary)
                with contextlib.suppress(OSError):
                    seen.own |= _listening(run.pid)
                time.sleep(0.06)
        finally:
            run.kill()
            run.wait()
        log.seek(0)
        written = log.read()
    assert run.returncode == 0, written.decode()
    return seen, written


@pytest.fixture
def city(tmp_path: Path) -> Path:
    make_city(tmp_path / "city", 3000)
    return tmp_path / "city"


@pytest.mark.slow
def test_no_job_opens_a_door(city: Path, tmp_path: Path) -> None:
    """On one thread, and on two."""
    commands = {
        f"{name}, {runner}": [*command, "--runner_config", runner]
        for runner in ("direct", "direct_threads")
        for name, command in local_jobs(city, tmp_path / runner).items()
        if name != "refresh"
    }
    commands["refresh"] = local_jobs(city, tmp_path)["refresh"]
    (tmp_path / "secret").write_text(SECRET.hex())
    report = tmp_path / "report"
    seen, written = watch(
        ["-c", DRIVER, json.dumps(commands), str(tmp_path / "secret"), str(report)], tmp_path / "temporary"
    )
    found = json.loads(report.read_text())
    assert {name: status for name, (status, _, _) in found.items()} == dict.fromkeys(commands, 0), written.decode()
    assert found["refresh"][1] >= len(commands)  # each job handed its runner a graph
    assert not any(leaked for _, _, leaked in found.values())
    assert seen.looks > 50
    assert seen.scratch  # raw cells were on the disk, in a folder that was looked at
    assert seen.listening == set()
    assert seen.readable_by_others == set()
    assert seen.shown == set()
    assert not holds(written, SECRET)
    assert list((tmp_path / "temporary").glob("sfumato-*")) == []


@pytest.mark.slow
def test_a_door_would_be_seen(tmp_path: Path) -> None:
    seen, _ = watch(["-c", BEAMS_OWN], tmp_path / "temporary")
    assert {"0" * 32} == seen.listening  # [::]: all interfaces


def test_a_door_of_a_child_would_be_seen(tmp_path: Path) -> None:
    seen, _ = watch(["-c", A_CHILDS], tmp_path / "temporary")
    assert seen.listening == {"0" * 8}  # 0.0.0.0


@pytest.mark.engines
@pytest.mark.parametrize("engine", list(ENGINES))
def test_on_an_engine_this_process_listens_on_loopback_alone(engine: str, city: Path, tmp_path: Path) -> None:
    """Beam's own workers of this process would listen on all interfaces. The job server does, and so it is refused."""
    if (lack := missing(engine)) is not None:
        pytest.skip(lack)
    arguments = [*local_jobs(city, tmp_path / "out")["heatmap"], "--runner_config", engine, "--open_job_server"]
    seen, _ = watch(["-m", "sfumato.pipelines.command_line.cli", *arguments], tmp_path / "temporary")
    assert seen.own
    assert seen.own <= LOOPBACK
    assert seen.listening - LOOPBACK  # the engine's own: on all interfaces
    assert seen.shown == set()
