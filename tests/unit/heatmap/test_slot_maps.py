"""The published maps of every slot: their sums, their intervals, their files, and what a user adds to them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.errors import RequestError
from sfumato.schemas.slots import Slots
from sfumato.schemas.tree import nodes_from_names
from sfumato.schemas.views import MapBody
from sfumato.transforms.heatmap.release import add_up_to
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.slot_maps import SlotMaps
from sfumato.transforms.heatmap.view import heatmap_view
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.release.city import CityRelease, city_release, city_rows

DEPTH, USERS = 6, 30_000
SLOTS = Slots.parse("t", "0,6,9,12,15,18,21,24")


@pytest.fixture(scope="module")
def release() -> CityRelease:
    return city_release("adaptive", DEPTH, USERS, SLOTS, trust="central")


def maps_of(rows: Rows, trust: str, key: int, **options: Any) -> SlotMaps:
    values = {"depth": DEPTH, "trust": trust, "population": len(rows.users), "shard_size": 10_000, **options}
    parameters = heatmap_parameters("adaptive", values, slots=rows.places.categories)
    state = run_in_memory(rows, len(rows.users), parameters, RunKey.derive(FixedSecret(b"%032d" % key), {}))
    estimate = add_up_to(parameters.method.decode(state, DEPTH), state.users_estimate()[0])
    made = SlotMaps.from_state(state, estimate)
    assert made is not None
    return made


def exact(rows: Rows, maps: SlotMaps) -> np.ndarray:
    """True users of the maps' cells by slot."""
    counts = rows.histogram().reshape(rows.places.categories, -1)
    owner = maps.tree.index.owners(np.arange(4**DEPTH, dtype=np.uint64))
    return np.stack([np.bincount(owner, one, len(maps.tree.entries)) for one in counts])


@pytest.mark.slow
def test_slots_add_up_to_the_map_and_are_not_negative(release: CityRelease) -> None:
    table = pq.read_table(io.BytesIO(release.files["slots.parquet"]))
    cells = pq.read_table(io.BytesIO(release.files["cells.parquet"]))
    users = np.asarray(table["users"])
    assert (users >= 0).all()
    assert (np.asarray(table["expected"]) >= 0).all()
    assert users.sum() == pytest.approx(np.asarray(cells["count"]).sum(), rel=1e-9)
    by_cell: dict[str, float] = {}
    for name, value in zip(table["cell_id"].to_pylist(), users.tolist(), strict=True):
        by_cell[name] = by_cell.get(name, 0.0) + value
    for name, value in by_cell.items():
        inside = [one.startswith(name) for one in cells["cell_id"].to_pylist()]
        assert np.asarray(cells["count"])[inside].sum() == pytest.approx(value, rel=1e-6, abs=1e-6)
    region = release.manifest["slots"]["region"]
    assert sum(one["users"] for one in region) == pytest.approx(release.manifest["results"]["users"])


