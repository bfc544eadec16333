"""Two servers: what one of them sees, and what a device, the other server or a killed run can do.

These tests fail if a report counts twice or outside of its task, if a share leaves before its charge or without its
noise, if a task is opened for two batches, or if what one operator holds depends on a cell.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.errors import DataError, RefusedError, RequestError
from sfumato.schemas.region import Grid, deinterleave
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.ledger.charge_rules import ReusedError
from sfumato.transforms.split import aggregate, blocks
from sfumato.transforms.split.circuits import Histogram
from sfumato.transforms.split.collect import Collected, collect, opened
from sfumato.transforms.split.parties import party_key, private_key
from sfumato.transforms.split.prio3 import Prio3, unshard
from sfumato.transforms.split.reports import Formats, make_reports
from sfumato.transforms.split.task import COUNT_SHARE
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.two_servers import HONEST, City, cells_of

EXACTLY = pytest.mark.false_alarm(1e-10)  # noise of counts that is not 0 at epsilon 30, or above 190 at 0.15


@pytest.fixture
def city(tmp_path: Path) -> City:
    return City.new(tmp_path)


def collected(city: City) -> Collected:
    private = private_key(party_key(f"{city.folder}/collector.key"))
    return collect(city.task, [city.share(role).read_bytes() for role in ("leader", "helper")], private)


def forged(city: City, change: Callable[[np.ndarray, Formats], None]) -> bytes:
    """Returns 2 reports of cell 0 that a function has changed."""
    formats = Formats(city.task)
    records = np.frombuffer(make_reports(city.task, [0, 0], city.task.start), dtype=formats.report).copy()
    change(records, formats)
    return records.tobytes()


def change_time(records: np.ndarray, formats: Formats) -> None:
    records["time"] += 3600


def change_payload(records: np.ndarray, formats: Formats) -> None:
    records["leader_payload"][0, 100] ^= 1
    records["helper_payload"][1, 10] ^= 1


def swap_shares(records: np.ndarray, formats: Formats) -> None:
    records["helper_payload"] = records["helper_payload"][::-1].copy()
    records["helper_enc"] = records["helper_enc"][::-1].copy()


def change_lengths(records: np.ndarray, formats: Formats) -> None:
    records["leader_length"][0] = 7
    records["extensions"][1] = 1


def write_bad_reports(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes files of reports that must not count: about 30 of them, all but the copies of cell 0."""
    task = city.task
    for number, change in enumerate((change_time, change_payload, swap_shares, change_lengths)):
        city.write(f"b{number}", forged(city, change))
    city.report([0, 0], "c early", made_at=task.start - 1)
    city.report([0, 0], "c late", made_at=task.end)
    city.report([0, 0], "d foreign", task=city.write_task(city.folder / "other.json", name="another day"))
    city.write("e garbage", seeded_rng(1).bytes(Formats(task).report.itemsize + 100))
    with monkeypatch.context() as patch:  # devices that prove what is not so
        cheats = np.zeros((4, 16), dtype=np.int64)
        cheats[0, [0, 1]], cheats[1, 0], cheats[3, 0] = 1, 2, -1
        patch.setattr(Prio3, "shard", lambda prio3, _, ids, rest: prio3.shard_encoded(cheats, ids, rest))
        city.report([0] * 4, "f cheats")


