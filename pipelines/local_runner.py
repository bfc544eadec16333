"""Beam's local runner with several threads in one process, without any server."""

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
    """Number of processors that this process may use; in containers often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalRunner(FnApiRunner):
    """Beam's FnApiRunner whose workers are threads of this process and exchange data in memory.

    Beam's own modes with several workers (multi_threading, multi_processing) start gRPC servers on all network
    interfaces. One of the servers sends any file to any client (docs/explanation/beam_reports.md). This runner starts
    no server.
    """

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> Any:
        """Runs a pipeline with `direct_num_workers` threads; 0 means one thread for each processor."""
        direct = options.view_as(DirectOptions)
        requested = direct.direct_num_workers
        self._threads = requested or processors()
        direct.direct_num_workers = 1  # with more Beam warns, because its own in-memory mode has one worker
        try:
            return super().run_pipeline(pipeline, options)
        finally:
            direct.direct_num_workers = requested

    def run_stages(self, stage_context: Any, stages: Any) -> Any:
        """Runs the stages. Raises RuntimeError if one of them needs a server."""
        for environment in stage_context.components.environments.values():
            if environment.urn != python_urns.EMBEDDED_PYTHON:
                raise RuntimeError(f"{environment.urn}: only Python in this process runs without a server")
        self._num_workers = self._threads
        return super().run_stages(stage_context, stages)

    def _get_bundle_manager(self, bundle_context_manager: Any) -> Any:
        manager = super()._get_bundle_manager(bundle_context_manager)
        return manager if type(manager) is BundleManager else _ThreadedBundles(manager)


class _ThreadedBundles:
    """Divides a stage's input into parts and processes each in its own thread with its own worker.

    Beam's ParallelBundleManager assigns workers by a counter that all pipelines of a process share. So two bundles can
    reach one worker, and its in-memory channel cannot serve two. On an interrupt it also waits for all threads.
    """

    def __init__(self, beam_manager: BundleManager):
        self._beam_manager = beam_manager

    def process_bundle(self, inputs: Any, expected_outputs: Any, timers: Any, *more: Any, **options: Any) -> Any:
        """Processes the input. Returns one response for all parts, and the splits that were made."""
        context = self._beam_manager.bundle_context_manager
        parts: list[dict[str, Any]] = [{} for _ in range(context.num_workers)]
        for name, buffer in inputs.items():
            for part, share in zip(parts, buffer.partition(len(parts)), strict=True):
                part[name] = share
        parts = [part for part in parts if any(map(any, part.values()))] or parts[:1]
        assert context.process_bundle_descriptor  # a cached property: computed here, once for all copies

        def process(number: int) -> Any:
            own = copy.copy(context)
            own._worker_handlers = [context.worker_handlers[number]]
            manager = BundleManager(own, cache_token_generator=self._beam_manager._cache_token_generator)
            return manager.process_bundle(parts[number], expected_outputs, {} if number else timers, *more, **options)

        responses, splits = zip(*_in_threads(process, len(parts)), strict=True)
        return _merged(responses), list(itertools.chain(*splits))


def _merged(responses: Sequence[Any]) -> Any:
    """Joins the responses of all parts."""
    bundles = [response.process_bundle for response in responses]
    return beam_fn_api_pb2.InstructionResponse(
        process_bundle=beam_fn_api_pb2.ProcessBundleResponse(
            monitoring_infos=consolidate(itertools.chain(*(bundle.monitoring_infos for bundle in bundles))),
            residual_roots=itertools.chain(*(bundle.residual_roots for bundle in bundles)),
        )
    )


def _in_threads(process: Any, count: int) -> Iterable[Any]:
    """The results of process(0), ..., process(count - 1). The first runs in this thread, each other in its own.

    If this thread is interrupted or a part fails, the other threads are ended before the exception is raised.
    """
    others: list[Future[Any]] = [Future() for _ in range(1, count)]

    def run(number: int, future: Future[Any]) -> None:
        try:
            future.set_result(process(number))
        except BaseException as error:  # noqa: BLE001  (`result` raises it in the main thread)
            future.set_exception(error)

    threads = [
        threading.Thread(target=run, args=(number, future), daemon=True) for number, future in enumerate(others, 1)
    ]
    for thread in threads:
        thread.start()
    try:
        first = process(0)
        wait(others)
        return [first, *(future.result() for future in others)]
    except BaseException:
        for thread in threads:
            if thread.is_alive() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        for thread in threads:
            thread.join(_SECONDS_TO_UNWIND)
        raise
