"""What runs show: facts that follow from a user, changes above a bound, noise of another size, a refuted epsilon."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.transforms.audit.claims import StatedNoise
from sfumato.transforms.audit.comparison import (
    Event,
    Outcome,
    Separation,
    below_thresholds,
    changes,
    constant,
    equal_noise,
    leaks,
    separating_events,
)
from sfumato.transforms.audit.facts import SINGLE, of_database, of_files, of_records, of_table, single
from sfumato.transforms.audit.measurements import Measurement
from sfumato.transforms.audit.neighbours import Logs, variants
from sfumato.transforms.audit.noise_tests import distance, noise_report, scaled_noise
from sfumato.transforms.audit.sequential import EpsilonTest
from sfumato.transforms.privacy.additive_noise import GAUSSIAN, LAPLACE
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng


def measured(values: np.ndarray, bound: float = 1.0, stddev: float | None = 2.0, **more: object) -> Measurement:
    keys = tuple(f"r{number:04}" for number in range(len(values)))
    each = None if stddev is None else np.full(len(values), stddev)
    noise = None if stddev is None else StatedNoise("laplace", stddev)
    return Measurement("counts", keys, values.astype(float), bound, stddev=each, noise=noise, **more)  # type: ignore[arg-type]


def outcome(*measurements: Measurement, **facts: object) -> Outcome:
    return Outcome({"file": single(facts)}, measurements)


def drawn(number: int, runs: int, stddev: float = 3.0) -> np.ndarray:
    """Discrete Laplace noise of runs, int64[runs, number]."""
    key = RunKey.derive(FixedSecret(seeded_rng(1).bytes(32)), {})
    decay = 2 * np.arcsinh(1 / (stddev * np.sqrt(2)))
    return LAPLACE.draw(key, "noise", np.arange(runs, dtype=np.uint64), number, float(decay))


def test_facts_that_change_with_the_key_too_are_no_leaks() -> None:
    own = [outcome(rows=5, noisy=value, name="a") for value in (1, 2)]
    assert leaks(own, outcome(rows=5, noisy=7, name="a")) == set()
    assert leaks(own, outcome(rows=6, noisy=1, name="a")) == {("file", SINGLE, "rows")}
    assert leaks(own, outcome(rows=5, noisy=1, name="a", more=True)) == {("file", SINGLE, "more")}
    assert leaks(own, outcome(rows=5, noisy=1)) == {("file", SINGLE, "name")}
    assert constant(own, ("file", SINGLE, "rows"))
    assert not constant(own, ("file", SINGLE, "noisy"))


def test_a_cell_of_a_table_is_a_fact() -> None:
    """The column differs between keys in another row."""
    tables = [pa.table({"cell_id": ["r0", "r1"], "users": values}) for values in ([5, 1], [5, 2], [6, 1])]
    one, again, neighbour = (Outcome({"cells": of_table(table)}) for table in tables)
    assert leaks([one, again], neighbour) == {("cells", one.facts["cells"].index[0], "users")}
    assert leaks([one, again], one) == set()


def test_rows_that_come_and_go_are_facts() -> None:
    tables = [pa.table({"cell_id": keys, "users": [5] * len(keys)}) for keys in (["r0"], ["r0", "r1"])]
    one, neighbour = (Outcome({"cells": of_table(table)}) for table in tables)
    assert {row for _, row, _ in leaks([one, one], neighbour)} == {neighbour.facts["cells"].index[1]}


def test_words_and_numbers_of_a_line_are_facts() -> None:
    lines = [
        of_records([("job read", f"about {noisy} users in 3 files", {"users": noisy, "rows": rows})])
        for noisy, rows in ((1_500, 7), (1_498, 7), (1_501, 8))
    ]
    own, neighbour = [Outcome({"log": one}) for one in lines[:2]], Outcome({"log": lines[2]})
    assert leaks(own, neighbour) == {("log", SINGLE, "job read 1.rows")}
    other = Outcome({"log": of_records([("job read", "about 1,500 users in 4 files", {"users": 1, "rows": 7})])})
    assert leaks(own, other) == {("log", SINGLE, "job read 1, number 2")}
    one, swapped = (Outcome({"log": of_records([(name, "", None) for name in names])}) for names in ("ab", "ba"))
    assert leaks([one, one], swapped) == {("log", SINGLE, "order of the lines")}


def test_entries_of_a_ledger_but_their_times_are_facts(tmp_path: Path) -> None:
    found = []
    for number, entry in enumerate((b'{"time": "1", "epsilon": 1}', b'{"time": "2", "epsilon": 2}')):
        with closing(sqlite3.connect(tmp_path / str(number))) as database, database:
            database.execute("CREATE TABLE entries (number INTEGER, entry BLOB)")
            database.execute("INSERT INTO entries VALUES (1, ?)", (entry,))
        found.append(Outcome({"ledger": of_database(tmp_path / str(number))}))
    assert leaks([found[0]], found[1]) == {("ledger", SINGLE, "entries.0.1.epsilon")}


def test_files_below_and_beside_a_release_are_facts(tmp_path: Path) -> None:
    (tmp_path / "release" / "more").mkdir(parents=True)
    files = {"release/more/x": b"1", "release_2": b"", "release/a.npy": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "release" / "a.npy", np.arange(3))
    facts = of_files(tmp_path.rglob("*"), tmp_path)
    assert facts[""].loc[SINGLE, "size of release/more/x"] == 1
    assert {"release/more", "release_2"} <= set(facts[""].columns)
    assert facts["release/a.npy"]["value"].tolist() == [0, 1, 2]


@pytest.mark.false_alarm(1e-9)
def test_a_fact_that_separates_all_pairs_is_found() -> None:
    """At epsilon 1 each pair of right code separates with a probability of at most 0.54."""
    apart, rng = Separation(), seeded_rng(4)
    for _ in range(40):
        small, noisy = rng.normal(0, 0.01, 2), rng.normal(0, 5, 2)
        apart.add(*(outcome(exact=5 - at + small[at], noisy=5 - at + noisy[at]) for at in (0, 1)))
    assert apart.found(1.0, 0.0, 1e-6) == {("file", SINGLE, "exact")}
    assert apart.found(8.0, 0.0, 1e-6) == set()  # 40 pairs are too few


def test_equal_noise_is_the_share_of_noisy_cells_that_stay() -> None:
    def run(values: list[float]) -> Outcome:
        return Outcome({"cells": of_table(pa.table({"cell_id": list("abcd"), "users": values, "area": [1] * 4}))})

    one, other = run([1, 2, 3, 4]), run([5, 6, 3, 8])
    assert equal_noise(one, other, run([1, 2, 9, 9])) == 2 / 3
    assert equal_noise(one, one, one) == 0


@pytest.mark.parametrize(("moved", "size"), [([1, 0, -1], 1), ([2, 0, 0], 2), ([1, 1, -1], 2), ([0, 0, 0], 0)])
def test_change_is_the_larger_side_of_a_difference(moved: list[int], size: float) -> None:
    before = np.array([4.0, 5.0, 6.0])
    (change,) = changes(outcome(measured(before)), outcome(measured(before + moved)), users_alone=False)
    assert change.size == size
    assert change.is_larger == (size > 1)


def test_other_counts_are_a_violation_unless_noise_led_to_them() -> None:
    one, other = measured(np.zeros(3)), measured(np.zeros(4))
    (change,) = changes(outcome(one), outcome(other), users_alone=False)
    assert change.is_larger
    one, other = (measured(np.zeros(number), follows=True) for number in (3, 4))
    (change,) = changes(outcome(one), outcome(other), users_alone=False)
    assert change.size is None
    assert not change.is_larger


def test_hidden_counts_are_below_the_threshold_at_most() -> None:
    shown = Measurement("counts", ("a", "b"), np.array([5.0, 9.0]), 1.0, threshold=5)
    hidden = Measurement("counts", ("b",), np.array([9.0]), 1.0, threshold=5)
    assert changes(outcome(shown), outcome(hidden), users_alone=False)[0].size == 1
    assert below_thresholds(outcome(shown)) == []
    low = Measurement("counts", ("a",), np.array([4.0]), 1.0, threshold=5)
    assert len(below_thresholds(outcome(low))) == 1


def test_items_below_a_hidden_parent_are_not_compared() -> None:
    one = Measurement("level 2", ("ab", "bc"), np.array([90.0, 9.0]), 1.0, threshold=5, parents=frozenset("ab"))
    other = Measurement("level 2", ("bc",), np.array([9.0]), 1.0, threshold=5, parents=frozenset("b"))
    assert changes(outcome(one), outcome(other), users_alone=False)[0].size == 0
    same = Measurement("level 2", ("bc",), np.array([9.0]), 1.0, threshold=5, parents=frozenset("ab"))
    assert changes(outcome(one), outcome(same), users_alone=False)[0].size == 86


def test_only_common_items_are_compared_of_the_largest() -> None:
    one = Measurement("counts", ("a", "b"), np.array([50.0, 9.0]), 1.0, cut=True)
    other = Measurement("counts", ("a", "c"), np.array([51.0, 10.0]), 1.0, cut=True)
    assert changes(outcome(one), outcome(other), users_alone=False)[0].size == 1


def test_only_names_of_nodes_hold_others() -> None:
    grid = measured(np.zeros(3))
    assert grid.inner == frozenset()
    nodes = Measurement("answers", ("r0", "r01"), np.zeros(2), 1.0, nested=True)
    assert "r0" in nodes.inner
    pairs = Measurement("pairs", ("r0 to r1", "r01 to r1"), np.zeros(2), 1.0, nested=True)
    assert "r0 to r1" in pairs.inner
    assert "r01 to r1" not in pairs.inner


@pytest.mark.false_alarm(1e-6)
@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.6, False), (1.6, False), (0.0, False)])
def test_noise_of_another_size_is_found(factor: float, is_right: bool) -> None:
    noise = np.round(factor * drawn(1000, 3)).astype(int)
    runs = [outcome(measured(10 + each, stddev=3.0)) for each in noise]
    report = noise_report(runs[2], [(runs[0], runs[1])])
    assert (report.faults == []) == is_right
    assert report.judged == ["counts"]


@pytest.mark.false_alarm(1e-6)
@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.3, False)])
def test_noise_of_one_count_is_judged_over_many_runs(factor: float, is_right: bool) -> None:
    """Of 100 differences: below 0.56 of the stated size is a fault, nine deviations from 0.3 of it."""
    runs = [outcome(measured(10 + np.round(factor * each), stddev=30.0)) for each in drawn(1, 200, stddev=30.0)]
    assert noise_report(runs[0], [(runs[0], runs[1])]).weak == ["counts"]
    report = noise_report(runs[0], list(zip(runs[::2], runs[1::2], strict=True)))
    assert report.judged == ["counts"]
    assert (report.faults == []) == is_right


@pytest.mark.false_alarm(1e-6)
@pytest.mark.parametrize("is_right", [True, False])
def test_noise_that_another_epsilon_scales_is_found(is_right: bool) -> None:
    """Right code draws new noise, and the sum of both has another distribution than either: no sizes are compared."""
    first, second, third, fourth = drawn(20_000, 4)
    used = (third, fourth) if is_right else (first, second)
    pair = [outcome(measured(10 + each, stddev=3.0)) for each in (first, second)]
    others = [outcome(measured(10 + 2 * each, stddev=6.0)) for each in used]
    assert (scaled_noise((pair[0], pair[1]), (others[0], others[1])) == []) == is_right


@pytest.mark.false_alarm(1e-6)
@pytest.mark.parametrize("is_right", [True, False])
def test_noise_is_judged_where_few_users_are(is_right: bool) -> None:
    """A third of the cells has two users or fewer."""
    users, noise = np.resize([0, 100, 200], 600), drawn(600, 3)
    runs = [outcome(measured(users + each * ((users > 0) | is_right), stddev=3.0)) for each in noise]
    report = noise_report(runs[0], [(runs[1], runs[2])])
    assert any("few users" in text for text in report.faults) == (not is_right)


@pytest.mark.false_alarm(1e-6)
def test_noise_far_above_a_threshold_is_judged() -> None:
    """Of 200 counts far above it: below 0.67 of the stated size is a fault, ten deviations from 0.4 of it."""
    users, noise = np.resize([3, 400], 400), drawn(400, 3)
    for factor in (1.0, 0.4):
        shown = []
        for each in noise:
            (values,) = [users + np.round(factor * each)]
            keys = np.flatnonzero(values >= 5)
            noises = np.full(len(keys), 3.0), StatedNoise("laplace", 3.0)
            counts = values[keys].astype(float)
            shown.append(outcome(Measurement("items", tuple(map(str, keys)), counts, 1, 1, *noises, threshold=5)))
        report = noise_report(shown[0], [(shown[1], shown[2])])
        assert (report.faults == []) == (factor == 1.0)
        assert report.judged == ["items"]


@pytest.mark.false_alarm(1e-6)
@pytest.mark.parametrize("shares", ["nothing", "measurements", "cells", "far cells"])
def test_noise_that_is_shared_is_found(shares: str) -> None:
    noise = drawn(1000, 6)
    if shares == "measurements":
        noise[3:] = noise[:3]
    if shares == "cells":
        noise[:, 1::2] = noise[:, ::2]
    if shares == "far cells":
        noise[:, 700:] = -noise[:, :300]
    runs = [outcome(measured(noise[at], stddev=3.0), measured(noise[at + 3], stddev=3.0)) for at in range(3)]
    faults = noise_report(runs[2], [(runs[0], runs[1])]).faults
    assert bool(faults) == (shares != "nothing")
    assert all("same noise" in text for text in faults)


@pytest.mark.parametrize("stddev", [1e-4, 0.01, 1e5])
def test_distances_of_little_and_much_noise_are_finite(stddev: float) -> None:
    one = distance(StatedNoise("laplace", stddev), 1.0)
    assert np.all(np.isfinite(one.exponents))
    assert one.probabilities.sum() == pytest.approx(1)
    quiet = [outcome(measured(np.zeros(5), stddev=stddev)) for _ in range(3)]
    assert noise_report(quiet[2], [(quiet[0], quiet[1])]).faults == []


def test_noise_that_is_no_whole_number_is_found() -> None:
    runs = [outcome(measured(each + 0.25, stddev=3.0)) for each in drawn(10, 2)]
    assert any("whole numbers" in text for text in noise_report(runs[0], [(runs[0], runs[1])]).faults)
    even = [outcome(measured(each // 2 * 2, stddev=3.0)) for each in drawn(200, 2)]
    assert any("a multiple of 2" in text for text in noise_report(even[0], [(even[0], even[1])]).faults)


@pytest.mark.false_alarm(1e-6)
@pytest.mark.parametrize(("kind", "draws"), [("laplace", 1), ("laplace", 5), ("gaussian", 1)])
def test_distances_have_the_distribution_of_drawn_noise(kind: str, draws: int) -> None:
    """The mean of n distances is within 6 deviations of the expected one."""
    noise = StatedNoise(kind, 4.0, draws=draws)
    key = RunKey.derive(FixedSecret(seeded_rng(6).bytes(32)), {})
    decay_or_rho = noise.decay if kind == "laplace" else 1 / (2 * 4.0**2)
    made = (LAPLACE if kind == "laplace" else GAUSSIAN).draw(
        key, "distances", np.arange(2 * draws, dtype=np.uint64), 20_000, decay_or_rho
    )
    seen = np.abs(made[:draws].sum(axis=0) - made[draws:].sum(axis=0)) / (4.0 * math.sqrt(2 * draws))
    one = distance(noise, float(draws))
    assert abs(seen.mean() - one.expected) < 6 * seen.std() / math.sqrt(len(seen))
    assert abs(float(one.values**2 @ one.probabilities) - 1) < 0.01


def test_events_separate_a_user_from_another_one() -> None:
    own = [outcome(measured(np.array(values))) for values in ([5.0, 1.0], [7.0, 0.0], [6.0, 2.0])]
    (event,) = separating_events(own, outcome(measured(np.array([4.0, 1.0]))))
    assert (event.key, event.least) == ("r0000", 6.0)
    assert [event.holds(one) for one in own] == [False, True, True]
    assert not Event(3, "r0000", 0.0).holds(own[0])


@pytest.mark.false_alarm(1e-6)
def test_sequential_test_refutes_half_of_the_epsilon_only() -> None:
    """1,000 pairs of a count with discrete Laplace noise of epsilon 2: an e-value of 1e6 has a probability of 1e-6."""
    key = RunKey.derive(FixedSecret(seeded_rng(3).bytes(32)), {})
    noise = LAPLACE.draw(key, "pairs", np.arange(2, dtype=np.uint64), 1000, 2.0)
    test = EpsilonTest(1)
    for with_user, without in noise.T.tolist():
        test.add([(with_user >= 0, without >= 1)])
    assert test.pairs == 1000
    assert not test.refutes(2.0, 1e-6)
    assert test.refutes(1.0)
    # At the usual level of 5% the bound would be above the true epsilon in some runs.
    assert 1.0 < test.lower_bound(1e-6) < 2.0


def test_a_threshold_leak_refutes_epsilon_beyond_delta() -> None:
    test = EpsilonTest(1, delta=1e-3)
    for _ in range(300):
        test.add([(True, False)])
    assert test.refutes(3.0)


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz", "ndjson"])
def test_neighbours_differ_in_the_records_of_one_user(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, form = tmp_path_factory.mktemp("logs"), kind.removesuffix(".gz")
    table = pa.table(
        {"user_id": ["a", "b", "a", "c"], "latitude": [1.5, 2.0, 3.0, 4.0], "place": ["x", "y;", 'z"', ""]}
    )
    source = folder / f"source.{kind}"
    if kind == "parquet":
        pq.write_table(table.cast(pa.schema([field.with_nullable(False) for field in table.schema])), source)
    elif form == "csv":
        table.to_pandas().to_csv(source, index=False)
    else:
        table.to_pandas().to_json(source, orient="records", lines=True)
    logs = Logs.read([str(source)], form, "user_id")
    draws = bytes(32)
    assert sorted(logs.drawn(3, draws)) == ["a", "b", "c"]
    for rows in variants(logs, "a", "b", [{"latitude": 9.0}], draws, wrapped=True).values():
        for name in ("own", "other"):
            (folder / name).mkdir(exist_ok=True)
        logs.write(folder / "own", "", [])
        logs.write(folder / "other", "a", rows)
        own, other = (Logs.read([str(next((folder / name).glob("*")))], form, "user_id") for name in ("own", "other"))
        assert len(own.rows_of("a")) == 2
        assert len(other.rows_of("a")) == len(rows)
        for user in "bc":
            assert other.rows_of(user) == own.rows_of(user) == logs.rows_of(user)
    assert len(logs.with_one_row().rows_of("a")) == 1


def test_logs_of_a_partitioned_table_keep_their_folders(tmp_path: Path) -> None:
    for day, user in (("dt=1", "a"), ("dt=2", "b")):
        (tmp_path / "logs" / day).mkdir(parents=True)
        pq.write_table(pa.table({"user_id": [user], "value": [1.0]}), tmp_path / "logs" / day / "x.parquet")
    paths = sorted(map(str, tmp_path.glob("logs/*/*")))
    logs = Logs.read(paths, "parquet", "user_id")
    logs.write(tmp_path / "own", "", [])
    logs.write(tmp_path / "other", "b", [{"value": 2.0}], tmp_path / "own")
    first, second = sorted((tmp_path / "other").glob("*/*"))
    assert [path.parent.name for path in (first, second)] == ["dt=1", "dt=2"]
    assert pq.read_table(second, partitioning=None)["value"].to_pylist() == [2.0]
    assert first.stat().st_nlink == 2  # it is without the user, and not written again


def test_users_at_extremes_hold_the_smallest_and_largest_numbers(tmp_path: Path) -> None:
    table = pa.table({"user_id": list("abcd"), "value": [2.0, float("nan"), 9.0, -1.0], "name": list("zyxw")})
    pq.write_table(table, tmp_path / "x.parquet")
    logs = Logs.read([str(tmp_path / "x.parquet")], "parquet", "user_id")
    assert sorted(logs.at_extremes()) == ["c", "d"]
    assert logs.sampled(4, {"a"}, bytes(32)) is None
    some = logs.sampled(1, {"a"}, bytes(32))
    assert some is not None
    assert some.rows_of("a") == logs.rows_of("a")
    assert sum(table.num_rows for table in some.files.values()) in (1, 2)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_swapped_rows_differ_in_the_values_of_two_records(share: float, tmp_path: Path) -> None:
    for number in range(2):
        rows = {"user_id": [f"{number}{place}" for place in range(5)], "value": [float(place) for place in range(5)]}
        pq.write_table(pa.table({**rows, "kind": ["x"] * 5}), tmp_path / f"{number}.parquet")
    logs = Logs.read(sorted(map(str, tmp_path.glob("*"))), "parquet", "user_id")
    changed = logs.with_swapped_rows(share, ["value"])
    assert changed is not None
    assert logs.with_swapped_rows(share, ["kind"]) is None
    users = [f"{number}{place}" for number in range(2) for place in range(5)]
    own, other = ([row for user in users for row in one.rows_of(user)] for one in (logs, changed))
    differing = [at for at, pair in enumerate(zip(own, other, strict=True)) if pair[0] != pair[1]]
    assert len(differing) == 2
    assert min(int(share * 10), 9) in differing
    assert sorted(row["value"] for row in own) == sorted(row["value"] for row in other)
