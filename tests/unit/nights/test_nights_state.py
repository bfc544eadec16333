"""What a night leaves to the next: the table, damaged tables, gaps, and learned scales."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period
from sfumato.transforms.nights import nights_state
from sfumato.transforms.nights.nights_state import NightsState, VarianceScales, joined, pruned
from sfumato.transforms.nights.nights_update import update
from sfumato.transforms.statistics.posterior.full_tree import FullTree
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.nights.nights import TREE, counts_of, measure_night, night_of, run_nights

CROWD = range(100, 104)


@functools.cache
def seventh_night() -> NightsState:
    """A week, with a crowd on its last day."""
    before, _ = run_nights(range(6))
    return run_nights([6], before, CROWD, 1500)[0]


def _through_file(state: NightsState) -> NightsState:
    sink = pa.BufferOutputStream()
    pq.write_table(state.to_table(), sink)
    return NightsState.from_table(pq.read_table(pa.BufferReader(sink.getvalue())), state.full.depth)


def test_nights_state_goes_on_the_same_from_its_table() -> None:
    stored = _through_file(seventh_night())
    assert stored.events
    assert (stored.night, stored.rests_on, stored.events, stored.scales, stored.full.depth) == (
        seventh_night().night,
        seventh_night().rests_on,
        seventh_night().events,
        seventh_night().scales,
        8,
    )
    measured = [measure_night(7, counts_of(7))]
    states = [update(one, night_of(7), measured, 200_000.0, 50.0) for one in (seventh_night(), stored)]
    assert states[0][0].to_table().equals(states[1][0].to_table(), check_metadata=True)
    np.testing.assert_array_equal(states[0][1].estimate.counts, states[1][1].estimate.counts)


def _with_metadata(table: pa.Table, **values: object) -> pa.Table:
    about = json.loads(table.schema.metadata[nights_state._METADATA])
    return table.replace_schema_metadata({nights_state._METADATA: json.dumps({**about, **values}).encode()})


def _with_column(table: pa.Table, name: str, change: object) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, name, change).replace_schema_metadata(table.schema.metadata)


def _with_value(table: pa.Table, name: str, value: float) -> pa.Table:
    rows = np.concatenate(getattr(seventh_night().known, name)).astype(np.float32)
    rows[5, 2] = value
    return _with_column(table, name, pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 7))


DAMAGED: dict[str, Callable[[pa.Table], pa.Table]] = {
    "no metadata": lambda table: table.replace_schema_metadata(None),
    "no format": lambda table: _with_metadata(table, format="two"),
    "rests on nothing": lambda table: _with_metadata(table, rests_on=[]),
    "rests on later nights": lambda table: _with_metadata(table, rests_on=["2026-03-02:2026-04-01"]),
    "periods out of order": lambda table: _with_metadata(table, rests_on=["2026-03-05", "2026-03-02", "2026-03-08"]),
    "an event of the root": lambda table: _with_metadata(table, events=[[1, "2026-03-08", 0.1, 0.1]]),
    "an event below the grid": lambda table: _with_metadata(table, events=[[1 << 18, "2026-03-08", 0.1, 0.1]]),
    "an event of tomorrow": lambda table: _with_metadata(table, events=[[4, "2026-03-09", 0.1, 0.1]]),
    "an event of no size": lambda table: _with_metadata(table, events=[[4, "2026-03-08", float("nan"), 0.1]]),
    "too many events": lambda table: _with_metadata(table, events=[[4, "2026-03-08", 0.1, 0.1]] * 1000),
    "scales of zero": lambda table: _with_metadata(table, scales={"drift": 0}),
    "rows missing": lambda table: table.slice(0, 10),
    "a column missing": lambda table: table.drop_columns(["mean"]),
    "a missing value": lambda table: _with_column(table, "night", pa.array([None] * len(table), pa.float32())),
    "negative variances": lambda table: _with_column(table, "night", pa.array([-1.0] * len(table), pa.float32())),
    "no number": lambda table: _with_value(table, "mean", float("nan")),
    "negative precision": lambda table: _with_value(table, "precision", -1.0),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_nights_state_rejects_damaged_tables(name: str) -> None:
    with pytest.raises(RequestError, match=r"nights.parquet is damaged"):
        NightsState.from_table(DAMAGED[name](seventh_night().to_table()), 8)


def test_nights_state_rejects_a_deeper_grid() -> None:
    with pytest.raises(RequestError, match="deeper than 4"):
        NightsState.from_table(seventh_night().to_table(), 4)


@pytest.mark.parametrize("number", [3, 6])
def test_nights_state_rejects_nights_out_of_order(number: int) -> None:
    with rejects("night"):
        seventh_night().predict(night_of(number), 1000.0)
    with rejects("night"):
        update(seventh_night(), night_of(number), [measure_night(number, counts_of(number))], 1000.0, 1.0)


def test_drifted_loses_precision_over_the_days_of_a_gap() -> None:
    state = seventh_night()
    near, far = (state.drifted(night_of(number)) for number in (7, 16))
    for level in range(1, len(state.full.codes)):
        known = state.known.precision[level] > 0
        drift = np.repeat(state.scales.drift * nights_state._DRIFT * state.known.roughness[level], 4)[:, None]
        drift = np.broadcast_to(drift, known.shape)[known]
        before = 1 / state.known.precision[level][known]
        np.testing.assert_allclose(1 / near.precision[level][known], before + drift, rtol=1e-9)
        np.testing.assert_allclose(1 / far.precision[level][known], before + 10 * drift, rtol=1e-9)


def test_joined_periods_have_no_gaps() -> None:
    days = [date(2026, 3, day) for day in (2, 3, 5, 6, 7)]
    periods: tuple[Period, ...] = ()
    for day in days:
        periods = joined(periods, day)
    assert [str(one) for one in periods] == ["2026-03-02:2026-03-03", "2026-03-05:2026-03-07"]


def test_predict_adds_up_to_the_users() -> None:
    expected = seventh_night().predict(night_of(7), 150_000.0)
    assert expected.counts.sum() == pytest.approx(150_000)
    assert expected.tree == TREE
    assert expected.memory > 1
    assert (expected.stddev > 0).all()


def test_pruned_drops_the_least_known_families() -> None:
    full, known = pruned(seventh_night().full, seventh_night().known, 400)
    nodes = sum(len(codes) for codes in full.codes)
    assert 300 <= nodes <= 405
    assert FullTree.from_trees(full.tree).codes[-1].tolist() == full.codes[-1].tolist()  # a full tree
    for level, codes in enumerate(full.codes):
        place = np.searchsorted(seventh_night().full.codes[level], codes)
        np.testing.assert_array_equal(known.precision[level], seventh_night().known.precision[level][place])
    assert pruned(seventh_night().full, seventh_night().known, 10_000)[0] is seventh_night().full


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("truth", [0.2, 1.0, 6.0])
def test_variance_scales_learn_the_drift(truth: float) -> None:
    """60 nights of 2,000 families. The scale's logarithm has a deviation of about 0.03; the test allows 0.25."""
    rng, scales = seeded_rng(1), VarianceScales()
    noise, drift = rng.gamma(2, 1, 2000), rng.gamma(1, 1, 2000)
    for _ in range(60):
        square = (rng.normal(size=(2000, 3)) ** 2).sum(axis=1) * (noise + truth * drift)
        scales = scales.learned(square, noise + scales.drift * drift, scales.drift * drift, np.zeros(2000))
    assert abs(np.log(scales.drift / truth)) < 0.25
    assert scales.night == 1
