"""Releases of moments whose protocol ran in memory, for tests of their files and of their pages."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.moments import FixedPoint, Statistic
from sfumato.schemas.region import Grid
from sfumato.transforms.moments.client_values import encode
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.release import moments_files
from sfumato.transforms.moments.local.tally import count_reports
from sfumato.transforms.moments.release import MomentsMetadata
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.conftest import REGION
from tests.seeds import seeded_rng
from tests.unit.moments.blocks import block_of

FACTS = ReleaseMetadata("moments", "monday", "2026-11-21T00:00:00+00:00", "key file", True, {"column": "age"})
FORM = FixedPoint(bits=8)
SPREAD = (Statistic("mean"), Statistic("variance"))
BY_PLACE = Grouping(ColumnGroups("place", ("north", "tiny", "south", "empty")))


def plan(form: FixedPoint = FORM, **options: Any) -> MomentsPlan:
    return MomentsPlan(form=form, **{"statistics": SPREAD, "epsilon": 4.0, **options})


def ran(
    values: NDArray[np.float64], planned: MomentsPlan, grouping: Grouping | None = None, groups: Any = None
) -> MomentsState:
    """The protocol over one block of clients. groups: int[n], of each client."""
    key = RunKey.derive(FixedSecret(b"assembled moments" * 2), {"job": "moments"})
    codes, _ = encode(values, planned.form)
    block = block_of(codes, None if groups is None else groups.astype(np.uint16), key)
    state = MomentsState(planned)
    for _ in planned.stages:
        queries = state.next_queries()
        number = 1 if grouping is None else len(grouping.groups) + 1
        counted = [count_reports(block, query, number, planned.response, key) for query in queries]
        state = state.advance(queries, planned.protect(queries, counted, key))
    return state


def assembled(
    state: MomentsState, planned: MomentsPlan, grouping: Grouping | None = None, *, release: ReleaseMetadata = FACTS
) -> dict[str, bytes]:
    return moments_files(state, MomentsMetadata(release, grouping, "age", True))


def ages(n: int = 5000, seed: int = 0) -> NDArray[np.float64]:
    """About 50, so that one client in eight is 64 or older: a bit that few have set is taken for unset in some runs,
    and the estimate is off by more than its deviation says."""
    return np.clip(seeded_rng(seed).normal(50, 12, n), 0, 120)


def by_size(n: int = 5000) -> NDArray[np.int64]:
    """Groups of BY_PLACE, and of nobody's: 60%, 0.4%, 30%, none, 9.6%."""
    return seeded_rng(1).permutation(np.repeat(np.arange(5), np.array([600, 4, 300, 0, 96]) * n // 1000))


@functools.cache
def of_everybody() -> tuple[MomentsState, dict[str, bytes]]:
    """Mean and variance of `ages`. Whether the picture is drawn depends on the test that asks first."""
    state = ran(ages(), plan())
    return state, assembled(state, plan())


@functools.cache
def on_a_map() -> tuple[Grouping, NDArray[np.int64], dict[str, bytes]]:
    """Clients in three of a grid's cells and some outside of the region; one cell's are 30 years older."""
    grouping = Grouping(CellGroups(Grid(REGION, 2)))
    groups = np.repeat([0, 7, 15, 16], [3000, 1800, 600, 600])
    state = ran(ages(6000) + 30.0 * (groups == 7), plan(), grouping, groups)
    return grouping, groups, assembled(state, plan(), grouping)
