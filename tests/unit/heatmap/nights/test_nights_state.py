"""What a night leaves to the next: the table, damaged tables, gaps, and learned scales."""

from __future__ import annotations

import json
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period
from sfumato.transforms.heatmap.nights import nights_state
from sfumato.transforms.heatmap.nights.nights_state import NightsState, VarianceScales, joined, pruned
from sfumato.transforms.heatmap.nights.nights_update import update
from sfumato.transforms.heatmap.posterior.full_tree import FullTree
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.heatmap.nights.nights import TREE, counts_of, measure_night, night_of, run_nights

CROWD = range(100, 104)


STATE, _ = run_nights(range(6), crowd=(), extra=0)


STATE, _ = run_nights([6], STATE, CROWD, 1500)


def _through_file(state: NightsState) -> NightsState:
    sink = pa.BufferOutputStream()
    pq.write_table(state.to_table(), sink)
    return NightsState.from_table(pq.read_table(pa.BufferReader(sink.getvalue())), state.full.depth)


def test_a_state_that_was_stored_goes_on_as_the_one_that_was_not() -> None:
    stored = _through_file(STATE)
    assert stored.events
    assert (stored.night, stored.rests_on, stored.events, stored.scales, stored.full.depth) == (
        STATE.night,
        STATE.rests_on,
        STATE.events,
        STATE.scales,
        8,
    )
    measured = [measure_night(7, counts_of(7))]
    states = [update(one, night_of(7), measured, 200_000.0, 50.0) for one in (STATE, stored)]
    assert states[0][0].to_table().equals(states[1][0].to_table(), check_metadata=True)
    np.testing.assert_array_equal(states[0][1].estimate.counts, states[1][1].estimate.counts)


def _with_metadata(**values: object) -> pa.Table:
    table = STATE.to_table()
    about = json.loads(table.schema.metadata[nights_state._METADATA])
    return table.replace_schema_metadata({nights_state._METADATA: json.dumps({**about, **values}).encode()})


def _with_column(name: str, change: object) -> pa.Table:
    table = STATE.to_table()
    place = table.column_names.index(name)
    return table.set_column(place, name, change).replace_schema_metadata(table.schema.metadata)


def _with_value(name: str, value: float) -> pa.Table:
    rows = np.concatenate(getattr(STATE.known, name)).astype(np.float32)
    rows[5, 2] = value
    return _with_column(name, pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 7))


DAMAGED = {
    "no metadata": STATE.to_table().replace_schema_metadata(None),
    "metadata of another kind": STATE.to_table().replace_schema_metadata({nights_state._METADATA: b"[1]"}),
    "no JSON": STATE.to_table().replace_schema_metadata({nights_state._METADATA: b"{"}),
    "no format": _with_metadata(format="two"),
    "no night": _with_metadata(night="today"),
    "rests on nothing": _with_metadata(rests_on=[]),
    "rests on later nights": _with_metadata(rests_on=["2026-03-02:2026-04-01"]),
    "periods out of order": _with_metadata(rests_on=["2026-03-05", "2026-03-02", "2026-03-08"]),
    "an event of the root": _with_metadata(events=[[1, "2026-03-08", 0.1, 0.1]]),
    "an event below the grid": _with_metadata(events=[[1 << 18, "2026-03-08", 0.1, 0.1]]),
    "an event of tomorrow": _with_metadata(events=[[4, "2026-03-09", 0.1, 0.1]]),
    "an event of no size": _with_metadata(events=[[4, "2026-03-08", float("nan"), 0.1]]),
    "half an event": _with_metadata(events=[[4, "2026-03-08"]]),
    "events of another kind": _with_metadata(events=3),
    "too many events": _with_metadata(events=[[4, "2026-03-08", 0.1, 0.1]] * 1000),
    "scales of zero": _with_metadata(scales={"drift": 0}),
    "scales without a name": _with_metadata(scales={"speed": 1}),
    "scales of another kind": _with_metadata(scales=[1]),
    "no rows": STATE.to_table().slice(0, 0),
    "rows missing": STATE.to_table().slice(0, 10),
    "no root": STATE.to_table().slice(1),
    "a column missing": STATE.to_table().drop_columns(["mean"]),
    "nodes of another type": _with_column("node", STATE.to_table()["node"].cast(pa.int64())),
    "a missing value": _with_column("night", pa.array([None] * len(STATE.to_table()), pa.float32())),
    "negative variances": _with_column("night", pa.array([-1.0] * len(STATE.to_table()), pa.float32())),
    "no number": _with_value("mean", float("nan")),
    "negative precision": _with_value("precision", -1.0),
    "infinite precision": _with_value("precision", float("inf")),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_table_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=r"nights.parquet is damaged"):
        NightsState.from_table(DAMAGED[name], 8)


