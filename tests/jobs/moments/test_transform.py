"""The transforms on Beam: reports against each client queried alone, a curator's sums against a loop in memory."""

from __future__ import annotations

import logging
import pickle
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from sfumato.pipelines.runners.runner_settings import LocalRunner
from sfumato.schemas.moments import FixedPoint, Statistic, ValueColumns, ValueRange
from sfumato.schemas.region import Grid
from sfumato.transforms.inputs import parquet_log
from sfumato.transforms.moments import client_values
from sfumato.transforms.moments.central.bernstein_sums import ExactSums
from sfumato.transforms.moments.central.central_moments import CentralSums, choose_range
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.central.transform import SumMoments
from sfumato.transforms.moments.client_values import Block, Values
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping
from sfumato.transforms.moments.local import transform as on_beam
from sfumato.transforms.moments.local.allocation import Prior
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.quantities import Thresholds
from sfumato.transforms.moments.local.tally import Query, Tally, with_noise
from sfumato.transforms.moments.local.transform import PushBits
from sfumato.transforms.privacy.admission import ChargeAndAdmit
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, random_bits
from sfumato.transforms.privacy.user_hashes import hash_users
from tests.conftest import REGION, make_logs, write_files
from tests.jobs import moment_logs
from tests.seeds import seeded_rng

KEY = RunKey.derive(FixedSecret(b"combine moments" * 3), {"job": "moments"})
MEAN = (Statistic("mean"),)
PLAIN = FixedPoint(bits=10)
KINDS = ("a", "b", "c", "d")
IN_THREADS = ("--direct_num_workers=2",)


def logs(users: int, records: int, kind: str = "int", seed: int = 0) -> pa.Table:
    """Logs of places with a number of either sign, some of them missing, a group, and a number of at least 0."""
    table, rng = make_logs(users, records, seed, kind), seeded_rng(seed + 1)
    signed = pa.array(rng.normal(5, 60, table.num_rows), mask=rng.random(table.num_rows) < 0.03)
    kinds = rng.choice([*KINDS, None], table.num_rows, p=[0.4, 0.3, 0.2, 0.05, 0.05]).tolist()
    return (
        table.append_column("signed", signed)
        .append_column("kind", pa.array(kinds, pa.string()).dictionary_encode())
        .append_column("size", pa.array(rng.gamma(2.0, 100.0, table.num_rows)))
    )


def transform(
    column: str = "size",
    form: FixedPoint = PLAIN,
    grouping: Grouping | None = None,
    by_row: bool = False,
    key: RunKey = KEY,
    **plan_options: Any,
) -> PushBits:
    on_map = grouping is not None and isinstance(grouping.groups, CellGroups)
    columns = ValueColumns(
        column,
        None if by_row else "user_id",
        "kind" if grouping is not None and not on_map else None,
        "latitude" if on_map else None,
        "longitude" if on_map else None,
    )
    plan = MomentsPlan(form=form, **{"statistics": MEAN, "epsilon": 2.0, **plan_options})
    return PushBits(Values(columns, form, None if grouping is None else grouping.groups), plan, key, grouping)


def run(pattern: str, transform: PushBits | SumMoments, *options: str) -> Any:
    """The one element that the transform makes of files. It comes back through a file."""
    out = Path(pattern).parent / "state.pickle"
    paths = sorted(str(path) for path in Path(pattern).parent.glob("*.parquet"))
    with beam.Pipeline(runner=LocalRunner(), options=PipelineOptions(list(options))) as root:
        _ = root | beam.Create(paths) | transform | beam.Map(lambda found: out.write_bytes(pickle.dumps(found)))
    return pickle.loads(out.read_bytes())


# --- what the transform does, one client after the other ---


class Client:
    """A value's code, a group's number; `asked` counts the reports."""

    def __init__(self, code: int, group: int):
        self.code, self.group, self.sent_reports = code, group, 0


