"""More caches than `transforms/beam_caches.py` has: tests build some thousand small pipelines, each with its options.

Beam inspects the signatures of all methods of each DoFn several times, and builds an argument parser for each view
of the options. The results depend on the code alone. Without these caches they take 40 percent of a small pipeline's
processor time. Beam also measures each state that it caches, to evict the largest; here all states have one size.
Only the tests use this.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker import statecache
from apache_beam.transforms import core, ptransform, userstate
from apache_beam.typehints import decorators

_STATE_BYTES = 1000
_METHODS = ("process", "start_bundle", "finish_bundle")
_signatures: WeakKeyDictionary[types.FunctionType, tuple[list[str], list[Any]]] = WeakKeyDictionary()
_plain_signatures: WeakKeyDictionary[types.FunctionType, inspect.Signature] = WeakKeyDictionary()
_method_signatures: WeakKeyDictionary[types.FunctionType, inspect.Signature] = WeakKeyDictionary()
_stateless_types: set[type] = set()
_visible_options: dict[Any, argparse.Namespace] = {}


@contextmanager
def beam_caches() -> Iterator[None]:
    """Patches Beam's inspection of functions and DoFns, its views of options, and its sizes of cached states."""
    inspect_arguments, inspect_dofn = core.get_function_args_defaults, userstate.get_dofn_specs
    inspect_signature = decorators.get_signature

    def signature(function: Any) -> inspect.Signature:
        plain, known = function, _plain_signatures
        if type(function) is types.MethodType:
            plain, known = function.__func__, _method_signatures
        if type(plain) is not types.FunctionType:
            return inspect_signature(function)
        if plain not in known:
            known[plain] = inspect_signature(function)
        return known[plain]

    def args_defaults(function: Any) -> tuple[list[str], list[Any]]:
        plain = getattr(function, "__func__", None)
        if type(function) is not types.MethodType or type(plain) is not types.FunctionType:
            return inspect_arguments(function)
        if plain not in _signatures:
            _signatures[plain] = inspect_arguments(function)
        args, defaults = _signatures[plain]
        return list(args), list(defaults)

    def dofn_specs(dofn: Any) -> tuple[set[Any], set[Any]]:
        kind = type(dofn)
        if kind is core.CallableWrapperDoFn:  # its one method of its own is the wrapped function
            _, defaults = core.get_function_arguments(dofn, "process")
            stateless = not any(isinstance(one, core._DoFnParam) for one in defaults)
        else:
            stateless = kind in _stateless_types
        if stateless:
            return set(), set()
        states, timers = inspect_dofn(dofn)
        if not (states or timers or any(hasattr(dofn, f"_inspect_{name}") for name in _METHODS)):
            _stateless_types.add(kind)
        return states, timers

    def view_as(self: Any, cls: Any) -> Any:
        flags = self._flags
        key = (cls, tuple(sys.argv[1:] if flags is None else flags))
        if key not in _visible_options:
            _visible_options[key] = cls(flags)._visible_options
        view = cls.__new__(cls)
        # A copy: Beam shares the lists of repeated options between the views of one pipeline alone.
        values = {name: _copied(value) for name, value in vars(_visible_options[key]).items()}
        view.__dict__.update(_flags=flags, _visible_options=argparse.Namespace(**values))
        for name, value in vars(view._visible_options).items():
            self._all_options.setdefault(name, value)
        view.__dict__["_all_options"] = self._all_options
        return view

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "get_function_args_defaults", args_defaults)
        patch.setattr(userstate, "get_dofn_specs", dofn_specs)
        patch.setattr(PipelineOptions, "view_as", view_as)
        patch.setattr(statecache, "get_deep_size", lambda *_: _STATE_BYTES)
        for module in (decorators, core, ptransform):
            patch.setattr(module, "get_signature", signature)
        yield


def _copied(value: Any) -> Any:
    """An option's value, which is plain or a list or dictionary of plain values."""
    return value.copy() if isinstance(value, list | dict) else value
