"""Central counts: one user's items, enumerated; a singleton that shows; what the threshold hid; other users' choices.

Each test also runs the opposite, such as noise for one item where a user adds three, and sees it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from shapely import box

from sfumato.schemas.locations import ItemColumns, LocationColumns
from sfumato.schemas.slots import DaySlots
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.histogram.central_counts import (
    CentralCountPlan,
    NoisyHistogram,
    add_noise,
    count_items,
    noisy_levels,
)
from sfumato.transforms.histogram.count_noise import ItemBound, choose_noise
from sfumato.transforms.histogram.item_encoding import ColumnItems, ZoneItems
from sfumato.transforms.histogram.release import CountMetadata, central_files
from sfumato.transforms.histogram.transform import CountItems, Rounds
from sfumato.transforms.histogram.user_sample import ItemCounts, Sample
from sfumato.transforms.privacy.admission import AdmissionRule, ChargeAndAdmit, UserCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.jobs.histogram.test_sample_and_threshold import run
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.histogram.oracle import counts_delta
from tests.unit.zones.polygons import zones_of

KEY = RunKey.derive(FixedSecret(b"attack on counts" * 2), {"job": "attack"})
KINDS = ("laplace", "truncated", "gaussian")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("true_bound", [ItemBound(3, 1), ItemBound(1, 3), ItemBound(2, 2)])
def test_noise_for_a_smaller_bound_is_not_private(kind: str, true_bound: ItemBound) -> None:
    delta = 1e-3
    enough = choose_noise(2.0, delta, true_bound, kind)
    assert counts_delta(enough, true_bound, 2.0, 160) <= delta
    for smaller in (ItemBound(true_bound.max_items, 1), ItemBound(1, true_bound.max_records)):
        if smaller != true_bound:
            ignored = choose_noise(2.0, delta, smaller, kind)
            assert counts_delta(ignored, true_bound, 2.0, 160) > 1.5 * delta


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize("kind", KINDS)
def test_items_of_one_user_appear_as_seldom_as_delta_allows(kind: str) -> None:
    """400,000 items that one user each holds, at delta 1e-3; a lower threshold is 9 deviations away."""
    items = keyed_hash(KEY.subkey(kind), np.arange(400_000))
    lonely = ItemCounts(np.sort(items), np.ones(len(items), np.int64))
    noise = choose_noise(1.0, 1e-3, ItemBound(), kind)

    def shown(threshold: int) -> int:
        return len(add_noise(lonely, replace(noise, threshold=threshold), KEY, "attack", 0, None))

    allowed = stats.binom.ppf(1 - FLAKE_RATE, len(items), noise.delta)  # at most 1e-3
    assert shown(noise.threshold) <= allowed
    assert shown(noise.threshold) > 0
    assert shown(noise.threshold - 1) > allowed
    assert shown(1) > 100 * allowed


@pytest.mark.parametrize("bound", [ItemBound(1), ItemBound(3), ItemBound(2, 3)])
def test_a_user_more_changes_the_counts_of_their_items_alone(bound: ItemBound) -> None:
    """Under one key: neither the noise nor the choice of others' items depends on who else is there."""
    rng = seeded_rng(1)
    numbers, items = rng.integers(0, 300, 6000), rng.integers(0, 15, 6000)  # 20 users and more an item
    users = keyed_hash(KEY.subkey("users"), np.arange(300))
    plan = CentralCountPlan(epsilon=8.0, delta=1e-3, bound=bound)

    def published(present: np.ndarray) -> dict[int, int]:
        sample = Sample.from_arrays(users[numbers[present]], items[present].astype(np.uint64))
        (shown,) = noisy_levels(count_items(sample, bound, KEY, None, (0,)), plan, KEY, (0,)).levels
        return dict(zip(shown.items.tolist(), shown.noisy.tolist(), strict=True))

    everybody = published(np.full(6000, True))
    assert len(everybody) > 10
    for user in range(20):
        without = published(numbers != user)
        changed = {item for item in {*everybody, *without} if everybody.get(item) != without.get(item)}
        assert len(changed) <= bound.max_items
        assert changed <= set(items[numbers == user].tolist())
        for item in changed & everybody.keys() & without.keys():
            assert 1 <= everybody[item] - without[item] <= bound.max_records