def test_a_table_of_a_deeper_grid_is_refused() -> None:
    with pytest.raises(RequestError, match="deeper than 4"):
        NightsState.from_table(STATE.to_table(), 4)


@pytest.mark.parametrize("number", [3, 6])
def test_nights_go_on_in_order(number: int) -> None:
    with rejects("night"):
        STATE.predict(night_of(number), 1000.0)
    with rejects("night"):
        update(STATE, night_of(number), [measure_night(number, counts_of(number))], 1000.0, 1.0)


def test_precision_falls_over_a_gap_by_the_drift_of_its_days() -> None:
    near, far = (STATE.drifted(night_of(number)) for number in (7, 16))
    for level in range(1, len(STATE.full.codes)):
        known = STATE.known.precision[level] > 0
        drift = np.repeat(STATE.scales.drift * nights_state._DRIFT * STATE.known.roughness[level], 4)[:, None]
        drift = np.broadcast_to(drift, known.shape)[known]
        before = 1 / STATE.known.precision[level][known]
        np.testing.assert_allclose(1 / near.precision[level][known], before + drift, rtol=1e-9)
        np.testing.assert_allclose(1 / far.precision[level][known], before + 10 * drift, rtol=1e-9)


def test_periods_are_joined_without_gaps() -> None:
    days = [date(2026, 3, day) for day in (2, 3, 5, 6, 7)]
    periods: tuple[Period, ...] = ()
    for day in days:
        periods = joined(periods, day)
    assert [str(one) for one in periods] == ["2026-03-02:2026-03-03", "2026-03-05:2026-03-07"]


def test_a_prediction_adds_up_and_is_about_what_comes() -> None:
    expected = STATE.predict(night_of(7), 150_000.0)
    assert expected.counts.sum() == pytest.approx(150_000)
    assert expected.tree == TREE
    assert expected.memory > 1
    assert (expected.stddev > 0).all()


def test_the_least_known_families_are_dropped() -> None:
    full, known = pruned(STATE.full, STATE.known, 400)
    nodes = sum(len(codes) for codes in full.codes)
    assert 300 <= nodes <= 405
    assert FullTree.from_trees(full.tree).codes[-1].tolist() == full.codes[-1].tolist()  # a full tree
    for level, codes in enumerate(full.codes):
        place = np.searchsorted(STATE.full.codes[level], codes)
        np.testing.assert_array_equal(known.precision[level], STATE.known.precision[level][place])
    assert pruned(STATE.full, STATE.known, 10_000)[0] is STATE.full


@pytest.mark.parametrize("truth", [0.2, 1.0, 6.0])
def test_the_drift_is_learned(truth: float) -> None:
    """60 nights of 2,000 families. The scale's logarithm has a deviation of about 0.03; the test allows 0.25."""
    rng, scales = seeded_rng(1), VarianceScales()
    noise, drift = rng.gamma(2, 1, 2000), rng.gamma(1, 1, 2000)
    for _ in range(60):
        square = (rng.normal(size=(2000, 3)) ** 2).sum(axis=1) * (noise + truth * drift)
        scales = scales.learned(square, noise + scales.drift * drift, scales.drift * drift, np.zeros(2000))
    assert abs(np.log(scales.drift / truth)) < 0.25
    assert scales.night == 1


def test_one_wild_innovation_moves_little() -> None:
    ones = np.ones(100)
    moved = VarianceScales().learned(np.where(np.arange(100) == 3, 1e9, 3.0), ones, ones / 2, ones / 2)
    assert 1 < moved.drift < 1.6


def test_a_night_without_families_changes_nothing() -> None:
    none = np.zeros(0)
    assert VarianceScales().learned(none, none, none, none).drift == 1