class Crowd:
    """Clients, each at a place in [0, 1) that their own word says."""

    def __init__(self, push: PushBits):
        self.push, self.key = push, push._key
        self.clients: list[tuple[int, Client]] = []

    def answer(self, query: Query) -> Tally:
        """The reports of all clients to a query."""
        push, slots = self.push, query.quantity.slots
        response, groups = push._plan.response, 1 if push._grouping is None else len(push._grouping.groups) + 1
        counts = np.zeros((2, groups, len(slots)), np.int64)
        ends = [
            Fraction(response.reports) * Fraction(one)
            for one in np.append(np.cumsum(query.probabilities)[:-1], 1.0).tolist()
        ]
        first, last = Fraction(query.first), Fraction(query.last)
        coins, uniforms = self.key.subkey("told", *query.name), self.key.subkey("turns", *query.name)
        for own, client in self.clients:
            place = Fraction(own >> 32, 1 << 32)
            if not first <= place < last:
                continue
            client.sent_reports += 1
            value = np.array([client.code], client_values.code_type(push._plan.form))
            turn = (word(uniforms, 0, own) >> 32) / 2.0**32
            units = int(query.quantity.codes(value, np.array([turn]))[0])
            here, seen = (place - first) / (last - first), set()
            for report in range(response.reports):
                slot = next(i for i, end in enumerate(ends) if here + report < end)
                seen.add(slot)
                bit = units >> int(slots.shift[slot]) & 1
                if isinstance(slots, Thresholds):
                    pick = word(self.key.subkey("thresholds", *query.name), report, own) >> 32
                    threshold = int(slots.below[slot]) + 1 + (pick * int(slots.width[slot]) >> 32)
                    bit = int(units & (1 << int(slots.shift.max()) + 1) - 1 >= threshold)
                if slots.signed:
                    bit &= (units >> int(slots.shift.max()) + 1) == int(slots.negative[slot])
                if response.epsilon is not None and word(coins, report, own) >= response.threshold:
                    bit = 1 - bit
                counts[1 - bit, client.group, slot] += 1
            assert len(seen) == response.reports  # different bits
        return Tally(*counts)

    def state(self, users: float = 0) -> MomentsState:
        """All rounds, with the noise; every client is queried exactly once. users: their noisy number."""
        plan = self.push._plan
        state = MomentsState(plan, users=users)
        for _ in plan.stages:
            queries = state.next_queries()
            state = state.advance(queries, plan.protect(queries, [self.answer(query) for query in queries], self.key))
        assert {client.sent_reports for _, client in self.clients} == {1}
        return state


def word(subkey: bytes, high: int, low: int) -> int:
    """The first 64 bits of a block."""
    return int(random_bits(subkey, np.array([high], np.uint64), np.array([low], np.uint64))[0, 0])


def code_of(value: float, form: FixedPoint) -> int:
    """The nearest whole number of steps, half to even, moved into the range; with a sign above it where it is apart."""
    steps = round((Fraction(value) + Fraction(form.offset)) * Fraction(2) ** form.fraction_bits)
    if form.signed != "split":
        return min(max(steps, 0), form.max_magnitude)
    return min(abs(steps), form.max_magnitude) | (steps < 0) << form.bits


def group_of(row: dict[str, Any], grouping: Grouping | None) -> int:
    if grouping is None:
        return 0
    if isinstance(grouping.groups, ColumnGroups):
        listed = grouping.groups.listed
        return listed.index(row["kind"]) if row["kind"] in listed else len(listed)
    grid, x, y = grouping.groups.grid, row["longitude"], row["latitude"]
    region = grid.region
    if not (region.west <= x <= region.east and region.south <= y <= region.north):
        return len(grouping.groups)
    return int(grid.codes(np.array([x]), np.array([y]))[0])


def crowd_of_users(table: pa.Table, push: PushBits) -> Crowd:
    """One record of each user."""
    columns, form = push._values.columns, push._plan.form
    hashes = hash_users(table["user_id"].combine_chunks(), push._key.subkey("users")).tolist()
    records: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for user, row in zip(hashes, table.to_pylist(), strict=True):
        if row[columns.column] is not None:
            records[user].append((code_of(row[columns.column], form), group_of(row, push._grouping)))
    crowd, places = Crowd(push), push._key.subkey("places")
    for user, codes in records.items():
        theirs = sorted(codes)
        chosen = theirs[(user & 0xFFFFFFFF) * len(theirs) >> 32]
        crowd.clients.append((word(places, 0, user), Client(*chosen)))
    return crowd


