"""What runs show: facts that follow from a user, changes above a bound, noise of another size, a refuted epsilon."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.transforms.audit.comparison import (
    Event,
    Outcome,
    below_thresholds,
    changes,
    faults_of_noise,
    leaks,
    separating_events,
)
from sfumato.transforms.audit.measurements import Measurement
from sfumato.transforms.audit.neighbours import Logs, variants
from sfumato.transforms.audit.sequential import EpsilonTest
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng


def measured(values: np.ndarray, bound: float = 1.0, stddev: float | None = 2.0, **more: object) -> Measurement:
    keys = tuple(f"r{number:04}" for number in range(len(values)))
    noise = None if stddev is None else np.full(len(values), stddev)
    return Measurement("counts", keys, values.astype(float), bound, stddev=noise, **more)  # type: ignore[arg-type]


def outcome(*measurements: Measurement, **facts: object) -> Outcome:
    return Outcome(facts, measurements)


def test_facts_that_change_with_the_key_too_are_no_leaks() -> None:
    own = [outcome(rows=5, noisy=value, name="a") for value in (1, 2)]
    assert leaks(own, outcome(rows=5, noisy=7, name="a")) == []
    assert leaks(own, outcome(rows=6, noisy=1, name="a")) == ["rows"]
    assert leaks(own, outcome(rows=5, noisy=1, name="a", more=True)) == ["more"]
    assert leaks(own, outcome(rows=5, noisy=1)) == ["name"]


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


@pytest.mark.false_alarm(1e-7)
@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.7, False), (1.5, False), (0.0, False)])
def test_noise_of_another_size_is_found(factor: float, is_right: bool) -> None:
    rng, stddev = seeded_rng(1), 3.0
    noise = rng.laplace(0, factor * stddev / np.sqrt(2), (2, 2000))
    runs = [outcome(measured(10 + each, stddev=stddev)) for each in noise]
    assert (faults_of_noise(*runs) == []) == is_right


@pytest.mark.false_alarm(1e-7)
def test_noise_that_two_measurements_share_is_found() -> None:
    noise = seeded_rng(2).laplace(0, 2 / np.sqrt(2), (4, 2000))
    apart = [outcome(measured(noise[at]), measured(noise[at + 2])) for at in (0, 1)]
    assert faults_of_noise(*apart) == []
    shared = [outcome(measured(noise[at]), measured(noise[at])) for at in (0, 1)]
    assert any("same noise" in text for text in faults_of_noise(*shared))


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
    assert 1.0 < test.lower_bound() < 2.0


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
    for rows in variants(logs, "a", "b", [{"latitude": 9.0}], draws).values():
        for name in ("own", "other"):
            (folder / name).mkdir(exist_ok=True)
        logs.write(folder / "own", "a", None)
        logs.write(folder / "other", "a", rows)
        own, other = (Logs.read([str(next((folder / name).glob("*")))], form, "user_id") for name in ("own", "other"))
        assert len(own.rows_of("a")) == 2
        assert len(other.rows_of("a")) == len(rows)
        for user in "bc":
            assert other.rows_of(user) == own.rows_of(user) == logs.rows_of(user)
    assert len(logs.with_one_row().rows_of("a")) == 1
