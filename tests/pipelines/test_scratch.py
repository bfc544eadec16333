import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sfumato.pipelines import scratch
from sfumato.pipelines.options import runner_settings
from sfumato.transforms.locations.spill import MEMORY, Spill, load


def settings(*flags: str):
    return runner_settings(None, None, flags).sized(1000)


def test_one_process_holds_its_data_in_memory_and_lets_go() -> None:
    with scratch.scratch(settings(), 1000) as place:
        assert place is not None
        assert place.startswith(MEMORY)
        stored = Spill(place).store(b"cells")
        assert bytes(load(stored)[0]) == b"cells"
    with pytest.raises(KeyError):
        load(stored)


@pytest.mark.parametrize(
    ("flags", "rows"), [(["--direct_running_mode=multi_processing"], 1000), ([], 10**12)], ids=["processes", "large"]
)
def test_else_a_private_folder_is_made_and_removed(tmp_path: Path, monkeypatch, flags: list[str], rows: int) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch.scratch(settings(*flags), rows) as place:
        assert place is not None
        assert Path(place).parent == tmp_path
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []
    with contextlib.suppress(ZeroDivisionError), scratch.scratch(settings(*flags), rows):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_terminated_job_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from sfumato.pipelines import scratch\n"
        "from sfumato.pipelines.options import runner_settings\n"
        "with scratch.scratch(runner_settings(None, None, []).sized(1), 10**12) as place:\n"
        "    print(place, flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as job:
        assert job.stdout is not None
        place = Path(job.stdout.readline().strip())
        assert place.is_dir()
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=30) == 143
    for _ in range(50):
        if not place.exists():
            break
        time.sleep(0.1)
    assert not place.exists()
