"""Random numbers of the tests: fixed, and different ones with SFUMATO_TEST_SEED, which also shuffles the tests."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from sfumato.transforms.privacy.keys import RunKey, Secret

SEED = int(os.environ.get("SFUMATO_TEST_SEED", "0"))


def seeded_rng(seed: int | Sequence[int]) -> np.random.Generator:
    """Returns a generator with this seed; with SFUMATO_TEST_SEED, another one for each value of it."""
    return np.random.default_rng([SEED, *np.atleast_1d(seed).tolist()] if SEED else seed)


def shift_keys() -> None:
    """Derives other run keys for each value of SFUMATO_TEST_SEED, so that all noise in this process is different.

    Called before any test module is imported, because some derive their key then.
    """
    derive = RunKey.derive

    def shifted(secret: Secret, request: Mapping[str, Any]) -> RunKey:
        return derive(secret, {**request, "test_seed": SEED})

    if SEED:
        RunKey.derive = shifted  # type: ignore[method-assign]


def shuffle(items: list[pytest.Item]) -> None:
    """Shuffles files, and tests within a file, with SFUMATO_TEST_SEED; drops the tests of pinned draws then."""
    if not SEED:
        return
    shuffled = random.Random(SEED)
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    shuffled.shuffle(files)
    for tests in files:
        shuffled.shuffle(tests)
    items[:] = [test for tests in files for test in tests if test.get_closest_marker("pinned") is None]