@EXACTLY
def test_only_honest_reports_of_the_task_count_and_once(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = city.report(cells_of(HONEST))
    write_bad_reports(city, monkeypatch)
    size = Formats(city.task).report.itemsize
    city.write("z replays", honest[: 5 * size] * 3)  # in another file, and in the same
    city.run()
    found = collected(city)
    assert found.counts == HONEST.tolist()
    assert [len(city.spent(role)) for role in ("leader", "helper")] == [1, 1]


@EXACTLY
def test_a_batch_of_bad_reports_only_is_refused_as_too_small(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bad_reports(city, monkeypatch)
    assert city.aggregate("leader") == 0
    assert city.aggregate("helper") == RefusedError.exit_code
    assert not city.share("helper").exists()


@EXACTLY
def test_a_batch_below_its_minimum_costs_only_its_count(city: City) -> None:
    """The decision is by a noisy count, so whether there is a share protects who takes part."""
    city.report(cells_of(HONEST)[:8])
    assert city.aggregate("leader") == 0
    assert city.spent("leader") == []  # nothing has left but to the helper
    assert city.aggregate("helper") == RefusedError.exit_code
    assert city.spent("helper") == [COUNT_SHARE * city.task.epsilon]
    assert not city.share("helper").exists()
    assert not (city.folder / "exchange" / "responses").exists()
    assert city.aggregate("helper") == RefusedError.exit_code
    assert city.spent("helper") == [COUNT_SHARE * city.task.epsilon]


def test_the_minimum_is_compared_with_a_noisy_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, float]] = []
    draw = type(LAPLACE).draw

    def spied(
        self: object, key: RunKey, label: str, streams: np.ndarray, count: int, cost: float, *rest: float
    ) -> object:
        drawn.append((label, cost))
        return draw(LAPLACE, key, label, streams, count, cost, *rest)

    monkeypatch.setattr(type(LAPLACE), "draw", spied)
    city = City.new(tmp_path, epsilon=10.0, min_batch=1)
    city.report([3] * 1_000)
    city.run()
    assert [label for label, _ in drawn] == ["number of reports", "split noise"] * 2
    costs = dict(drawn)
    assert 2 * costs["number of reports"] + costs["split noise"] == pytest.approx(10.0)


@pytest.mark.false_alarm(4e-9)
def test_each_share_leaves_with_noise_of_its_own(tmp_path: Path) -> None:
    """Shares of sums of 0: what is decrypted is one server's noise, with the distribution of the stated epsilon."""
    city = City.new(tmp_path, epsilon=1.0, depth=6, min_batch=1)
    task, noises = city.task, []
    private = private_key(party_key(f"{city.folder}/collector.key"))
    for name in ("leader", "helper"):
        zeros = replace(aggregate.Partial.nothing(4**6), reports=10_000)
        aggregate.close_batch(zeros, city.operator(name), f"{city.folder}/{name}")
        noises.append(np.array(unshard([opened(task, city.share(name).read_bytes(), private)[3]])))
    for noise in noises:
        assert chi_square_p(noise, discrete_laplace_pmf(task.sums_epsilon, 60)) > FLAKE_RATE
    assert abs(np.corrcoef(noises)[0, 1]) * 4**3 < stats.norm.isf(FLAKE_RATE / 2) * 1.1


def test_other_sums_under_the_same_ids_draw_no_noise(city: City) -> None:
    """An operator that exchanges a report for a fake one with its id would get the same noise on other counts."""
    task, place, helper = city.task, city.folder, city.operator("helper")
    own = replace(aggregate.Partial.nothing(task.circuit.length), reports=10_000)
    other = replace(own, sums=own.sums + np.eye(task.circuit.length, 4, dtype=np.uint64))
    aggregate.close_batch(own, helper, f"{place}/helper")
    before = city.share("helper").read_bytes()
    with pytest.raises(ReusedError):
        aggregate.close_batch(other, helper, f"{place}/helper")
    assert city.share("helper").read_bytes() == before
    assert len(city.spent("helper")) == 1


@EXACTLY
def test_a_task_is_opened_once(finished: City) -> None:
    """Another batch of the same task would be answered with other noise: the difference would show the new report."""
    before = {role: finished.share(role).read_bytes() for role in ("leader", "helper")}
    finished.report([0], "one more")
    assert finished.aggregate("leader") == 0  # of the reports that the helper answered
    assert finished.aggregate("leader", exchange="second") == 0
    assert finished.aggregate("helper", exchange="second") == RequestError.exit_code
    assert not (finished.folder / "second" / "responses").exists()
    assert finished.aggregate("leader", exchange="second") == 0  # still waits for the helper
    assert {role: finished.share(role).read_bytes() for role in before} == before
    assert [len(finished.spent(role)) for role in before] == [1, 1]


