"""Bounded contributions against dictionaries of sets, and CountItems on a runner against the in-memory answer."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import ItemColumns
from sfumato.transforms.histogram.central_counts import choose_items, count_items
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.item_encoding import ColumnItems
from sfumato.transforms.histogram.sample_and_threshold import CountItems, Rounds
from sfumato.transforms.histogram.sampling_round import NumberPrefixes, TextPrefixes
from sfumato.transforms.histogram.user_sample import Sample, merge
from sfumato.transforms.privacy.admission import AdmissionRule, Admit
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.privacy.user_hashes import hash_users
from tests.conftest import write_files
from tests.jobs.histogram.test_sample_and_threshold import run
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

KEY = RunKey.derive(FixedSecret(b"bounded tests " * 3), {"job": "bounded"})


def sample_of(pairs: np.ndarray) -> Sample:
    """Rows of (user number, item)."""
    users = keyed_hash(KEY.subkey("test"), pairs[:, 0])
    return Sample.from_arrays(users, pairs[:, 1].astype(np.uint64))


def by_user(sample: Sample) -> dict[int, dict[int, int]]:
    found: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for user, item, records in zip(*(a.tolist() for a in (sample.users, sample.items, sample.records)), strict=True):
        assert item not in found[user]
        found[user][item] = records
    return dict(found)


@pytest.mark.parametrize("max_items", [1, 2, 5, 40])
def test_a_user_keeps_distinct_items_with_all_their_records(max_items: int) -> None:
    rng = seeded_rng(5)
    rows = np.stack([rng.integers(0, 60, 900), rng.zipf(1.4, 900) % 30], axis=1)
    held = by_user(choose_items(sample_of(rows), 1000, KEY))
    assert sum(sum(items.values()) for items in held.values()) == len(rows)
    kept = by_user(choose_items(sample_of(rows), max_items, KEY))
    assert kept.keys() == held.keys()
    for user, items in kept.items():
        assert len(items) == min(max_items, len(held[user]))
        assert items.items() <= held[user].items()


def test_the_choice_depends_on_the_users_own_records_alone() -> None:
    rng = seeded_rng(6)
    rows = np.stack([rng.integers(0, 50, 800), rng.integers(0, 20, 800)], axis=1)
    kept = by_user(choose_items(sample_of(rows), 3, KEY))
    shuffled, some = rng.permutation(rows), rows[rows[:, 0] < 7]
    assert by_user(choose_items(sample_of(shuffled), 3, KEY)) == kept
    parts = [sample_of(part) for part in np.array_split(shuffled, 4)]
    assert by_user(choose_items(merge(parts), 3, KEY)) == kept
    alone = by_user(choose_items(sample_of(some), 3, KEY))
    assert len(alone) == 7
    assert alone.items() <= kept.items()


def test_items_are_drawn_in_proportion_to_their_records() -> None:
    """Weights 1, 3, 2: the first item of a draw by its weight, the item left out by the law of successive draws."""
    n = 20_000
    rows = np.concatenate([np.stack([np.arange(n), np.full(n, item)], axis=1) for item in (0, 1, 1, 1, 2, 2)])
    sample, weights = sample_of(rows), np.array([1, 3, 2]) / 6
    once = np.bincount(choose_items(sample, 1, KEY).items.astype(int), minlength=3)
    assert stats.chisquare(once, weights * n).pvalue > FLAKE_RATE
    twice = np.bincount(choose_items(sample, 2, KEY).items.astype(int), minlength=3)
    last = np.array(
        [
            sum(weights[a] * weights[b] / (1 - weights[a]) for a, b in ((i, j), (j, i)))
            for i, j in ((1, 2), (0, 2), (0, 1))
        ]
    )
    assert stats.chisquare(n - twice, last * n).pvalue > FLAKE_RATE


@pytest.mark.parametrize(("max_items", "max_records"), [(1, 1), (2, 1), (3, 4), (50, 1000)])
def test_no_user_adds_more_than_the_bound_at_any_level(max_items: int, max_records: int) -> None:
    rng = seeded_rng(7)
    rows = np.stack([rng.integers(0, 40, 600), rng.zipf(1.3, 600) % 64], axis=1)
    bound, prefixes, levels = ItemBound(max_items, max_records), NumberPrefixes(2, 6), (1, 3, 6)
    everybody = count_items(sample_of(rows), bound, KEY, prefixes, levels)
    for user in range(5):
        without = count_items(sample_of(rows[rows[:, 0] != user]), bound, KEY, prefixes, levels)
        for one, other in zip(everybody, without, strict=True):
            added = Counter(dict(zip(one.items.tolist(), one.counts.tolist(), strict=True)))
            added.subtract(dict(zip(other.items.tolist(), other.counts.tolist(), strict=True)))
            amounts = [amount for amount in added.values() if amount]
            assert 1 <= len(amounts) <= max_items
            assert all(1 <= amount <= max_records for amount in amounts)
    if max_records == 1000:
        assert [int(one.counts.sum()) for one in everybody] == [600] * 3


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), True])
@pytest.mark.parametrize("name", ["max_items", "max_records"])
def test_bounds_are_integers_of_one_or_more(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"{name}_per_"):
        ItemBound(**{name: value})


@pytest.mark.parametrize(("files", "options"), [(1, ()), (4, ("--direct_runner_bundle_repeat=2",))])
def test_counted_items_equal_the_in_memory_answer(tmp_path: Path, files: int, options: tuple[str, ...]) -> None:
    rng = seeded_rng(8)
    users, kinds = rng.integers(0, 400, 3000), rng.zipf(1.5, 3000) % 50
    names = [f"kind {kind:02d}" if kind else None for kind in kinds.tolist()]
    table = pa.table({"user_id": users, "category": names})
    pattern = write_files(table, tmp_path / "logs", files, row_group_size=300)
    bound, items = ItemBound(3, 2), ColumnItems(ItemColumns("category"))
    admit = Admit(AdmissionRule(epsilon=50.0, max_bad_fraction=1.0))
    counting = CountItems(Rounds(items, KEY, TextPrefixes(7), (6, 7)), bound, admit=admit)
    found = run(pattern, counting, *options)
    held: defaultdict[int, Counter] = defaultdict(Counter)
    for user, name in zip(users.tolist(), names, strict=True):
        if name:
            held[user][name] += 1
    assert (found.admission.users, found.admission.unusable) == (len(held), len(set(users.tolist()) - held.keys()))
    hashes = hash_users(pa.array(sorted(held)), counting.key.subkey("users"))
    wanted: list[Counter] = [Counter(), Counter()]
    for user, code in zip(sorted(held), hashes.tolist(), strict=True):
        codes = keyed_hash(counting.key.subkey("items"), np.array([*held[user], ""], dtype=object))[:-1]
        one = Sample.from_arrays(
            np.full(len(codes), code, np.uint64), codes, np.array([*held[user].values()], np.uint64)
        )
        kept = choose_items(one, 3, counting.key).items.tolist()
        for number, length in enumerate((6, 7)):
            prefix: Counter = Counter()
            for (name, number_of), item in zip(held[user].items(), codes.tolist(), strict=True):
                prefix[name[:length]] += number_of if item in kept else 0
            wanted[number].update({name: min(total, 2) for name, total in prefix.items() if total})
    for counts, expected in zip(found.counts, wanted, strict=True):
        assert dict(zip(counts.texts.tolist(), counts.counts.tolist(), strict=True)) == expected