def test_a_user_more_adds_once_a_day_to_their_zones(tmp_path: Path) -> None:
    """However many rows they have. As records of a zone, the rows of one day would add up to the number of days."""
    rng, days = seeded_rng(3), 4
    zones = zones_of([box(x, 50, x + 1, 51) for x in range(6)])
    columns = LocationColumns(slots=DaySlots("time", days=days))
    by_day = ZoneItems(columns, ZoneLocator(zones))

    def counts(items: ZoneItems, rows: list[tuple[int, int, int]]) -> np.ndarray:
        users, places, dates = np.array(rows).T
        table = pa.table({
            "user_id": users, "longitude": places + 0.5, "latitude": np.full(len(rows), 50.5),
            "time": pa.array(86_400 * (20_000 + dates) + rng.integers(0, 86_400, len(rows)), pa.timestamp("s")),
        })  # fmt: skip
        sample = items.encode(table.to_batches()[0], KEY, lambda users: np.full(len(users), True)).sample
        (found,) = count_items(items.counted_once_a_day(sample), ItemBound(2, days), KEY, None, (0,))
        return np.bincount(found.items.astype(int), found.counts, minlength=6)

    others = [tuple(row) for row in rng.integers(0, [50, 6, days], (900, 3)).tolist()]
    before = counts(by_day, others)
    for rows in range(1, 200, 20):
        own = [(99, *row) for row in rng.integers(0, [6, days], (rows, 2)).tolist()]
        added = counts(by_day, [*others, *own]) - before
        visits = {place: {date for _, zone, date in own if zone == place} for _, place, _ in own}
        assert np.count_nonzero(added) == min(len(visits), 2)
        assert all(added[place] in (0, len(dates)) for place, dates in visits.items())
    one_day = [(99, 3, 2)] * 50
    assert (counts(by_day, [*others, *one_day]) - before).tolist() == [0, 0, 0, 1, 0, 0]
    records = replace(by_day, columns=LocationColumns())
    assert (counts(records, [*others, *one_day]) - counts(records, others)).tolist() == [0, 0, 0, days, 0, 0]


@pytest.mark.false_alarm(2e-9)
def test_no_file_tells_how_many_items_the_threshold_hid() -> None:
    plan = CentralCountPlan(epsilon=1.0, delta=1e-12)
    metadata = CountMetadata(
        ReleaseMetadata("histogram", "attack", "2026-11-22T00:00:00", "test", True, _parameters(plan)),
        plan,
        ColumnItems(ItemColumns("kind")),
    )
    large = ItemCounts(np.arange(5, dtype=np.uint64), np.full(5, 1000))
    some = ItemCounts(np.arange(2000, dtype=np.uint64), np.append(large.counts, np.ones(1995, np.int64)))
    # No singleton appears: each does with a probability of delta.
    few, many = (noisy_levels([one], plan, KEY, (0,)) for one in (large, some))
    assert [len(one.levels[0]) for one in (few, many)] == [5, 5]
    assert central_files(few, metadata) == central_files(many, metadata)
    more = replace(many, levels=(NoisyHistogram(0, plan.noises[0], some.items, some.counts),))
    assert central_files(more, metadata) != central_files(few, metadata)


def _parameters(plan: CentralCountPlan) -> dict:
    return {"column": "kind", "bound": {"max_items": plan.bound.max_items, "max_records": plan.bound.max_records}}


@pytest.mark.parametrize("rows", [["a"], ["a", "b", "a"], [None], [None, None], ["a", None], [None, "b", None]])
def test_a_user_more_changes_the_counts_that_admit_a_run_by_one(tmp_path: Path, rows: list[str | None]) -> None:
    """A job that counts everybody admits by its own samples: a user is one, whatever rows they have, in any file."""
    seen = []
    others = [(user, kind) for user in range(300) for kind in (["a", None] if user % 3 else [None])]
    for folder, users in (("without", others), ("with", [*others, *((10**6, kind) for kind in rows)])):
        (tmp_path / folder).mkdir()
        for number in range(3):
            ids, kinds = zip(*users[number::3], strict=True)
            pq.write_table(
                pa.table({"user_id": pa.array(ids, pa.int64()), "kind": pa.array(kinds, pa.string())}),
                tmp_path / folder / f"{number}.parquet",
            )
        admit = ChargeAndAdmit(AdmissionRule(cost=50.0, max_bad_fraction=1.0))  # next to no noise
        counting = CountItems(Rounds(ColumnItems(ItemColumns("kind")), KEY), ItemBound(2), admit=admit)
        found = run(f"{tmp_path / folder}/*.parquet", counting).admission
        seen.append(UserCounts(found.users, found.unusable))
    before, after = seen
    assert before == UserCounts(usable=200, unusable=100)
    usable = any(rows)
    assert after == before + UserCounts(usable=int(usable), unusable=int(not usable))