@EXACTLY
@pytest.mark.parametrize("role", ["leader", "helper"])
@pytest.mark.parametrize(("when", "charges"), [("before the charge", 0), ("after the charge", 1)])
def test_a_killed_run_repeats_its_bytes_and_charges_once(
    finished: City, role: str, when: str, charges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finished.share(role).read_bytes()
    finished.share(role).unlink()
    (finished.folder / f"{role}.db").unlink()
    with monkeypatch.context() as patch:
        if when == "before the charge":
            patch.setattr(aggregate, "open_ledger", killed)
        else:
            patch.setattr(aggregate, "seal", killed)
        with pytest.raises(RuntimeError, match="killed"):
            finished.aggregate(role)
    assert len(finished.spent(role)) == charges
    assert finished.aggregate(role) == 0
    assert finished.share(role).read_bytes() == whole
    assert len(finished.spent(role)) == 1


def killed(*_: object) -> None:
    raise RuntimeError("killed")


@EXACTLY
def test_the_helper_answers_after_its_charge(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers say which proofs are right. Before the charge, a leader could ask about any number of other requests."""
    city.report(cells_of(HONEST))
    assert city.aggregate("leader") == 0
    with monkeypatch.context() as patch:
        patch.setattr(aggregate, "open_ledger", killed)
        with pytest.raises(RuntimeError, match="killed"):
            city.aggregate("helper")
    assert not (city.folder / "exchange" / "responses").exists()
    assert city.aggregate("helper") == 0
    assert (city.exchanged("responses")["type"] == 0).all()


def test_other_noise_is_sealed_with_another_key_stream(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as of another version that repeats a run: two shares under one key stream show their difference."""
    helper, sums = city.operator("helper"), replace(aggregate.Partial.nothing(16), reports=10_000)
    shares, draw = [], type(LAPLACE).draw
    for more in (0, 1):
        monkeypatch.setattr(type(LAPLACE), "draw", lambda *given, more=more: draw(*given) + more)
        shares.append(json.loads(Path(aggregate.close_batch(sums, helper, f"{city.folder}/helper")).read_text()))
    assert shares[0]["batch"] == shares[1]["batch"]
    assert shares[0]["enc"] != shares[1]["enc"]


def lying_helper(city: City, change: Callable[[np.ndarray], np.ndarray]) -> int:
    """Runs leader and helper, changes the helper's responses, and returns the status of the leader's second run."""
    city.report(cells_of(HONEST))
    city.write("z replay", (city.folder / "reports" / "a.bin").read_bytes()[: Formats(city.task).report.itemsize])
    assert city.aggregate("leader") == 0
    assert city.aggregate("helper") == 0
    city.exchanged("responses", change=change)
    return city.aggregate("leader")


@EXACTLY
@pytest.mark.parametrize(
    "change",
    [lambda rows: np.concatenate([rows, rows[:1]]), lambda rows: np.concatenate([rows[:1], rows[:1], rows[2:]])],
    ids=["one more", "instead of another"],
)
def test_the_leader_counts_no_report_twice_for_the_helper(
    city: City, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Twice would be twice what the leader's noise is for."""
    assert lying_helper(city, change) == DataError.exit_code
    assert not city.share("leader").exists()


@EXACTLY
def test_the_leader_counts_no_replay_for_the_helper(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    """A response to a replayed report, in the replay's own block."""
    monkeypatch.setattr(blocks, "_MAX_BLOCK", HONEST.sum())
    city.report(cells_of(HONEST))
    size = Formats(city.task).report.itemsize
    city.write("z replay", (city.folder / "reports" / "a.bin").read_bytes()[:size])
    assert city.aggregate("leader") == 0
    assert city.aggregate("helper") == 0
    first = city.exchanged("responses", 0)
    city.exchanged("responses", 1, change=lambda _: first[:1])
    assert city.aggregate("leader") == DataError.exit_code


@EXACTLY
def test_shares_of_two_batches_do_not_match(city: City) -> None:
    def refuse_first(responses: np.ndarray) -> np.ndarray:
        responses["type"][0] = 2
        return responses

    assert lying_helper(city, refuse_first) == 0
    with pytest.raises(DataError) as refused:
        collected(city)
    assert refused.value.option == "shares"


@EXACTLY
def test_a_changed_or_foreign_share_is_not_added_up(finished: City) -> None:
    good = finished.share("helper").read_text()
    for bad in (
        good.replace('"reports": ', '"reports": 1'),
        good.replace('"payload": "', '"payload": "A'),
        "{}",
        "[1]",
    ):
        finished.share("helper").write_text(bad)
        with pytest.raises(DataError):
            collected(finished)
    finished.share("helper").write_bytes(finished.share("leader").read_bytes())
    with pytest.raises(DataError):
        collected(finished)
    finished.share("helper").write_text(good)
    assert finished.collect(key="helper") == RequestError.exit_code
    assert collected(finished).counts == HONEST.tolist()


@EXACTLY
def test_the_release_has_every_cell_in_its_place(finished: City) -> None:
    assert finished.collect() == 0
    cells = pq.read_table(finished.folder / "release" / "cells.parquet").to_pandas()
    grid = Grid(finished.task.grid.region, 2)
    x, y = deinterleave(np.arange(16, dtype=np.uint64))
    west, south, _, _ = grid.bounds(x, y, np.full(16, 2))
    found = {(round(row.west, 9), round(row.south, 9)): row["count"] for _, row in cells.iterrows()}
    assert [found[round(a, 9), round(b, 9)] for a, b in zip(west, south, strict=True)] == HONEST.tolist()


def views(cell: int, rows: int, seed: int) -> dict[str, NDArray[np.uint8]]:
    """Returns all that each operator holds of reports of one cell: its share, the public share, and both verifiers."""
    prio3, rng = Prio3(Histogram(8), b"a task"), seeded_rng([seed, cell])
    ids, rest = (rng.integers(0, 256, (rows, size), dtype=np.uint8) for size in (16, prio3.randomness_size))
    public, shares = prio3.shard([cell] * rows, ids, rest)
    seen = [prio3.verify_init(number, bytes(range(32)), ids, public, share) for number, share in enumerate(shares)]
    messages, is_valid = prio3.combine([one.verifier_shares for one in seen])
    assert is_valid.all()
    shared = [public, messages, *(one.verifier_shares for one in seen)]
    return {
        name: np.concatenate([share, *shared], axis=1) for name, share in zip(("leader", "helper"), shares, strict=True)
    }


@pytest.mark.slow
@pytest.mark.false_alarm(6e-9)
def test_no_byte_that_one_server_holds_depends_on_the_cell() -> None:
    """10,000 reports of each of two cells: every byte has one distribution, and so have bytes of pairs of reports.

    Each byte is compared in 16 classes by chi-square, with the false alarm rate divided by the number of bytes.
    """
    first, second = views(2, 10_000, 1), views(5, 10_000, 1)
    for name, mine in first.items():
        theirs = second[name]
        least = 1.0
        for place in range(mine.shape[1]):
            table = np.array([np.bincount(one[:, place] >> 4, minlength=16) for one in (mine, theirs)])
            table = table[:, table.sum(axis=0) > 0]
            if table.shape[1] > 1:
                least = min(least, stats.chi2_contingency(table).pvalue)
        assert least > FLAKE_RATE / mine.shape[1], name


@pytest.mark.slow
@pytest.mark.false_alarm(4e-9)
def test_shares_of_a_cell_are_uniform() -> None:
    """The low bytes of all field elements of the leader's share and of the helper's expanded share."""
    prio3, rng, rows = Prio3(Histogram(8), b"a task"), seeded_rng(2), 5_000
    ids, rest = (rng.integers(0, 256, (rows, size), dtype=np.uint8) for size in (16, prio3.randomness_size))
    for cell in (2, 5):
        public, shares = prio3.shard([cell] * rows, ids, rest)
        for role, share in enumerate(shares):
            seen = prio3.verify_init(role, bytes(32), ids, public, share)
            low = seen.out_shares[..., 0].astype("<u8").view(np.uint8).ravel()
            assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > FLAKE_RATE


def test_reports_have_one_size_whatever_they_hold(tmp_path: Path) -> None:
    city = City.new(tmp_path, max_value=7)
    weights = [[7] + [0] * 15, [0] * 16, [1] * 7 + [0] * 9, [0] * 15 + [3]]
    sizes = {len(make_reports(city.task, [one], city.task.start)) for one in weights}
    assert sizes == {Formats(city.task).report.itemsize}
