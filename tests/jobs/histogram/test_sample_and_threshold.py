"""The transforms on real runners against the same thing done in memory, over files, bundles and groups of users."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from scipy import stats

from sfumato.pipelines.runners.runner_settings import LocalRunner
from sfumato.schemas.locations import NUMBERS, ItemColumns, LocationColumns
from sfumato.schemas.region import Grid
from sfumato.transforms.histogram.central_counts import choose_items
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.item_encoding import CellItems, ColumnItems, NumberItems
from sfumato.transforms.histogram.sampling_round import NumberPrefixes, Sampling, TextPrefixes
from sfumato.transforms.histogram.transform import (
    CountItems,
    CountSamples,
    MergeSamples,
    Rounds,
    TrieHeavyHitters,
)
from sfumato.transforms.histogram.user_sample import (
    AdmissionSampler,
    ItemCounts,
    Sample,
    Sampler,
    count_rounds,
    merge,
    threshold_rounds,
)
from sfumato.transforms.privacy.admission import AdmissionRule, ChargeAndAdmit
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.privacy.user_hashes import hash_users
from sfumato.transforms.quantiles.curve import search_quantiles
from sfumato.transforms.quantiles.transform import InteractiveQuantiles
from tests.conftest import REGION, make_logs, write_files
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

KEY = RunKey.derive(FixedSecret(b"combine tests" * 3), {"job": "combine"})
SAMPLING = Sampling.from_rate(0.3, 8)
GRID = Grid(REGION, 5)


def with_items(users: int, records: int, kind: str = "int") -> pa.Table:
    """Logs of places with a category (a few of many texts), a code and a number beside them."""
    logs = make_logs(users, records, 0, kind)
    rng = seeded_rng(1)
    numbers = np.minimum(rng.zipf(1.5, logs.num_rows), 10**6)
    return (
        logs.append_column("category", pa.array([f"kind {n % 97:02d}" for n in numbers.tolist()]))
        .append_column("code", pa.array(numbers))
        .append_column("length", pa.array(rng.exponential(3.0, logs.num_rows)))
    )


def expected_counts(table: pa.Table, sampler: Sampler, prefix, levels) -> list[Counter]:
    """Counts by round of what prefix(row, level) says of one record of each drawn user; loops and dictionaries."""
    users = hash_users(table["user_id"].combine_chunks(), sampler.key.subkey("users"))
    drawn = dict(zip(users.tolist(), sampler.drawn(users).tolist(), strict=True))
    records: defaultdict[int, list] = defaultdict(list)
    rows = table.to_pylist()
    for user, row in zip(users.tolist(), rows, strict=True):
        records[user].append(prefix.code(row))
    counts = [Counter() for _ in levels]
    for user, codes in records.items():
        codes.sort()
        chosen = codes[int((user & 0xFFFFFFFF) / 2**32 * len(codes))]
        for number, level in enumerate(levels):
            if drawn[user][number]:
                counts[number][prefix.cut(chosen, level)] += 1
    return counts


class Cells:
    def code(self, row):
        return int(GRID.codes(np.array([row["longitude"]]), np.array([row["latitude"]]))[0])

    def cut(self, code, level):
        return code >> 2 * (GRID.depth - level) if level else code


class Texts:
    def __init__(self, key: RunKey):
        self.key = key.subkey("items")

    def code(self, row):
        return int(keyed_hash(self.key, np.array([row["category"], ""], dtype=object))[0]), row["category"]

    def cut(self, code, level):
        return code[1][:level] if level else code[1]


@beam.typehints.with_input_types(str)
def run(pattern: str, transform, *options: str):
    """The one element that a transform makes of files. It comes back through a file."""
    out = Path(pattern).parent / "result.pickle"
    paths = sorted(str(path) for path in Path(pattern).parent.glob("*.parquet"))
    with beam.Pipeline(runner=LocalRunner(), options=PipelineOptions(list(options))) as root:
        _ = root | beam.Create(paths) | transform | beam.Map(lambda found: out.write_bytes(pickle.dumps(found)))
    return pickle.loads(out.read_bytes())


@pytest.mark.parametrize(
    ("users", "records", "files", "kind", "options"),
    [
        (1500, 4, 5, "string", ("--direct_num_workers=2",)),
        (1500, 3, 2, "dictionary", ("--direct_runner_bundle_repeat=2",)),
    ],
)
def test_counted_cells_equal_the_in_memory_answer(tmp_path: Path, users, records, files, kind, options) -> None:
    table = make_logs(users, records, 0, kind)
    pattern = write_files(table, tmp_path / "logs", files, row_group_size=300)
    items, prefixes, levels = CellItems(LocationColumns(), GRID), NumberPrefixes(4, GRID.depth), (2, 4, 5)
    sampler = Rounds(items, KEY, prefixes, levels).sampler(SAMPLING)
    found = run(pattern, CountSamples(Rounds(items, KEY, prefixes, levels), SAMPLING), *options).counts
    expected = expected_counts(table, sampler, Cells(), levels)
    for counts, wanted in zip(found, expected, strict=True):
        assert dict(zip(counts.items.tolist(), counts.counts.tolist(), strict=True)) == wanted


def test_trie_heavy_hitters_matches_memory(tmp_path: Path) -> None:
    table = with_items(3000, 2)
    pattern = write_files(table, tmp_path / "logs", 3, row_group_size=300)
    items, prefixes, levels = ColumnItems(ItemColumns("category")), TextPrefixes(7), (6, 7)
    rounds = Rounds(items, KEY, prefixes, levels)
    key = rounds.bound_key(SAMPLING)
    expected = expected_counts(table, Sampler(key, SAMPLING, 2), Texts(key), levels)
    combined = published([table], rounds, SAMPLING)
    trie = run(pattern, TrieHeavyHitters(rounds, SAMPLING))
    for number, wanted in enumerate(expected):
        shown = {name: count for name, count in wanted.items() if count >= SAMPLING.threshold}
        assert shown
        histogram = combined[number]
        assert dict(zip(histogram.texts, histogram.sampled.tolist(), strict=True)) == shown
        assert histogram.level == levels[number]
        if number:
            shown = {name: count for name, count in shown.items() if name[:6] in trie.levels[0].texts}
        assert dict(zip(trie.levels[number].texts, trie.levels[number].sampled.tolist(), strict=True)) == shown


def published(batches: list, rounds: Rounds, sampling: Sampling) -> list:
    """The steps of the transforms in memory, with two accumulators that travel in between."""
    combine, sampler, halves = MergeSamples(), rounds.sampler(sampling), []
    for half in (batches[::2], batches[1::2]):
        accumulator = combine.create_accumulator()
        for one in half:
            for batch in one.to_batches() if isinstance(one, pa.Table) else [one]:
                encoded = rounds.items.encode(batch, sampler.key, sampler.drawn_in_any_round)
                accumulator = combine.add_input(accumulator, encoded.sample)
        halves.append(combine.compact(accumulator))
    sample = combine.extract_output(combine.merge_accumulators(halves))
    counts = count_rounds(sample, sampler, rounds.prefixes, rounds.levels)
    return threshold_rounds(counts, sampling, rounds.levels)


def test_integers_and_text_in_one_input() -> None:
    """The ids 7 and "7" are one user, and no table of another type ends a run."""
    numbers = pa.table({"user_id": range(50), "category": ["a"] * 50})
    texts = pa.table({"user_id": [str(i) for i in range(50)], "category": ["a"] * 50})
    codes = pa.table({"user_id": range(50, 90), "category": [-7] * 40})
    rounds, sampling = Rounds(ColumnItems(ItemColumns("category")), KEY), Sampling.from_rate(0.95, 2)
    inputs = ([numbers], [numbers, texts], [numbers, codes])
    (alone,), (both,), (mixed,) = (published(tables, rounds, sampling) for tables in inputs)
    assert both.texts == alone.texts == ("a",)
    assert both.counts.tolist() == alone.counts.tolist()
    found = dict(zip(mixed.texts, mixed.counts.tolist(), strict=True))
    assert found["a"] == alone.counts[0]
    assert 20 < found["-7"] <= 42.2  # 40 users, sampled at 0.95


@pytest.mark.false_alarm(1e-9)
def test_searches_on_beam_are_searches_in_memory(tmp_path: Path) -> None:
    """A value that is off by 0.75 or more, three bins, takes a wrong step at an edge 0.6 from the median.

    There a tenth of the users lies between, seven deviations of the share of 1,200 sampled users.
    """
    table = with_items(4000, 1)
    pattern = write_files(table, tmp_path / "logs", 3, row_group_size=300)
    items = NumberItems(ItemColumns("length", kinds=NUMBERS), 0.0, 16.0, 6)
    levels = (0,) * 6
    key = KEY.narrowed({"quantiles": (0.25, 0.5)})
    sampler = Rounds(items, key, None, levels).sampler(SAMPLING)

    class Bins:
        def code(self, row):
            return min(int(row["length"] / 16 * 64), 63)

        def cut(self, code, level):
            return code

    counts = expected_counts(table, sampler, Bins(), levels)
    rounds = [
        ItemCounts(np.array(sorted(one), np.uint64), np.array([one[bin_] for bin_ in sorted(one)])) for one in counts
    ]
    wanted = search_quantiles(rounds, SAMPLING, (0.25, 0.5), 0.0, 16.0)
    found = run(pattern, InteractiveQuantiles(items, SAMPLING, KEY, (0.25, 0.5)))
    assert found.quantiles == wanted.quantiles
    assert np.array_equal(found.curve.share, wanted.curve.share)
    truth = np.quantile(table["length"].to_numpy(), [0.25, 0.5])
    assert [one.value for one in found.quantiles] == pytest.approx(truth, abs=0.75)


def with_unusable(usable: int, unusable: int, both: int, without_id: int) -> pa.Table:
    """Rows of users with a category, without one, with one in one of two rows, and rows of nobody."""
    ids = [*range(usable + unusable), *np.repeat(np.arange(10**6, 10**6 + both), 2).tolist(), *[None] * without_id]
    kinds = ["a"] * usable + [None] * unusable + ["b", None] * both + ["c"] * without_id
    order = seeded_rng(0).permutation(len(ids))
    table = pa.table({"user_id": pa.array(ids, pa.int64()), "category": kinds})
    return table.take(pa.array(order))


@pytest.mark.parametrize(("bounded", "files"), [(SAMPLING, 1), (ItemBound(), 3)])
def test_admission_counts_users_and_not_rows(tmp_path: Path, files: int, bounded: Sampling | ItemBound) -> None:
    """At a rate of 1 and with next to no noise: users with a usable record, and those without any."""
    pattern = write_files(with_unusable(900, 40, 60, 7), tmp_path / "logs", files)
    admit = ChargeAndAdmit(AdmissionRule(cost=50.0, max_bad_fraction=1.0))
    counting = CountSamples if isinstance(bounded, Sampling) else CountItems
    found = run(pattern, counting(Rounds(ColumnItems(ItemColumns("category")), KEY), bounded, admit=admit))
    assert (found.admission.users, found.admission.unusable) == (960, 41)


@pytest.mark.false_alarm(1e-9)
def test_admission_samples_users_of_its_own(tmp_path: Path) -> None:
    """Its sample has the size of its rate, and its coins say nothing of who takes part in a round."""
    sampler = Sampler(KEY, Sampling.from_rate(0.5, 8))
    admission = AdmissionSampler(KEY, 0.25)
    users = seeded_rng(3).integers(0, 2**64, 100_000, np.uint64)
    drawn = np.isin(users, admission.drawn(users))
    assert abs(drawn.sum() - 25_000) < 7 * (100_000 * 0.25 * 0.75) ** 0.5
    both = (drawn & sampler.drawn_in_any_round(users)).sum()
    assert abs(both - 12_500) < 7 * (100_000 * 0.125 * 0.875) ** 0.5
    keys = [RunKey.derive(FixedSecret(b"x" * 32), {"number": number}) for number in range(400)]
    nobody = [AdmissionSampler(key, 0.25).drawn_without_id(1) for key in keys]
    assert abs(sum(nobody) - 100) < 7 * (400 * 0.25 * 0.75) ** 0.5
    assert admission.drawn_without_id(0) == 0


# --- bounded contributions, against dictionaries of sets ---


BOUNDED_KEY = RunKey.derive(FixedSecret(b"bounded tests " * 3), {"job": "bounded"})


def sample_of(pairs: np.ndarray) -> Sample:
    """Rows of (user number, item)."""
    users = keyed_hash(BOUNDED_KEY.subkey("test"), pairs[:, 0])
    return Sample.from_arrays(users, pairs[:, 1].astype(np.uint64))


def by_user(sample: Sample) -> dict[int, dict[int, int]]:
    found: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for user, item, records in zip(*(a.tolist() for a in (sample.users, sample.items, sample.records)), strict=True):
        assert item not in found[user]
        found[user][item] = records
    return dict(found)


@pytest.mark.parametrize("max_items", [1, 5])
def test_a_user_keeps_distinct_items_with_all_their_records(max_items: int) -> None:
    rng = seeded_rng(5)
    rows = np.stack([rng.integers(0, 60, 900), rng.zipf(1.4, 900) % 30], axis=1)
    held = by_user(choose_items(sample_of(rows), 1000, BOUNDED_KEY))
    assert sum(sum(items.values()) for items in held.values()) == len(rows)
    kept = by_user(choose_items(sample_of(rows), max_items, BOUNDED_KEY))
    assert kept.keys() == held.keys()
    for user, items in kept.items():
        assert len(items) == min(max_items, len(held[user]))
        assert items.items() <= held[user].items()


def test_the_choice_depends_on_the_users_own_records_alone() -> None:
    rng = seeded_rng(6)
    rows = np.stack([rng.integers(0, 50, 800), rng.integers(0, 20, 800)], axis=1)
    kept = by_user(choose_items(sample_of(rows), 3, BOUNDED_KEY))
    shuffled, some = rng.permutation(rows), rows[rows[:, 0] < 7]
    assert by_user(choose_items(sample_of(shuffled), 3, BOUNDED_KEY)) == kept
    parts = [sample_of(part) for part in np.array_split(shuffled, 4)]
    assert by_user(choose_items(merge(parts), 3, BOUNDED_KEY)) == kept
    alone = by_user(choose_items(sample_of(some), 3, BOUNDED_KEY))
    assert len(alone) == len(np.unique(some[:, 0]))
    assert alone.items() <= kept.items()


@pytest.mark.false_alarm(2e-9)
def test_items_are_drawn_in_proportion_to_their_records() -> None:
    """Weights 1, 3, 2: the first item of a draw by its weight, the item left out by the law of successive draws."""
    n = 20_000
    rows = np.concatenate([np.stack([np.arange(n), np.full(n, item)], axis=1) for item in (0, 1, 1, 1, 2, 2)])
    sample, weights = sample_of(rows), np.array([1, 3, 2]) / 6
    once = np.bincount(choose_items(sample, 1, BOUNDED_KEY).items.astype(int), minlength=3)
    assert stats.chisquare(once, weights * n).pvalue > FLAKE_RATE
    twice = np.bincount(choose_items(sample, 2, BOUNDED_KEY).items.astype(int), minlength=3)
    last = np.array(
        [
            sum(weights[a] * weights[b] / (1 - weights[a]) for a, b in ((i, j), (j, i)))
            for i, j in ((1, 2), (0, 2), (0, 1))
        ]
    )
    assert stats.chisquare(n - twice, last * n).pvalue > FLAKE_RATE


@pytest.mark.parametrize(("files", "options"), [(4, ("--direct_runner_bundle_repeat=2",))])
def test_counted_items_equal_the_in_memory_answer(tmp_path: Path, files: int, options: tuple[str, ...]) -> None:
    rng = seeded_rng(8)
    users, kinds = rng.integers(0, 400, 3000), rng.zipf(1.5, 3000) % 50
    names = [f"kind {kind:02d}" if kind else None for kind in kinds.tolist()]
    table = pa.table({"user_id": users, "category": names})
    pattern = write_files(table, tmp_path / "logs", files, row_group_size=300)
    bound, items = ItemBound(3, 2), ColumnItems(ItemColumns("category"))
    admit = ChargeAndAdmit(AdmissionRule(cost=50.0, max_bad_fraction=1.0))
    counting = CountItems(Rounds(items, BOUNDED_KEY, TextPrefixes(7), (6, 7)), bound, admit=admit)
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
