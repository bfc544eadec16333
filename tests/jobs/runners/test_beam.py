"""What is changed of Beam itself: a patch and caches."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
import threading

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, TypeOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner, worker_handlers
from apache_beam.runners.worker import data_plane
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from sfumato.transforms.beam_support import beam_caches, beam_patch

# --- the patch of Beam's timed flush ---


def test_beam_still_loses_what_its_timer_flushes() -> None:
    """Fails once Beam is mended: then remove beam_patch.py and its report in docs/explanation/beam_reports.md."""
    sent: list[bytes] = []

    def hand_over(data: bytes) -> None:
        """What the timer's thread does with the buffer, while the worker's thread goes on writing."""
        sent.append(data)
        worker = threading.Thread(target=stream.write, args=(b"second",), daemon=True)
        worker.start()
        worker.join(1)  # a mended stream may make it wait for the flush

    stream = data_plane.TimeBasedBufferingClosableOutputStream(
        close_callback=sent.append, flush_callback=hand_over, time_flush_threshold_ms=3_600_000
    )
    stream.write(b"first")
    stream.flush()
    stream.close()
    assert b"".join(sent) == b"first"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["multi_threading", "multi_processing"])
def test_local_runner_flushes_in_no_second_thread(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    create = data_plane.ClosableOutputStream.create

    def watched(close_callback, flush_callback, data_buffer_time_limit_ms):  # type: ignore[no-untyped-def]
        made.append(data_buffer_time_limit_ms)
        return create(close_callback, flush_callback, data_buffer_time_limit_ms)

    monkeypatch.setattr(data_plane.ClosableOutputStream, "create", staticmethod(watched))
    options = PipelineOptions([f"--direct_running_mode={mode}", "--direct_num_workers=2"])
    with beam.Pipeline(runner=FnApiRunner(), options=options) as root:
        _ = root | beam.Create(range(10)) | beam.Reshuffle() | beam.Map(str)
    assert made
    assert set(made) == {0}


def test_a_beam_that_cannot_be_patched_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(worker_handlers, "DATA_BUFFER_TIME_LIMIT_MS")
        with pytest.warns(RuntimeWarning, match="timed flush"):
            importlib.reload(beam_patch)
    assert worker_handlers.DATA_BUFFER_TIME_LIMIT_MS == 0


IN_IPYTHON = """
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance()
import apache_beam as beam
"""


@pytest.mark.slow
@pytest.mark.parametrize("patched", [True, False])
def test_a_pipeline_in_a_notebook_starts_with_the_patch_alone(patched: bool) -> None:
    """Without the patch it fails beside pandas 3; once it does not, remove that part of beam_patch.py."""
    pytest.importorskip("IPython", reason="IPython is not installed")
    pandas = int(importlib.metadata.version("pandas").partition(".")[0])
    code = (
        IN_IPYTHON
        + ("import sfumato.transforms.beam_support.beam_patch\n" if patched else "")
        + "beam.Pipeline() | beam.Create([1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (patched or pandas < 3), done.stderr


# --- the caches of Beam's own findings: they give what Beam gives, and nobody can spoil them ---


class Remember(beam.DoFn):
    STATE = ReadModifyWriteStateSpec("seen", beam.coders.VarIntCoder())

    def process(self, element: tuple[int, int], seen: object = beam.DoFn.StateParam(STATE)) -> None: ...


class Unhashable(Remember):
    __hash__ = None  # type: ignore[assignment]


def test_views_of_options_share_what_is_set() -> None:
    options = PipelineOptions(["--direct_num_workers=2"])
    view = beam_caches.kept_view(options, DirectOptions)
    assert view.direct_num_workers == 2
    view.direct_num_workers = 5
    again = beam_caches.kept_view(beam_caches.kept_view(options, TypeOptions), DirectOptions)
    assert again.direct_num_workers == 5
    assert beam_caches.kept_view(options, DirectOptions) is view
    others = PipelineOptions(["--direct_num_workers=2"])
    assert beam_caches.kept_view(others, DirectOptions).direct_num_workers == 2


@pytest.mark.parametrize("kind", [Remember, Unhashable])
def test_states_of_a_dofn_are_found_each_time(kind: type[Remember]) -> None:
    dofn = kind()
    for _ in range(2):
        states, timers = beam_caches.kept_specs(dofn)
        assert (states, timers) == ({Remember.STATE}, set())
        states.clear()  # a caller's own set
    assert beam_caches.kept_specs(beam.DoFn()) == (set(), set())


def test_arguments_are_those_that_beam_finds() -> None:
    dofn = Remember()
    for function in (dofn.process, dofn.setup, dofn.start_bundle, dofn.finish_bundle, len, str.upper, sorted):
        names, defaults = beam_caches._inspect_arguments(function)
        for _ in range(2):
            found = beam_caches.kept_arguments(function)
            assert found == (list(names), list(defaults))
            found[0].append("a caller's own list")


BEAM = """
from apache_beam.options.pipeline_options import PipelineOptions, TypeOptions
options = PipelineOptions([])
assert options.view_as(TypeOptions) is not options.view_as(TypeOptions)
"""


@pytest.mark.slow
def test_beam_still_makes_every_view_anew() -> None:
    """Fails once Beam keeps its views: then remove `kept_view`."""
    subprocess.run([sys.executable, "-c", BEAM], check=True)
