"""Caches for what Beam works out again at every transform of a pipeline. The import of this module installs them.

Beam parses its options again for every view of them, and asks Python for the signatures of all methods of a DoFn eight
times. The results depend on the code and on the options only. Without the caches they take half of the time in which
the graph of a heatmap is built. A view shares its values with the options that it is made of, so all see what one sets.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate

_make_view = PipelineOptions.view_as
_views: weakref.WeakKeyDictionary[PipelineOptions, dict[type, PipelineOptions]] = weakref.WeakKeyDictionary()
_inspect_specs = userstate.get_dofn_specs
_specs: weakref.WeakKeyDictionary[core.DoFn, tuple[set[Any], set[Any]]] = weakref.WeakKeyDictionary()
_inspect_arguments = core.get_function_args_defaults


def kept_view(options: PipelineOptions, kind: type) -> PipelineOptions:
    """Returns the view of options as a class of Beam's options: one for each class."""
    views = _views.setdefault(options, {})
    if kind not in views or views[kind]._all_options is not options._all_options:
        views[kind] = _make_view(options, kind)
    return views[kind]


def kept_specs(dofn: core.DoFn) -> tuple[set[Any], set[Any]]:
    """Returns the states and the timers that a DoFn declares."""
    try:
        states, timers = _specs[dofn]
    except (KeyError, TypeError):  # TypeError: a DoFn that cannot be hashed
        states, timers = _inspect_specs(dofn)
        with contextlib.suppress(TypeError):
            _specs[dofn] = states, timers
    return set(states), set(timers)


def kept_arguments(function: Callable[..., Any]) -> tuple[list[str], list[Any]]:
    """Returns the names of a function's arguments, and the defaults of those that have one. Only methods are kept."""
    if not isinstance(function, types.MethodType) or not isinstance(function.__func__, types.FunctionType):
        names, defaults = _inspect_arguments(function)
    else:
        names, defaults = _arguments_of_method(function.__func__)
    return list(names), list(defaults)


@functools.lru_cache(maxsize=512)
def _arguments_of_method(method: types.FunctionType) -> tuple[list[str], list[Any]]:
    names, defaults = _inspect_arguments(types.MethodType(method, object()))
    return names, defaults


PipelineOptions.view_as = kept_view
userstate.get_dofn_specs = kept_specs
core.get_function_args_defaults = kept_arguments
