"""Sums on Beam are those of a loop in memory, over several files and blocks, and the same if bundles are retried."""

from __future__ import annotations

import pickle
from pathlib import Path

import apache_beam as beam
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sfumato.pipelines.runner_settings import LocalRunner
from sfumato.schemas.moments import Statistic, ValueColumns, ValueRange
from sfumato.transforms.moments import client_values
from sfumato.transforms.moments.central.bernstein_sums import ExactSums
from sfumato.transforms.moments.central.central_moments import CentralMomentsPlan, CentralSums
from sfumato.transforms.moments.client_values import Block, Values
from sfumato.transforms.moments.groups import ColumnGroups, Grouping
from sfumato.transforms.moments.transform import SumMoments
from sfumato.transforms.privacy.admission import Admit
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.conftest import write_files
from tests.jobs.moment_logs import KINDS, table

KEY = RunKey.derive(FixedSecret(b"sums on beam" * 3), {"job": "moments"})
SPREAD = (Statistic("mean"), Statistic("variance"))
BY_KIND = Grouping(ColumnGroups("kind", KINDS[:3]))
GIVEN = ValueRange(0.0, 400.0)


def transform(grouping: Grouping | None, span: ValueRange | None, epsilon: float = 2.0) -> SumMoments:
    columns = ValueColumns("length", group=None if grouping is None else "kind")
    plan = CentralMomentsPlan(statistics=SPREAD, epsilon=epsilon, span=span)
    return SumMoments(Values(columns, None, None if grouping is None else grouping.groups), plan, KEY, grouping)


def run(pattern: str, sums: SumMoments) -> CentralSums:
    """The one element that the transform makes of files. It comes back through a file."""
    out = Path(pattern).parent / "state.pickle"
    paths = sorted(str(path) for path in Path(pattern).parent.glob("*.parquet"))
    with beam.Pipeline(runner=LocalRunner()) as root:
        _ = root | beam.Create(paths) | sums | beam.Map(lambda found: out.write_bytes(pickle.dumps(found)))
    return pickle.loads(out.read_bytes())


def in_memory(pattern: str, sums: SumMoments, grouping: Grouping | None) -> CentralSums:
    """One record a user, so that no draw chooses; the roundings are those of the users' own hashes."""
    logs = pd.concat(map(pd.read_parquet, sorted(Path(pattern).parent.glob("*.parquet"))))
    logs = logs[np.isfinite(logs["length"])]
    hashes = client_values.hash_users(pa.array(logs["user_id"].to_numpy()), sums._key.subkey("users"))
    bits = client_values.keyed_hash(sums._key.subkey("places"), hashes)
    groups = None if grouping is None else logs["kind"].map({k: i for i, k in enumerate(KINDS[:3])}).fillna(3)
    block = Block(logs["length"].to_numpy(), bits, None if groups is None else groups.to_numpy().astype(np.int64))
    state = sums._plan.choose_range(sums._plan.count_magnitudes(block.codes), sums._key)
    return state.release(sums._plan.exact_sums(block, state.spans, 1 if grouping is None else 4), sums._key)


@pytest.mark.parametrize("grouping", [None, BY_KIND], ids=["all", "groups"])
@pytest.mark.parametrize("span", [GIVEN, None], ids=["given", "found"])
def test_the_pipeline_gives_the_sums_of_a_loop_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouping: Grouping | None, span: ValueRange | None
) -> None:
    pattern = write_files(table(1500, 1), tmp_path / "logs", 3)
    monkeypatch.setattr(client_values, "BLOCK_CLIENTS", 7)
    sums = transform(grouping, span)
    found, expected = run(pattern, sums), in_memory(pattern, sums, grouping)
    assert np.array_equal(found.slots, expected.slots)
    assert np.array_equal(found.outside, expected.outside)
    assert (found.spans, found.span_is_sure) == (expected.spans, expected.span_is_sure)
    assert found.spans[0] == (span or found.spans[0])


def test_nobody_is_released_as_noise(tmp_path: Path) -> None:
    """The existence of a release does not depend on who is there."""
    logs = table(300, 1)
    nothing = logs.drop(["length"]).append_column("length", pa.nulls(logs.num_rows, pa.float64()))
    sums = transform(BY_KIND, GIVEN, 20.0)
    sums._admit = Admit(sums._plan.admission(1.0))  # nobody has a usable value, so the default rule would refuse
    found = run(write_files(nothing, tmp_path / "logs", 2), sums)
    empty = CentralSums(sums._plan, (GIVEN,)).release(ExactSums.zeros(4, (2,)), sums._key)
    assert np.array_equal(found.slots, empty.slots)
