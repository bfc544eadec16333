"""Faults of the data are found before the charge, and a refusal is decided on noisy counts that it pays for.

Attacks 2 (bad rows), 7, 14 and 17 of the table: exact fractions of bad rows in the exit status; a file that changes
between its digest and its reading; a corrupt page, or more than a tenth of NaN, found after the charge, so that the
mended day could not be published.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import shapely

from sfumato.pipelines import cli, release_run, scratch
from sfumato.pipelines.accounting import LedgerGate
from sfumato.pipelines.run import request_of
from sfumato.schemas.errors import LedgerError, NotAdmittedError, RequestError
from sfumato.schemas.moments import FixedPoint
from sfumato.schemas.ranges import BASE_DEPTH, Boxes, Field
from sfumato.schemas.region import Grid
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.transforms.heatmap.posterior import estimator
from sfumato.transforms.moments.local.protocol import MomentsPlan
from sfumato.transforms.moments.local.quantities import Quantity
from sfumato.transforms.moments.local.tally import Query, Tally
from sfumato.transforms.privacy.admission import (
    FALSE_REFUSAL_PROBABILITY,
    AdmissionRule,
    UserCounts,
    check_admission,
    count_users,
)
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.mechanism import noise_quantile
from sfumato.transforms.ranges import methods
from sfumato.transforms.ranges.field_counts import NoisyGrid
from sfumato.transforms.ranges.networks.local import LocalTraining
from sfumato.transforms.ranges.networks.paper import paper_training
from sfumato.transforms.ranges.networks.training import fit
from tests.conftest import REGION, make_logs, write_files
from tests.digests import undated
from tests.keys import write_key
from tests.seeds import seeded_rng
from tests.unit.ranges.test_ranges_plan import plan
from tests.unit.zones.polygons import write_geojson

USERS = 1_500
_RNG = np.random.Generator


def _write(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=400, write_page_checksum=True, compression="none", use_dictionary=False)


def _nan(table: pa.Table, column: str, share: float, rng: _RNG) -> pa.Table:
    values = table[column].to_numpy().copy()
    values[rng.random(len(values)) < share] = np.nan
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values))


# --- faults: (table, path, rng) -> writes a damaged file ---


def flipped_byte(table: pa.Table, path: Path, rng: _RNG) -> None:
    _write(table, path)
    group = pq.read_metadata(path).row_group(int(rng.integers(pq.read_metadata(path).num_row_groups)))
    column = group.column(int(rng.integers(group.num_columns)))
    end = column.data_page_offset + column.total_compressed_size
    content = bytearray(path.read_bytes())
    place = int(rng.integers(end - column.total_compressed_size // 2, end))  # in the page's values, not its header
    content[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(bytes(content))


def cut_off(table: pa.Table, path: Path, rng: _RNG) -> None:
    _write(table, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(rng.integers(len(content)))])


def no_parquet(table: pa.Table, path: Path, rng: _RNG) -> None:
    path.write_bytes(rng.bytes(int(rng.integers(2_000))))


def zeroed_block(table: pa.Table, path: Path, rng: _RNG) -> None:
    _write(table, path)
    content = bytearray(path.read_bytes())
    first = int(rng.integers(4, len(content) // 2))
    content[first : first + 512] = bytes(512)
    path.write_bytes(bytes(content))


def missing_column(table: pa.Table, path: Path, rng: _RNG) -> None:
    _write(table.drop_columns([str(rng.choice(table.column_names[:3]))]), path)


def text_coordinates(table: pa.Table, path: Path, rng: _RNG) -> None:
    column = str(rng.choice(["latitude", "longitude"]))
    _write(table.set_column(table.schema.get_field_index(column), column, table[column].cast(pa.string())), path)


def not_a_number(table: pa.Table, path: Path, rng: _RNG) -> None:
    _write(_nan(table, str(rng.choice(["latitude", "longitude"])), float(rng.uniform(0.6, 1)), rng), path)


def swapped(table: pa.Table, path: Path, rng: _RNG) -> None:
    _write(table.rename_columns(["user_id", "longitude", "latitude", *table.column_names[3:]]), path)


def other_units(table: pa.Table, path: Path, rng: _RNG) -> None:
    _write(table.set_column(1, "latitude", pc.multiply(table["latitude"], 1e6)), path)


def replaced_while_running(table: pa.Table, path: Path, rng: _RNG) -> None:
    _write(table, path)  # and once more when the pipeline begins, see `_run`


FAULTS: tuple[Callable[[pa.Table, Path, _RNG], None], ...] = (
    flipped_byte, cut_off, no_parquet, zeroed_block, missing_column, text_coordinates, not_a_number, swapped,
    other_units, replaced_while_running,
)  # fmt: skip
SILENT = (zeroed_block,)  # where the zeros happen to lie in a page that no column of ours is in, nothing is wrong


REGION = "--region=-1,50,1,51"
# Of each job: its options, and the share of epsilon that its noisy counts of users take.
JOBS = {
    "heatmap": ([REGION, "--depth=4"], Decimal("0.01")),
    "zones": (["--zones={folder}/zones.geojson", "--id_column=tract"], Decimal("0.002")),
    "flows": (
        [REGION, "--depth=4", "--origin=longitude,latitude", "--destination=to_longitude,to_latitude"],
        Decimal("0.01"),
    ),
}


def _words(folder: Path, release_id: str, job_name: str, epsilon: float, budget: str) -> list[str]:
    return [
        job_name, "--input", str(folder / "*.parquet"), "--output", str(folder / "out"), f"--epsilon={epsilon}",
        f"--key_file={folder / 'key'}", f"--release_id={release_id}", f"--ledger={folder / 'ledger.db'}",
        "--dataset=city", "--period=2026-11-20", f"--budget={budget}",
        *(one.format(folder=folder) for one in JOBS[job_name][0]),
    ]  # fmt: skip


def _table(job_name: str, seed: int) -> pa.Table:
    """Logs of a job: a user has one record, for flows one trip."""
    users = {"heatmap": 10, "flows": 10, "zones": 20}[job_name] * USERS  # far above the noise of their counts
    table = make_logs(users, 1, seed)
    if job_name == "flows":
        other = make_logs(users, 1, seed + 1)
        for name in ("latitude", "longitude"):
            table = table.append_column(f"to_{name}", other[name])
    return table


def _prepare(folder: Path, number: int) -> None:
    """The key and the zones of a scene."""
    folder.mkdir()
    (folder / "key").write_bytes(seeded_rng(number + 1).bytes(32))
    (folder / "key").chmod(0o600)
    squares = [(shapely.box(-1 + i, 50, i, 51), {"tract": f"tract {i}"}) for i in range(2)]
    write_geojson(folder / "zones.geojson", squares)


def _run(
    folder: Path,
    release_id: str,
    fault: Callable[..., None] | None = None,
    epsilon: float = 2,
    budget: str = "2/1d",
    job_name: str = "heatmap",
) -> int:
    with pytest.MonkeyPatch.context() as patch:
        if fault is replaced_while_running:
            original = release_run.scratch

            def replace_file(*given: object) -> object:
                _write(_table(job_name, 99), folder / "b.parquet")
                return original(*given)  # type: ignore[arg-type]

            patch.setattr(release_run, "scratch", replace_file)
        return cli.main(_words(folder, release_id, job_name, epsilon, budget))


def _check_fault(folder: Path, number: int, job_name: str = "heatmap") -> None:
    """Plants a fault in one of two files; then mends the file and publishes the day."""
    fault, rng = FAULTS[number % len(FAULTS)], seeded_rng(number)
    _prepare(folder, number)
    table = _table(job_name, number)
    half = len(table) // 2
    _write(table.slice(0, half), folder / "a.parquet")
    fault(table.slice(half), folder / "b.parquet", rng)
    if fault in (not_a_number, swapped, other_units):  # a share of everybody: the noise must not hide it
        fault(table.slice(0, half), folder / "a.parquet", rng)
    status = _run(folder, "day", fault, job_name=job_name)
    history = open_ledger(str(folder / "ledger.db")).history() if (folder / "ledger.db").exists() else None
    left = 2 - sum((charge.epsilon for charge in history.charges), Decimal(0)) if history else Decimal(2)
    if fault in SILENT and status == 0:
        return
    assert status in (1, 2), fault.__name__
    admitted = 2 * JOBS[job_name][1] + Decimal("1e-6")  # a ledger rounds up
    assert left >= 2 - admitted, f"{fault.__name__} was found after the charge"
    _write(table.slice(0, half), folder / "a.parquet")
    _write(table.slice(half), folder / "b.parquet")
    assert _run(folder, "day", None, float(left), job_name=job_name) == 0, fault.__name__


@pytest.mark.parametrize("job_name", JOBS)
@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_planted_fault_is_found_before_the_charge(number: int, job_name: str, tmp_path: Path) -> None:
    _check_fault(tmp_path / "day", number, job_name)


@pytest.mark.slow
@pytest.mark.parametrize("job_name", JOBS)
def test_a_fault_that_comes_after_the_charge_changes_nothing(
    job_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All input was read by then: the run ends well, with the tables that it has where nothing is damaged."""
    charge, published = LedgerGate.charge, []

    def charge_and_damage(gate: LedgerGate) -> str | None:
        refused = charge(gate)
        folder = tmp_path / "damaged"
        assert open_ledger(str(folder / "ledger.db")).history().charges
        for name in ("a.parquet", "zones.geojson"):
            (folder / name).write_bytes((folder / name).read_bytes()[:100])
        return refused

    for name in ("calm", "damaged"):
        folder = tmp_path / name
        _prepare(folder, 3)
        _write(_table(job_name, 3), folder / "a.parquet")
        if name == "damaged":
            monkeypatch.setattr(LedgerGate, "charge", charge_and_damage)
        assert _run(folder, "day", job_name=job_name) == 0
        assert {(folder / one).stat().st_size == 100 for one in ("a.parquet", "zones.geojson")} == {name == "damaged"}
        published.append({path.name: path.read_bytes() for path in (folder / "out").glob("*.parquet")})
        assert [one.epsilon for one in open_ledger(str(folder / "ledger.db")).history().charges] == [2]
    assert published[0] == published[1]
    assert published[0]


