"""Caches for what Beam computes again at every transform of every pipeline. Tests build some thousand small pipelines.

Beam inspects the signatures of all methods of each DoFn several times, and builds an argument parser for each view
of the options. The results depend on the code alone. Without these caches they take 40 percent of a small pipeline's
processor time. Only the tests use them.
"""

from __future__ import annotations

import argparse
import copy
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate

_METHODS = ("process", "start_bundle", "finish_bundle")
_signatures: WeakKeyDictionary[types.FunctionType, tuple[list[str], list[Any]]] = WeakKeyDictionary()
_stateless_types: set[type] = set()
_visible_options: dict[Any, argparse.Namespace] = {}


@contextmanager
def beam_caches() -> Iterator[None]:
    """Patches Beam's `get_function_args_defaults`, `get_dofn_specs` and `PipelineOptions.view_as`."""
    inspect_signature, inspect_dofn = core.get_function_args_defaults, userstate.get_dofn_specs

    def args_defaults(function: Any) -> tuple[list[str], list[Any]]:
        plain = getattr(function, "__func__", None)
        if type(function) is not types.MethodType or type(plain) is not types.FunctionType:
            return inspect_signature(function)
        if plain not in _signatures:
            _signatures[plain] = inspect_signature(function)
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
        view.__dict__.update(_flags=flags, _visible_options=copy.deepcopy(_visible_options[key]))
        for name, value in vars(view._visible_options).items():
            self._all_options.setdefault(name, value)
        view.__dict__["_all_options"] = self._all_options
        return view

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "get_function_args_defaults", args_defaults)
        patch.setattr(userstate, "get_dofn_specs", dofn_specs)
        patch.setattr(PipelineOptions, "view_as", view_as)
        yield