def test_the_table_and_the_array_say_the_same(release: CityRelease) -> None:
    table = pq.read_table(io.BytesIO(release.files["slots.parquet"]))
    array = np.load(io.BytesIO(release.files["slots.npy"]))
    assert (array.shape, array.dtype) == ((7, 64, 64), np.float32)
    assert np.array_equal(table["slot"].to_numpy(), np.repeat(np.arange(7), len(table) // 7))
    assert table["slot_name"].to_pylist()[:: len(table) // 7] == list(SLOTS.names)
    shape = (7, -1)
    assert array.sum(axis=(1, 2)) == pytest.approx(np.asarray(table["users"]).reshape(shape).sum(axis=1), rel=1e-4)
    south = np.asarray(table["south"]).reshape(shape)[0] < 40.74 - 1e-9  # rows of the array start in the north
    in_south = np.asarray(table["users"]).reshape(shape)[:, south].sum(axis=1)
    assert array[:, 32:].sum(axis=(1, 2)) == pytest.approx(in_south, rel=0.02)
    assert len(nodes_from_names(table["cell_id"].to_pylist()[: len(table) // 7], DEPTH)) == len(south)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trust", "epsilon", "most"), [("central", 0.5, 0.975), ("secagg", 1.0, 0.975), ("central", 4.0, 0.995)]
)
def test_intervals_cover_the_users(trust: str, epsilon: float, most: float) -> None:
    """Of cells with at least 3 users, over ten keys; 95% nominal. 10,000 intervals have a deviation of 0.2%.

    Where the noise is below a user, counts jump by more than a deviation, and intervals cover more.
    """
    covered, region = [], []
    for key in range(10):
        rows = city_rows(DEPTH, USERS, slots=7, seed=key)
        maps = maps_of(rows, trust, key, epsilon=epsilon)
        truth = exact(rows, maps)
        there = truth >= 3
        covered.append(((maps.low <= truth) & (truth <= maps.high))[there])
        profile = maps.profile()
        region += [one["low"] <= true <= one["high"] for one, true in zip(profile, truth.sum(axis=1), strict=True)]
    share = np.concatenate(covered)
    assert len(share) > 10_000
    assert 0.93 < share.mean() < most
    assert np.mean(region) > 0.85  # 70 intervals of the whole region: 0.85 is 4 deviations below 95%


def test_the_unbiased_users_have_no_bias_and_the_estimate_has_less_error() -> None:
    bias, ours, noisy, spread = [], 0.0, 0.0, 0.0
    for key in range(10):
        rows = city_rows(DEPTH, USERS, slots=7, seed=key)
        maps = maps_of(rows, "secagg", key)
        error = maps.unbiased - exact(rows, maps)
        bias.append(error.mean() / (error.std() / np.sqrt(error.size)))
        noisy += float((error**2).sum())
        ours += float(((maps.users - exact(rows, maps)) ** 2).sum())
        spread += float((maps.stddev**2).sum())
    assert abs(np.sum(bias)) / np.sqrt(10) < 5
    assert ours < noisy
    assert 0.7 < ours / spread < 1.3  # the stated deviations hold on average


def test_the_same_key_gives_the_same_maps_however_users_are_ordered() -> None:
    rows = city_rows(DEPTH, 5_000, slots=7)
    shuffled = seeded_rng(1).permutation(len(rows.users))
    again = Rows(rows.places, rows.users[shuffled], rows.codes[shuffled])
    one, two = (maps_of(those, "secagg", 3, shard_size=1_000) for those in (rows, again))
    assert np.array_equal(one.users, two.users)
    assert np.array_equal(one.unbiased, two.unbiased)


def test_the_page_shows_every_slot_within_its_interval(release: CityRelease) -> None:
    body = heatmap_view(release.files).body
    assert isinstance(body, MapBody)
    assert body.slots is not None
    assert body.slots.names == list(SLOTS.names)
    for measure in body.slots.layer.measures:
        for value, low, high in zip(measure.value, measure.low, measure.high, strict=True):
            assert value is not None
            assert low is not None
            assert high is not None
            assert low - 1e-6 <= value <= high + 1e-6
    assert all(0 <= low <= value <= high for value, low, high in body.slots.region)
    assert len(release.files["index.html"]) < 1_500_000


def test_many_cells_are_added_up_on_the_page(release: CityRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    full = heatmap_view(release.files).body
    monkeypatch.setattr("sfumato.transforms.heatmap.view._MAX_SLOT_VALUES", 7 * 20)
    few = heatmap_view(release.files).body
    assert isinstance(full, MapBody)
    assert isinstance(few, MapBody)
    assert full.slots is not None
    assert few.slots is not None
    assert len(few.slots.layer.level) <= 20 < len(full.slots.layer.level)
    for many, merged in zip(full.slots.layer.measures, few.slots.layer.measures, strict=True):
        sums = [sum(value or 0 for value in one.value) for one in (many, merged)]
        assert sums[0] == pytest.approx(sums[1], rel=0.02)


@pytest.mark.parametrize(
    ("values", "slots", "message"),
    [
        ({"schedule": "paper"}, 24, "schedule: paper makes no maps of slots"),
        ({"cohorts": "disjoint"}, 24, "cohorts: disjoint makes no maps of slots"),
        ({"estimator": "last"}, 24, "estimator: last makes no maps of slots"),
        ({"contribution": "all"}, 24, "contribution: with slots"),
        ({"participation": "paper"}, 24, "participation: paper is for maps without slots"),
        ({"max_entries": 100}, 24, "max_entries: 24 slots need at least 384"),
    ],
)
def test_options_that_do_not_go_with_slots_are_refused(values: dict[str, Any], slots: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        heatmap_parameters("adaptive", {"depth": 6, **values}, slots=slots)


def test_other_methods_are_refused() -> None:
    with rejects("slots"):
        heatmap_parameters("flat", {"depth": 6}, slots=24)
