"""Mends faults of Beam: a flush that loses elements, notebooks in which no pipeline starts, slow graphs. Import it.

**The timed flush.** With worker threads or processes, Beam's own local runner flushes its output buffers once a second
from another thread. Its lock does not stop the worker's writes, so what the worker writes during the flush is lost in
silence. The report is in docs/explanation/beam_reports.md. With a time limit of 0 only the writing thread flushes, by
size. Sfumato's own jobs do not run in these modes, but other pipelines with its transforms may.

**Notebooks.** In IPython Beam loads its interactive runner to put a cell's number before labels. That runner of Beam
2.77 does not load beside pandas 3 (`type object 'DataFrame' has no attribute 'first'`), so every pipeline fails. Where
it does not load, labels stay as they are.

**Slow graphs.** For each transform Beam parses its options anew, and asks Python for the signature of every method of
its DoFn eight times. Half of the time to build a graph went there. Views of options and signatures of methods are now
made once. A view shares its values with the options that it is made of, so what one view sets, all others see as
before.

tests/transforms/test_beam_patch.py fails as soon as Beam is repaired. Then delete what is not needed.
"""

import contextlib
import functools
import importlib
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from apache_beam import pipeline
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.transforms import core, userstate
from apache_beam.utils import interactive_utils
from apache_beam.version import __version__

if hasattr(worker_handlers, "DATA_BUFFER_TIME_LIMIT_MS"):
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
else:
    warnings.warn(
        f"Beam {__version__} has another name for the interval of its timed flush; whether Beam's modes "
        "multi_threading and multi_processing still lose elements is not known",
        RuntimeWarning,
        stacklevel=2,
    )

_label_by_cell = interactive_utils.alter_label_if_ipython


@functools.cache
def has_interactive_runner() -> bool:
    """Whether Beam's interactive runner loads here."""
    try:
        importlib.import_module("apache_beam.runners.interactive.interactive_environment")
    except (AttributeError, ImportError):
        return False
    return True


def _label_where_possible(transform: Any, pvalueish: Any) -> None:
    if interactive_utils.is_in_ipython() and has_interactive_runner():
        _label_by_cell(transform, pvalueish)


pipeline.alter_label_if_ipython = _label_where_possible

_specs_of = userstate.get_dofn_specs
_specs: weakref.WeakKeyDictionary[core.DoFn, tuple[set[Any], set[Any]]] = weakref.WeakKeyDictionary()
_arguments_of = core.get_function_args_defaults
_make_view = PipelineOptions.view_as
_views: weakref.WeakKeyDictionary[PipelineOptions, dict[type, PipelineOptions]] = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=512)
def _arguments_of_method(method: Callable[..., Any]) -> tuple[list[str], list[Any]]:
    names, defaults = _arguments_of(types.MethodType(method, object()))
    return names, defaults


def _kept_arguments(function: Callable[..., Any]) -> tuple[list[str], list[Any]]:
    if not isinstance(function, types.MethodType) or not isinstance(function.__func__, types.FunctionType):
        names, defaults = _arguments_of(function)
        return names, defaults
    names, defaults = _arguments_of_method(function.__func__)
    return list(names), list(defaults)


def _kept_view(options: PipelineOptions, kind: type) -> PipelineOptions:
    views = _views.setdefault(options, {})
    if kind not in views or views[kind]._all_options is not options._all_options:
        views[kind] = _make_view(options, kind)
    return views[kind]


def _kept_specs(dofn: core.DoFn) -> tuple[set[Any], set[Any]]:
    try:
        states, timers = _specs[dofn]
    except (KeyError, TypeError):  # TypeError: a DoFn that cannot be hashed
        states, timers = _specs_of(dofn)
        with contextlib.suppress(TypeError):
            _specs[dofn] = states, timers
    return set(states), set(timers)


userstate.get_dofn_specs = _kept_specs
core.get_function_args_defaults = _kept_arguments
PipelineOptions.view_as = _kept_view