def _cut_zones(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _torn_zones(path: Path) -> None:
    content = json.loads(path.read_text())
    content["features"][0]["geometry"]["coordinates"][0][1:3] = [[0, 51], [0, 50]]  # a bow tie
    path.write_text(json.dumps(content))


def _twin_zones(path: Path) -> None:
    path.write_text(path.read_text().replace("tract 1", "tract 0"))


@pytest.mark.parametrize("damage", [Path.unlink, _cut_zones, _torn_zones, _twin_zones])
def test_a_damaged_file_of_zones_is_found_before_the_charge(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "day"
    _prepare(folder, 4)
    _write(_table("zones", 4), folder / "a.parquet")
    whole = (folder / "zones.geojson").read_bytes()
    damage(folder / "zones.geojson")
    assert _run(folder, "day", job_name="zones") == 2
    assert not (folder / "ledger.db").exists() or not open_ledger(str(folder / "ledger.db")).history().charges
    (folder / "zones.geojson").write_bytes(whole)
    assert _run(folder, "day", job_name="zones") == 0


@pytest.mark.parametrize(
    "chunk", [pytest.param(one, marks=pytest.mark.exhaustive if one else pytest.mark.slow) for one in range(10)]
)
def test_more_planted_faults(chunk: int, tmp_path: Path) -> None:
    for number in range(len(FAULTS) * (1 + 2 * chunk), len(FAULTS) * (3 + 2 * chunk)):
        _check_fault(tmp_path / str(number), number)


@pytest.mark.slow
def test_a_refused_release_says_why_in_noisy_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "day"
    folder.mkdir()
    (folder / "key").write_bytes(seeded_rng(5).bytes(32))
    (folder / "key").chmod(0o600)
    rng = seeded_rng(6)
    _write(_nan(make_logs(10 * USERS, 1, seed=1), "latitude", 0.8, rng), folder / "a.parquet")
    assert _run(folder, "day", budget="20/1d") == 1
    error = capsys.readouterr().err
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    assert manifest["status"] == "refused"
    assert manifest["privacy"]["epsilon_spent"] == 0.02
    assert "have no usable record" in manifest["reason"]
    assert manifest["reason"] in error
    # Noise of deviation 70: five draws equal the exact number, or each other, with a probability below 1e-5.
    exact = int(np.isnan(pq.read_table(folder / "a.parquet")["latitude"].to_numpy()).sum())
    told = [manifest["reason"]]
    for number in range(4):
        assert _run(folder, f"day-{number}", budget="20/1d") == 1
        told.append(json.loads((folder / "out" / "manifest.json").read_text())["reason"])
    assert not all(f" {exact:,} " in text for text in told)
    assert len(set(told)) > 1
    sizes = {path.name: path.stat().st_size for path in (folder / "out").iterdir()}
    assert _run(folder, "day-3", budget="20/1d") == 1  # the same again, and charged once
    assert {path.name: path.stat().st_size for path in (folder / "out").iterdir()} == sizes
    assert len(open_ledger(str(folder / "ledger.db")).history().charges) == 5


# --- the decision itself ---


@pytest.mark.parametrize("epsilon", [0.001, 0.01, 0.1, 1.0])
def test_the_margin_is_the_exact_tail_of_the_noise(epsilon: float) -> None:
    for probability in (1e-2, FALSE_REFUSAL_PROBABILITY, 1e-10):
        margin = noise_quantile(epsilon, probability)
        beta = np.exp(-epsilon)
        tail = beta ** np.arange(margin + 1, margin + 1 + int(60 / epsilon)) * (1 - beta) / (1 + beta)
        assert tail.sum() <= probability * (1 + 1e-9)
        assert tail.sum() / beta > probability * (1 - 1e-9)  # one less would not do


@pytest.mark.parametrize("limit", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("users", [50, 1_000, 100_000])
def test_a_clean_run_is_refused_with_negligible_probability(users: int, limit: float) -> None:
    """Exactly, over both noises: at the limit itself, where it is most likely."""
    epsilon = 0.05
    rule = AdmissionRule(epsilon, limit, population=users)
    unusable = int(limit * users)
    margin = noise_quantile(epsilon, FALSE_REFUSAL_PROBABILITY)
    span = np.arange(-40 * margin, 40 * margin + 1)
    weight = np.exp(-epsilon * np.abs(span)) * np.tanh(epsilon / 2)
    above = np.cumsum(weight[::-1])[::-1]
    # excess = (1 - limit) Z1 - limit Z2 > margin: for each Z2 the least Z1 that exceeds it.
    excess = (1 - limit) * unusable - limit * (users - unusable)
    least = np.floor((margin - excess + limit * span) / (1 - limit)).astype(int) + 1
    refused = float((weight * np.append(above, 0)[np.clip(least - span[0], 0, len(span))]).sum())
    assert refused <= 2 * FALSE_REFUSAL_PROBABILITY
    disagree = 2 * float(weight[np.abs(span) > 0.1 * users + margin].sum() / 2)
    assert disagree <= 2 * FALSE_REFUSAL_PROBABILITY
    assert rule.population == users


def test_one_user_more_changes_no_decision_but_through_the_noise() -> None:
    """With the same noise the two counts move by one at most, whoever is added: the decision is post-processing."""
    key, rule = RunKey.derive(FixedSecret(b"k" * 32), {}), AdmissionRule(0.05)
    base = count_users(UserCounts(1_000, 40), rule, key)
    for more in (UserCounts(1_001, 40), UserCounts(1_000, 41)):
        moved = count_users(more, rule, key)
        assert abs(moved.users - base.users) + abs(moved.unusable - base.unusable) == 1


def test_too_many_bad_users_are_refused() -> None:
    rule = AdmissionRule(0.05)
    margin = noise_quantile(rule.epsilon, FALSE_REFUSAL_PROBABILITY)
    for number in range(200):
        key = RunKey.derive(FixedSecret(b"k" * 32), {"number": number})
        admission = count_users(UserCounts(10_000, 1_000 + 2 * margin + 600), rule, key)
        with pytest.raises(NotAdmittedError):
            check_admission(admission, rule)


# --- what a second attack found ---


def _day(folder: Path, users: int = 900, seed: int = 1) -> None:
    folder.mkdir()
    write_key(folder / "key")
    _write(make_logs(users, 1, seed=seed), folder / "a.parquet")


def _ledger_run(folder: Path, release_id: str, *more: str) -> int:
    return cli.main([
        "heatmap", "--input", str(folder / "*.parquet"), "--output", str(folder / "out"), "--region=-1,50,1,51",
        "--depth=4", "--epsilon=1", "--shard_size=300", f"--key_file={folder / 'key'}", f"--release_id={release_id}",
        f"--ledger={folder / 'ledger.db'}", "--dataset=city", "--period=2026-11-20", *more,
    ])  # fmt: skip


def test_a_refusal_after_the_whole_charge_is_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Simulated dropout takes every shard: the whole epsilon is spent, and a second run says the same."""
    folder = tmp_path / "day"
    _day(folder)
    for _ in range(2):
        assert _ledger_run(folder, "day", "--budget=1/1d", "--simulated_dropout=1") == 1
        assert "published already" not in capsys.readouterr().err
        assert json.loads((folder / "out" / "manifest.json").read_text())["privacy"]["epsilon_spent"] == 1
        assert [charge.epsilon for charge in open_ledger(str(folder / "ledger.db")).history().charges] == [1]


@pytest.mark.slow
def test_a_refusal_replaces_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "day"
    _day(folder)
    assert _ledger_run(folder, "one", "--budget=9/1d") == 0
    before = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    assert _ledger_run(folder, "two", "--overwrite", "--min_users=90000") == 75
    assert {path.name: path.read_bytes() for path in (folder / "out").iterdir()} == before


def test_a_late_settlement_lowers_no_charge_made_since(tmp_path: Path) -> None:
    """A duplicate of a refused run settles after the mended input was charged under the same release id."""
    folder = tmp_path / "day"
    _day(folder)
    assert _ledger_run(folder, "day", "--budget=9/1d", "--min_users=90000") == 75
    ledger = open_ledger(str(folder / "ledger.db"))
    refused = ledger.history().reservations["day"]
    assert _ledger_run(folder, "day") == 0
    with pytest.raises(LedgerError, match="charged anew"):
        ledger.settle("day", "0.01", 0, str(refused.refusal), binding=refused.charge.binding)
    assert [charge.epsilon for charge in ledger.history().charges] == [Decimal("0.01"), 1]


def test_what_was_refused_cannot_be_noted_as_published(tmp_path: Path) -> None:
    folder = tmp_path / "day"
    _day(folder)
    assert _ledger_run(folder, "day", "--budget=9/1d", "--min_users=90000") == 75
    with pytest.raises(LedgerError, match="was refused"):
        open_ledger(str(folder / "ledger.db")).commit("day", "0" * 64)


@pytest.mark.slow
def test_an_empty_file_is_not_a_file_that_was_used_before(tmp_path: Path) -> None:
    """With a user in it another day's part file is new; without them it must not be refused as a copy."""
    empty = make_logs(900, 1, seed=1).slice(0, 0)
    for number, day in enumerate(("2026-11-20", "2026-11-21")):
        folder = tmp_path / day
        _day(folder, seed=number)
        _write(empty, folder / "b.parquet")
        more = (f"--period={day}", f"--ledger={tmp_path / 'ledger.db'}", "--budget=9/1d")
        assert _ledger_run(folder, day, *more) == 0


def test_the_papers_model_is_charged_for_what_it_protects(tmp_path: Path) -> None:
    folder = tmp_path / "day"
    _day(folder)
    assert _ledger_run(folder, "day", "--participation=paper", "--dropout=0.4", "--budget=9/1d@zero-out") == 0
    (charge,) = open_ledger(str(folder / "ledger.db")).history().charges
    assert charge.adjacency == "zero-out"
    place = ["--ledger", str(folder / "ledger.db"), "--releases", str(folder / "out")]
    assert cli.main(["ledger", "verify", *place]) == 0
    other = tmp_path / "other"
    _day(other)
    assert _ledger_run(other, "day", "--participation=paper", "--dropout=0.4", "--budget=9/1d") != 0


@pytest.mark.slow
def test_rows_are_told_apart_by_content_and_not_by_path(tmp_path: Path) -> None:
    """The same file in two folders, under one key and release id: two results would share their noise."""
    table = make_logs(900, 1, seed=1)
    found = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        write_key(folder / "key")
        _write(table, folder / f"{name}.parquet")
        status = cli.main([
            "moments", "--input", str(folder / "*.parquet"), "--output", str(folder / "out"), "--column=latitude",
            "--bits=8", "--epsilon=2", "--rows_are_users", f"--key_file={folder / 'key'}", "--release_id=day",
        ])  # fmt: skip
        assert status == 0
        found.append((folder / "out" / "bits.parquet").read_bytes())
    assert found[0] == found[1]


def test_the_noise_of_a_tally_is_bound_to_its_question() -> None:
    key, counted = RunKey.derive(FixedSecret(b"k" * 32), {}), Tally(*np.zeros((2, 1, 4), np.int64))
    plan = MomentsPlan(form=FixedPoint(4), epsilon=1.0)
    probabilities = np.full(4, 0.25)
    nudged = probabilities + np.array([np.spacing(0.25), 0, 0, -np.spacing(0.25)])
    queries = [Query(Quantity(plan.form, "value"), 2, 0.0, 1.0, one) for one in (probabilities, probabilities, nudged)]
    first, again, other = (plan.protect([query], [counted], key)[0].ones.tolist() for query in queries)
    assert first == again != other


# What a run's options alone decide is decided before the charge: afterwards it would lose the epsilon for nothing.
#
# Found by attacks on regions and on networks. A region of tiny sides ended its run after the charge, because no
# number holds its users per area. So did a workload between the squares of a network, and a folder with checkpoints
# of another release, as every night but the first has it.


@pytest.mark.parametrize("side", [5e-324, 1e-310, 1e-200, 1e-155, 1e-16])
def test_a_region_whose_areas_no_number_holds_is_a_bad_request(side: float) -> None:
    for region in ((0, 0, side, side), (0, 0, 1, side), (-side, 0, 0, 1)):
        with pytest.raises(RequestError, match=r"^region"):
            request_of("heatmap", {"input": "in", "output": "out", "region": region})


@pytest.mark.slow
def test_the_smallest_region_has_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator, "MAX_RASTER_DEPTH", 10)  # in place of 12, for speed
    rng = seeded_rng(1)
    table = {name: rng.uniform(0, 1e-9, 2_000) for name in ("longitude", "latitude")}
    pattern = write_files(pa.table({"user_id": range(2_000), **table}), tmp_path / "logs", 1)
    options = ["--input", pattern, "--output", str(tmp_path / "out"), "--seed", "1", "--depth", "14"]
    assert cli.main(["heatmap", *options, "--region=0,0,1e-9,1e-9"]) == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["results"]["users"] > 1_000


def test_a_workload_between_all_squares_trains_on_all_of_them() -> None:
    """Squares of 1 km at the corners of cells of 14 km: none overlaps a workload in the middle of a cell."""
    asked = plan("snh")
    edges = np.linspace(0, asked.field.side, 9).astype(np.int64)
    grid, spec = NoisyGrid(edges, edges, np.full((8, 8), 5.0), 1.4), asked.collection_spec(1_000, 1.0)
    middle = float(edges[1]) / 2
    between = Boxes(*(np.array([middle + at]) for at in (0.0, 0.0, 0.1, 0.1)))
    [training], [without] = (paper_training(grid, spec, 1, one) for one in (between, None))
    np.testing.assert_array_equal(training.places, without.places)
    np.testing.assert_array_equal(training.weights, without.weights)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of one number, which learn the mean of the noisy counts."""
    pytest.importorskip("jax")

    def train(training: LocalTraining, checkpoint: str | None = None) -> dict[str, np.ndarray]:
        counts = training.grid.users.ravel().astype(np.float32)
        found: dict[str, np.ndarray] = fit(
            {"mean": np.float32(0)},
            lambda weights, count: ((weights["mean"] - count) ** 2).mean(),
            (counts,),
            epochs=200,
            batch=None,
            learning_rate=0.1,
            checkpoint=checkpoint,
        )
        return found

    monkeypatch.setattr(methods, "train_local", train)


@pytest.mark.parametrize("fault", ["another release", "damaged", "a file"])
def test_useless_checkpoints_cost_time_and_not_the_charge(
    fault: str, trained: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, edges = tmp_path / "checkpoints", np.arange(5) * 1024
    method = methods.SpatialNeural(1_000.0, models=1, checkpoints=str(folder))
    spec = plan("snh").collection_spec(1_000, 1.0)
    first, second = (NoisyGrid(edges, edges, np.full((4, 4), users), 1.4) for users in (3.0, 7.0))
    if fault == "a file":
        folder.write_text("no folder")
    else:
        [one] = method.trainings(first, spec)
        assert method.train(one)["mean"] == pytest.approx(3, abs=0.1)
        [path] = folder.iterdir()
        if fault == "damaged":
            path.write_bytes(b"no archive")
    kept = {one: one.read_bytes() for one in folder.iterdir()} if folder.is_dir() else {}
    caplog.set_level("INFO")
    [other] = method.trainings(second, spec)
    assert method.train(other)["mean"] == pytest.approx(7, abs=0.1)
    assert "trains without a checkpoint" in caplog.text
    assert kept == ({one: one.read_bytes() for one in folder.iterdir()} if folder.is_dir() else {})


# Memory, threads and groups of users are where a run takes place: no byte of a release depends on them.
#
# Otherwise one key would publish two versions of the same counts, whose difference has less noise than either.


MAP = [
    "heatmap",
    "--region",
    ",".join(map(str, (REGION.west, REGION.south, REGION.east, REGION.north))),
    "--depth",
    "5",
]
MEMORY_JOBS = {
    "heatmap": MAP,
    "heatmap, several locations": [*MAP, "--contribution", "all"],
    "heatmap, weights": [*MAP, "--time_column", "timestamp"],
    "histogram": ["histogram", "--column", "kind", "--delta", "1e-5"],
    "quantiles": ["quantiles", "--column", "length", "--range", "0,100", "--population", "400"],
    "ranges": ["ranges", "build", *MAP[1:3], "--method", "grid", "--sizes", "500,5000"],
    "mean": ["moments", "--column", "length", "--bits", "8"],
}
PLANS = {"folder, 1 group a bit": ("folder", 2, 1), "memory, 512 groups": ("memory", 1, 9), "runner": ("runner", 1, 4)}


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    """400 users with three records each: a time, a kind, a length, and some rows without a place."""
    table, rng = make_logs(400, 3, 0), seeded_rng(1)
    n = len(table)
    table = table.set_column(1, "latitude", pa.array(table["latitude"].to_numpy(), mask=rng.random(n) < 0.02))
    table = table.append_column("timestamp", pa.array(rng.integers(0, 86_400, n)))
    table = table.append_column("kind", pa.array([f"kind {number}" for number in rng.integers(0, 3, n)]))
    return write_files(table.append_column("length", pa.array(rng.uniform(0, 100, n))), tmp_path / "logs", 3)


@pytest.fixture
def key(tmp_path: Path) -> str:
    write_key(tmp_path / "key")
    return str(tmp_path / "key")


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY_JOBS)
def test_a_release_is_the_same_in_any_memory(name: str, pattern: str, key: str, tmp_path: Path) -> None:
    found = []
    for place, workers, bits in [("memory", 1, 2), *PLANS.values()]:
        with pytest.MonkeyPatch.context() as patch:
            chosen = scratch.MemoryPlan(place, workers, bits, 0)
            patch.setattr("sfumato.pipelines.release_run.plan_memory", lambda *_, chosen=chosen: chosen)
            words = [*MEMORY_JOBS[name], "--input", pattern, "--epsilon", "2", "--output", str(tmp_path / "out")]
            assert cli.main([*words, "--key_file", key, "--release_id", "one"]) == 0
        found.append(undated(tmp_path / "out"))
        shutil.rmtree(tmp_path / "out")
    assert len(found[0]) > 2
    assert all(one == found[0] for one in found)


def test_memory_is_no_part_of_a_key() -> None:
    given = {"input": "in", "output": "out"}
    assert ReleaseRequest.of({**given, "memory": "1.5G"}).memory == 1_500_000_000
    assert ReleaseRequest.of({**given, "memory": "1.5G"}).shaping() == ReleaseRequest.of(given).shaping()


def test_too_little_memory_is_refused_before_anything_is_charged(
    pattern: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "ledger.db"
    words = [*MAP, "--input", pattern, "--epsilon", "1", "--output", str(tmp_path / "out"), "--key_file", key]
    words += ["--ledger", str(ledger), "--dataset", "city", "--period", "2026-11-20", "--budget", "1/1d"]
    words += ["--release_id", "day"]
    assert cli.main([*words, "--memory", "300M"]) == 2
    assert "memory: this run needs about 600M and may use 300M" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.main([*words, "--memory", "2G"]) == 0  # the whole budget of the day is left


def test_a_model_that_does_not_fit_is_refused_uncharged(
    pattern: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables of all base cells take far more memory than the logs."""
    ledger = tmp_path / "ledger.db"
    words = [
        "ranges",
        "build",
        *MAP[1:3],
        "--method",
        "grid",
        "--sizes",
        "500,5000",
        "--cell_width",
        "0.01",
        "--input",
        pattern,
    ]
    words += ["--epsilon", "1", "--output", str(tmp_path / "out"), "--key_file", key, "--ledger", str(ledger)]
    words += ["--dataset", "city", "--period", "2026-11-20", "--budget", "1/1d", "--release_id", "day"]
    field = Field(Grid(REGION, BASE_DEPTH))
    words[words.index("0.01")] = str(1.01 * max(field.cell_metres))
    assert cli.main([*words, "--memory", "1G"]) == 2
    assert "memory: this run needs about 1." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    words[words.index("--cell_width") + 1] = str(min(field.metres) / 4)
    assert cli.main([*words, "--memory", "1G"]) == 0  # the whole budget of the day is left