def crowd_of_rows(pattern: str, push: PushBits, slice_groups: int, batch_rows: int) -> Crowd:
    """Every row is a client's; slice_groups: row groups in a slice of a file."""
    crowd, columns, form = Crowd(push), push._values.columns, push._plan.form
    for path in sorted(Path(pattern).parent.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for begin in range(0, file.num_row_groups, slice_groups):
                parts = range(begin, min(begin + slice_groups, file.num_row_groups))
                start = 0
                for batch in file.iter_batches(batch_rows, list(parts), columns.names()):
                    rows = [row for row in batch.to_pylist() if row[columns.column] is not None]
                    subkey = push._key.subkey("rows", f"{path}:{begin}:{start}")
                    for number, row in enumerate(rows):
                        pair = random_bits(subkey, np.zeros(1, np.uint64), np.array([number // 2], np.uint64))[0]
                        client = Client(code_of(row[columns.column], form), group_of(row, push._grouping))
                        crowd.clients.append((int(pair[number % 2]), client))
                    start += batch.num_rows
    return crowd


def assert_same(found: MomentsState, expected: MomentsState) -> None:
    assert found.finished_stages == expected.finished_stages
    for (query, counted), (wanted_ask, wanted) in zip(found.tallies, expected.tallies, strict=True):
        assert (query.name, query.first, query.last) == (wanted_ask.name, wanted_ask.first, wanted_ask.last)
        assert query.probabilities.tolist() == wanted_ask.probabilities.tolist()
        assert counted.ones.tolist() == wanted.ones.tolist()
        assert counted.zeros.tolist() == wanted.zeros.tolist()


SIGNED = FixedPoint(bits=11, fraction_bits=2, signed="shift", offset=200.0)
SPLIT = FixedPoint(bits=9, fraction_bits=1, signed="split")
BY_KIND = Grouping(ColumnGroups("kind", ("c", "a", "nobody")))
BY_CELL = Grouping(CellGroups(Grid(REGION, 2)))
SPREAD = (Statistic("mean"), Statistic("variance"))


@pytest.mark.parametrize(
    ("users", "records", "files", "kind", "options", "plan_options"),
    [
        (400, 3, 2, "dictionary", ("--direct_runner_bundle_repeat=2",), {"column": "signed", "form": SIGNED}),
        (400, 2, 2, "bytes", IN_THREADS, {"grouping": BY_KIND, "statistics": SPREAD, "epsilon": 4.0}),
        (500, 1, 2, "int", (), {"grouping": BY_CELL, "epsilon": None, "bits_per_client": 3}),
        (400, 2, 2, "string", (), {"method": "threshold", "column": "signed", "form": SPLIT, "bits_per_client": 2}),
        (400, 1, 2, "int", (), {"method": "auto", "epsilon": 0.1, "statistics": (Statistic("geometric_mean"),)}),
    ],
)
def test_the_job_tells_what_clients_tell_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users, records, files, kind, options, plan_options
) -> None:
    table = logs(users, records, kind)
    pattern = write_files(table, tmp_path / "logs", files, row_group_size=150)
    monkeypatch.setattr(client_values, "BLOCK_CLIENTS", 9)
    push = transform(**plan_options)
    crowd = crowd_of_users(table, push)
    assert len(crowd.clients) > 300
    found = run(pattern, push, *options)
    assert_same(found, crowd.state(found.users))
    assert len(list(found.estimates())) == len(push._plan.statistics)


@pytest.mark.slow
def test_rows_that_are_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of several slices, each of several batches, each of several blocks."""
    pattern = write_files(logs(1000, 1), tmp_path / "logs", 3, row_group_size=70)
    monkeypatch.setattr(parquet_log, "SLICE_ROWS", 140)
    monkeypatch.setattr(parquet_log, "BATCH_ROWS", 97)
    monkeypatch.setattr(client_values, "BLOCK_CLIENTS", 40)
    push = transform("signed", SPLIT, BY_KIND, by_row=True, statistics=SPREAD)
    crowd = crowd_of_rows(pattern, push, slice_groups=2, batch_rows=97)
    assert len(crowd.clients) > 900
    assert_same(run(pattern, push), crowd.state())


def test_a_retried_bundle_draws_the_same_coins_and_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block is asked twice, and every stage settled twice, as after a lost worker; the second result is used."""
    table, push = logs(300, 2), transform(grouping=BY_KIND)
    pattern, expected = write_files(table, tmp_path / "logs", 3), crowd_of_users(table, push).state()
    query, settle, note = on_beam._tally_block, PushBits._add_noise, tmp_path / "retries"

    def noted(what: str) -> None:  # in a file: what Beam pickles are copies
        with note.open("a") as file:
            file.write(f"{what}\n")

    def asked_twice(*given: Any) -> list[Tally]:
        lost, kept = query(*given), query(*given)
        for one, two in zip(lost, kept, strict=True):
            assert np.array_equal(one.ones, two.ones)
            assert np.array_equal(one.zeros, two.zeros)
        noted("block")
        return kept

    def settled_twice(self: Any, state: MomentsState, queries: list[Query], counted: list[Tally]) -> MomentsState:
        lost, kept = settle(self, state, queries, counted), settle(self, state, queries, counted)
        assert_same(lost, kept)
        noted("stage")
        return kept

    monkeypatch.setattr(on_beam, "_tally_block", asked_twice)
    monkeypatch.setattr(PushBits, "_add_noise", settled_twice)
    assert_same(run(pattern, push), expected)
    retries = note.read_text().splitlines()
    assert retries.count("stage") == len(push._plan.stages) == 2
    assert retries.count("block") > 64  # about 300 users: nearly every group of users has some


def test_push_bits_ends_if_clients_report_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: clients answer twice. The meter, which counts what was reported, must notice."""
    pattern, honest = write_files(logs(300, 1), tmp_path / "logs", 2), on_beam.count_reports
    monkeypatch.setattr(on_beam, "count_reports", lambda *a: honest(*a) + honest(*a))
    with pytest.raises(Exception, match="meter: clients reported more or fewer bits than the query has"):
        run(pattern, transform(grouping=BY_KIND))


@pytest.mark.false_alarm(2e-7)  # the admission refuses falsely with 1e-7 where nobody is unusable
def test_push_bits_of_nobody(tmp_path: Path) -> None:
    """The existence of a release does not depend on who is there. Its intervals say that nothing is known."""
    table = logs(200, 1).append_column("empty", pa.nulls(200, pa.float64()))
    # At an epsilon of 2, the noise of one release in 600 seems to be reports of more than nothing.
    push = transform("empty", grouping=BY_KIND, epsilon=0.1)
    found = run(write_files(table, tmp_path / "logs", 2), push)
    (one,) = found.estimates()
    assert found.finished_stages == 2
    assert one.low < 1
    assert one.high > 100
    assert all(counted.reports.any() for _, counted in found.tallies)


def test_push_bits_refuses_too_many_users_without_a_value(tmp_path: Path) -> None:
    """Of users and not of rows: each of the bad ones has one row, each of the good ones three."""
    lost = np.arange(4000) % 2 == 0
    users = np.concatenate([np.repeat(np.flatnonzero(~lost), 3), np.flatnonzero(lost)])
    sizes = pa.array(np.full(len(users), 7.0), mask=lost[users])
    pattern = write_files(pa.table({"user_id": users, "size": sizes}), tmp_path / "logs", 2)
    with pytest.raises(Exception, match=r"have no usable record"):
        run(pattern, transform(epsilon=20.0))


def test_tallies_of_nobody_are_noise_alone() -> None:
    """Without blocks there are no tallies, but there is noise: an empty input looks like a small one."""
    push = transform(grouping=BY_KIND, epsilon=0.2)  # of 40 counts all may be 0 by chance at an epsilon of 2
    start = MomentsState(push._plan)
    queries = start.next_queries()
    none = push._add_noise(start, queries, [])
    ((query, counted),) = none.tallies
    zeros = np.zeros((4, len(query.quantity.slots)), np.int64)
    wanted = with_noise(Tally(zeros, zeros), query.name, 1, 0.99 * 0.2, query.bound_key(push._key))
    assert np.array_equal(counted.ones, wanted.ones)
    assert np.array_equal(counted.zeros, wanted.zeros)
    assert counted.ones.any()
    assert_same(none, push._add_noise(start, queries, [Tally(zeros, zeros)]))


def test_another_question_under_the_same_key_has_its_own_coins() -> None:
    """The same clients, queried for other bits under the same coins, would report more than one bit each."""
    prior = Prior(np.exp2(np.arange(10)), np.full(10, 0.5), np.full(10, 0.1))
    other_prior = replace(prior, mean=np.full(10, 0.25))
    variants: list[dict[str, Any]] = [
        {},
        {"column": "signed"},
        {"form": FixedPoint(bits=11)},
        {"form": FixedPoint(bits=10, fraction_bits=1)},
        {"form": FixedPoint(bits=10, signed="split")},
        {"form": FixedPoint(bits=10, signed="shift", offset=1.0)},
        {"form": FixedPoint(bits=10, signed="shift", offset=2.0)},
        {"epsilon": 1.0},
        {"epsilon": None},
        {"bits_per_client": 2},
        {"method": "weighted"},
        {"statistics": SPREAD},
        {"statistics": SPREAD, "variance": "raw"},
        {"by_row": True},
        {"grouping": BY_KIND},
        {"grouping": Grouping(ColumnGroups("kind", ("a", "c", "nobody")))},
        {"grouping": BY_CELL},
        {"prior": {"value": prior}},
        {"prior": {"value": other_prior}},
        {"key": KEY.narrowed({"release": 2})},
    ]
    keys = [transform(**one)._key.subkey("x") for one in variants]
    assert len(set(keys)) == len(keys)
    assert transform()._key.subkey("x") == keys[0]


def test_an_empty_file_among_others_and_no_coder_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table, push = logs(400, 1), transform()
    pattern, expected = write_files(table, tmp_path / "logs", 2), crowd_of_users(table, push).state()
    pq.write_table(table.slice(0, 0), tmp_path / "logs" / "empty.parquet")
    with caplog.at_level(logging.WARNING):
        assert_same(run(pattern, push), expected)
    assert "coder" not in caplog.text.lower()


# --- a curator's sums ---


CURATOR_KEY = RunKey.derive(FixedSecret(b"sums on beam" * 3), {"job": "moments"})
SPREAD = (Statistic("mean"), Statistic("variance"))
OF_KINDS = Grouping(ColumnGroups("kind", moment_logs.KINDS[:3]))
GIVEN = ValueRange(0.0, 400.0)


def curator(grouping: Grouping | None, span: ValueRange | None, epsilon: float = 2.0) -> SumMoments:
    columns = ValueColumns("length", group=None if grouping is None else "kind")
    plan = CentralMomentsPlan(statistics=SPREAD, epsilon=epsilon, span=span)
    return SumMoments(Values(columns, None, None if grouping is None else grouping.groups), plan, CURATOR_KEY, grouping)


def in_memory(pattern: str, sums: SumMoments, grouping: Grouping | None) -> CentralSums:
    """One record a user, so that no draw chooses; the roundings are those of the users' own hashes."""
    logs = pd.concat(map(pd.read_parquet, sorted(Path(pattern).parent.glob("*.parquet"))))
    logs = logs[np.isfinite(logs["length"])]
    hashes = client_values.hash_users(pa.array(logs["user_id"].to_numpy()), sums._key.subkey("users"))
    bits = client_values.keyed_hash(sums._key.subkey("places"), hashes)
    groups = (
        None if grouping is None else logs["kind"].map({k: i for i, k in enumerate(moment_logs.KINDS[:3])}).fillna(3)
    )
    block = Block(logs["length"].to_numpy(), bits, None if groups is None else groups.to_numpy().astype(np.int64))
    state = choose_range(sums._plan, sums._plan.count_magnitudes(block.codes), sums._key)
    return state.release(sums._plan.exact_sums(block, state.spans, 1 if grouping is None else 4), sums._key)


@pytest.mark.parametrize(("grouping", "span"), [(None, GIVEN), (OF_KINDS, None)], ids=["given", "groups, found"])
def test_the_pipeline_gives_the_sums_of_a_loop_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouping: Grouping | None, span: ValueRange | None
) -> None:
    pattern = write_files(moment_logs.table(600, 1), tmp_path / "logs", 2)
    monkeypatch.setattr(client_values, "BLOCK_CLIENTS", 7)
    sums = curator(grouping, span)
    found, expected = run(pattern, sums), in_memory(pattern, sums, grouping)
    assert np.array_equal(found.slots, expected.slots)
    assert np.array_equal(found.outside, expected.outside)
    assert (found.spans, found.span_is_sure) == (expected.spans, expected.span_is_sure)
    assert found.spans[0] == (span or found.spans[0])


def test_nobody_is_released_as_noise(tmp_path: Path) -> None:
    """The existence of a release does not depend on who is there."""
    logs = moment_logs.table(300, 1)
    nothing = logs.drop(["length"]).append_column("length", pa.nulls(logs.num_rows, pa.float64()))
    sums = curator(OF_KINDS, GIVEN, 20.0)
    sums._admit = ChargeAndAdmit(
        sums._plan.admission(1.0)
    )  # nobody has a usable value, so the default rule would refuse
    found = run(write_files(nothing, tmp_path / "logs", 2), sums)
    empty = CentralSums(sums._plan, (GIVEN,)).release(ExactSums.zeros(4, (2,)), sums._key)
    assert np.array_equal(found.slots, empty.slots)
