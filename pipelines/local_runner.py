"""Beam's local runner in one process, without any server: its cores are used by threads."""

from __future__ import annotations

import copy
import ctypes
import itertools
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from apache_beam.metrics.monitoring_infos import consolidate
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import BundleManager

_SECONDS_TO_UNWIND = 2.0  # after an interrupt, for each worker thread


def processors() -> int:
    """Processors that this process may use; containers often have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalRunner(FnApiRunner):
    """Beam's FnApiRunner whose workers are threads of this process, which exchange data in memory.

    Beam's own modes with several workers (multi_threading, multi_processing) start gRPC servers on all network
    interfaces, and one of them sends any file to any client (docs/explanation/beam_reports.md). Here nothing listens.
    """

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> Any:
        """Runs a pipeline with `direct_num_workers` threads; 0 stands for one thread a processor."""
        direct = options.view_as(DirectOptions)
        given = direct.direct_num_workers
        self._threads = given or processors()
        direct.direct_num_workers = 1  # Beam would warn: its own in-memory mode has one worker
        try:
            return super().run_pipeline(pipeline, options)
        finally:
            direct.direct_num_workers = given

    def run_stages(self, stage_context: Any, stages: Any) -> Any:
        """Runs the stages. Raises RuntimeError where one of them would need a server."""
        for environment in stage_context.components.environments.values():
            if environment.urn != python_urns.EMBEDDED_PYTHON:
                raise RuntimeError(f"{environment.urn}: only Python in this process runs without a server")
        self._num_workers = self._threads
        return super().run_stages(stage_context, stages)

    def _get_bundle_manager(self, bundle_context_manager: Any) -> Any:
        one = super()._get_bundle_manager(bundle_context_manager)
        return one if type(one) is BundleManager else _ThreadedBundles(one)


class _ThreadedBundles:
    """Processes a stage's input in parts, each in a thread with a worker of its own.

    Beam's ParallelBundleManager gives the workers out by a counter that all pipelines of a process share. Two bundles
    can then meet at one worker, whose channel in memory is not made for that. It also waits for all threads when it is
    interrupted.
    """

    def __init__(self, beams: BundleManager):
        self._beams = beams

    def process_bundle(self, inputs: Any, expected_outputs: Any, timers: Any, *more: Any, **options: Any) -> Any:
        """Processes the input; returns Beam's response for the whole and the splits that were made."""
        context = self._beams.bundle_context_manager
        parts: list[dict[str, Any]] = [{} for _ in range(context.num_workers)]
        for name, buffer in inputs.items():
            for part, share in zip(parts, buffer.partition(len(parts)), strict=True):
                part[name] = share
        parts = [part for part in parts if any(map(any, part.values()))] or parts[:1]
        assert context.process_bundle_descriptor  # made once, here, for all copies

        def process(number: int) -> Any:
            own = copy.copy(context)
            own._worker_handlers = [context.worker_handlers[number]]
            manager = BundleManager(own, cache_token_generator=self._beams._cache_token_generator)
            return manager.process_bundle(parts[number], expected_outputs, {} if number else timers, *more, **options)

        responses, splits = zip(*_in_threads(process, len(parts)), strict=True)
        return _merged(responses), list(itertools.chain(*splits))


def _merged(responses: Sequence[Any]) -> Any:
    """One response for those of all parts."""
    bundles = [response.process_bundle for response in responses]
    return beam_fn_api_pb2.InstructionResponse(
        process_bundle=beam_fn_api_pb2.ProcessBundleResponse(
            monitoring_infos=consolidate(itertools.chain(*(one.monitoring_infos for one in bundles))),
            residual_roots=itertools.chain(*(one.residual_roots for one in bundles)),
        )
    )


def _in_threads(process: Any, count: int) -> Iterable[Any]:
    """The results of process(0), ..., process(count - 1), the first in this thread and each other in its own.

    Where this thread is interrupted, or a part fails, the exception ends the other threads before it goes on.
    """
    others: list[Future[Any]] = [Future() for _ in range(1, count)]

    def settle(number: int, found: Future[Any]) -> None:
        try:
            found.set_result(process(number))
        except BaseException as error:  # noqa: BLE001  (it is raised where the results are awaited)
            found.set_exception(error)

    threads = [
        threading.Thread(target=settle, args=(number, found), daemon=True) for number, found in enumerate(others, 1)
    ]
    for thread in threads:
        thread.start()
    try:
        first = process(0)
        wait(others)
        return [first, *(found.result() for found in others)]
    except BaseException:
        for thread in threads:
            if thread.is_alive() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        for thread in threads:
            thread.join(_SECONDS_TO_UNWIND)
        raise
