"""More caches for tests, which build many small pipelines, than those of `transforms/beam_support/beam_caches.py`.

Beam inspects the signatures and the source of all methods of each DoFn several times, notes the stack at each type
hint, builds an argument parser for each view of the options, and asks pip what is installed for each job to Dataflow.
The results depend on the code alone, and take a large part of a small pipeline's processor time. Beam also compresses
each function as far as bz2 can, and measures each state that it caches, to evict the largest; here functions are
compressed less and each once, and all states have one size. Only the tests use this.
"""

from __future__ import annotations

import argparse
import bz2
import functools
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from apache_beam.internal import cloudpickle_pickler, pickler
from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser
from apache_beam.runners.portability import stager
from apache_beam.runners.worker import statecache
from apache_beam.transforms import core, ptransform, userstate
from apache_beam.typehints import decorators

from sfumato.transforms.beam_support import beam_caches as product

_STATE_BYTES = 1000
_METHODS = ("process", "start_bundle", "finish_bundle")
_signatures: WeakKeyDictionary[types.FunctionType, tuple[list[str], list[Any]]] = WeakKeyDictionary()
_stateless_types: set[type] = set()
_visible_options: dict[Any, argparse.Namespace] = {}
_bz2 = SimpleNamespace(
    compress=functools.lru_cache(1024)(lambda data, compresslevel: bz2.compress(data, 1)),
    decompress=functools.lru_cache(1024)(bz2.decompress),
)


@contextmanager
def beam_caches() -> Iterator[None]:
    """Patches Beam's inspection of functions and DoFns, its views of options, and its sizes of cached states."""
    inspect_arguments, inspect_dofn = core.get_function_args_defaults, userstate.get_dofn_specs
    ask_pip = functools.cache(subprocess.check_output)
    check_style = functools.cache(core._check_fn_use_yield_and_return)
    signature, pickle_and_load = _kept(decorators.get_signature), pickler.roundtrip

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

    def roundtrip(value: Any) -> Any:
        return type(value)() if type(value) in (tuple, dict) and not value else pickle_and_load(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cloudpickle_pickler, "bz2", _bz2)
        patch.setattr(pickler, "roundtrip", roundtrip)
        patch.setattr(core, "_check_fn_use_yield_and_return", lambda fn: check_style(getattr(fn, "__code__", fn)))
        patch.setattr(decorators.IOTypeHints, "_make_origin", lambda *_, **__: [])
        patch.setattr(decorators.IOTypeHints, "from_callable", _kept(decorators.IOTypeHints.from_callable))
        patch.setattr(_BeamArgumentParser, "_get_formatter", lambda self: argparse.HelpFormatter(self.prog, width=80))
        patch.setattr(PipelineOptions, "_visible_option_list", lambda self: list(vars(self._visible_options)))
        patch.setattr(core, "get_function_args_defaults", args_defaults)
        patch.setattr(userstate, "get_dofn_specs", dofn_specs)
        patch.setattr(product, "_make_view", view_as)
        patch.setattr(stager, "subprocess", SimpleNamespace(check_output=lambda command: ask_pip(tuple(command))))
        patch.setattr(statecache, "get_deep_size", lambda *_: _STATE_BYTES)
        for module in (decorators, core, ptransform):
            patch.setattr(module, "get_signature", signature)
        yield


def _kept(inspect_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, asked once for each function, and once for each function that is bound as a method."""
    plain: WeakKeyDictionary[types.FunctionType, Any] = WeakKeyDictionary()
    methods: WeakKeyDictionary[types.FunctionType, Any] = WeakKeyDictionary()

    def kept(function: Any) -> Any:
        key, known = function, plain
        if type(function) is types.MethodType:
            key, known = function.__func__, methods
        if type(key) is not types.FunctionType:
            return inspect_function(function)
        if key not in known:
            known[key] = inspect_function(function)
        return known[key]

    return kept


def _copied(value: Any) -> Any:
    """An option's value, which is plain or a list or dictionary of plain values."""
    return value.copy() if isinstance(value, list | dict) else value
