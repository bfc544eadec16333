"""`sfumato refresh` from its configuration to the page, of every job, and a job of its own that charges the ledger."""

from __future__ import annotations

import json
import shutil
import sqlite3
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.run import JOBS
from sfumato.pipelines.frame import release_run as frame
from sfumato.pipelines.operations.published_nights import PublishedNights
from sfumato.pipelines.operations.refresh import Refresh
from sfumato.pipelines.operations.refresh_config import read_config
from sfumato.schemas.errors import LedgerError
from sfumato.schemas.requests.commands import RefreshRequest
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.conftest import make_logs, write_files
from tests.keys import SECRET, write_key
from tests.refreshes import CONFIG, DAYS, Place
from tests.rejections import rejects

FIRST, SECOND, LAST = DAYS


def started_from(place: Place, day: str) -> str | None:
    """The id of the release that a day's release starts from."""
    start = place.manifest(day)["parameters"]["warm_start"]
    return start and start["release_id"]


# --- what is published ---


@pytest.mark.slow
def test_backfill_publishes_each_day_and_its_page(backfilled: Place) -> None:
    published = backfilled.published
    assert {path.name for path in published.iterdir()} == {
        "basemap.json", "index.html", "latest.json", "maps", "releases", "timeline.json"
    }  # fmt: skip
    assert sorted(path.name for path in (published / "releases").iterdir()) == DAYS
    latest = json.loads((published / "latest.json").read_text())
    assert (latest["date"], latest["release"]) == (LAST, f"releases/{LAST}")
    assert latest["release_id"] == f"city-{LAST}"
    page = (published / "index.html").read_text()
    assert all(f"releases/{day}" in page for day in DAYS)
    assert sorted(path.name[:10] for path in (published / "maps").iterdir()) == DAYS


def test_backfill_charges_what_manifests_state(backfilled: Place) -> None:
    starts = [None, f"city-{FIRST}", f"city-{SECOND}"]
    history = backfilled.history
    for day, start in zip(DAYS, starts, strict=True):
        manifest = backfilled.manifest(day)
        reservation = history.reservations[f"city-{day}"]
        assert manifest["ledger"] == {
            "entry": reservation.index, "hash": reservation.hash, "dataset": "city", "first_day": day, "last_day": day,
        }  # fmt: skip
        assert manifest["created"] == reservation.time
        assert manifest["privacy"]["epsilon"] == float(reservation.charge.epsilon) == 4.0
        assert reservation.manifest is not None
        assert started_from(backfilled, day) == reservation.charge.starts_from == start


def test_refresh_of_published_days_changes_nothing(
    backfilled: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = backfilled.copy(tmp_path / "place")
    before = place.contents()
    assert place.refresh("--date", SECOND) == 0
    assert capsys.readouterr().out.strip() == str(place.night(SECOND) / "index.html")
    assert place.refresh("--backfill", f"{FIRST}:{LAST}") == 0
    assert place.contents() == before


def test_ledger_shows_and_verifies_releases(backfilled: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert backfilled.ledger("show") == 0
    shown = capsys.readouterr().out
    assert "| 2026-11-19 | city-2026-11-19 | heatmap |       4 |     0 |" in shown
    assert "| city    | epsilon 40 in 30 days | 2026-11-20 |    12 |   28 |" in shown
    assert backfilled.ledger("show", "--format", "json", "--dataset", "city") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["epsilon"] for one in told["charges"]] == ["4", "4", "4"]
    assert backfilled.verify() == 0
    shown = capsys.readouterr().out
    assert "7 entries, unbroken; all charges are within their limits" in shown
    assert "3 releases charged as stated, and unchanged" in shown
    assert backfilled.ledger("show", "--dataset", "bikes") == 2


# --- ledgers and releases that were changed or lost ---


def test_refresh_refuses_a_rewritten_ledger(backfilled: Place, tmp_path: Path) -> None:
    """Its chain is whole, but the releases vouch for another one."""
    place = backfilled.copy(tmp_path / "place")
    (place.folder / "ledger.db").unlink()
    book = open_ledger(str(place.folder / "ledger.db"))
    for reservation in backfilled.history.reservations.values():
        book.reserve(reservation.charge, read_config(str(place.config)).budget)
    assert place.ledger("verify") == 0
    assert place.verify() == 4
    assert place.refresh("--date", LAST) == 4


def test_refresh_refuses_a_ledger_with_a_changed_entry(backfilled: Place, tmp_path: Path) -> None:
    place = backfilled.copy(tmp_path / "place")
    shutil.rmtree(place.published)
    with sqlite3.connect(place.folder / "ledger.db") as database:
        database.execute("DROP TRIGGER no_update")
        database.execute("""UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), '"4"', '"1"') AS BLOB)""")
    database.close()
    assert place.refresh("--date", LAST) == 4
    assert place.ledger("verify") == 4
    assert not place.published.exists()


def test_refresh_begins_no_new_ledger_for_a_lost_one(backfilled: Place, tmp_path: Path) -> None:
    """Nor one that was put back from an old copy, nor with another attempt: the published releases show it."""
    place = backfilled.copy(tmp_path / "place")
    (place.folder / "ledger.db").unlink()
    write_files(make_logs(900, 2, seed=7), place.folder / "logs" / "dt=2026-11-21", 1)
    for arguments in (("2026-11-21",), (LAST, "--attempt", "2"), ("2026-11-21", "--dry_run")):
        with rejects("ledger", LedgerError):
            place.run("--date", *arguments)
    assert not place.has_ledger
    open_ledger(str(place.folder / "ledger.db")).set_limits("city", read_config(str(place.config)).budget)
    assert place.refresh("--date", "2026-11-21") == 4


@pytest.mark.slow
def test_refresh_resumes_with_the_same_libraries_only(place: Place) -> None:
    """Results of others might differ in a place, and two under one charge would show what is under the noise."""
    place.crash(LAST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.pipelines.frame.run_key.package_versions", lambda: {"numpy": "3.0.0"})
        assert place.refresh("--date", LAST) == 2
    assert place.refresh("--date", LAST) == 0


# --- days, attempts and starts ---


def test_refresh_without_a_date_takes_yesterdays_data(place: Place) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    (place.folder / "logs" / f"dt={FIRST}").rename(place.folder / "logs" / "moved")
    shutil.rmtree(place.folder / "logs" / f"dt={yesterday}", ignore_errors=True)
    (place.folder / "logs" / "moved").rename(place.folder / "logs" / f"dt={yesterday}")
    assert place.refresh() == 0
    assert place.manifest(yesterday)["release_id"] == f"city-{yesterday}"


@pytest.mark.slow
def test_too_few_users_are_refused_and_can_be_corrected(place: Place) -> None:
    place.write(min_users=50_000)
    for _ in range(2):  # the same data are refused again, by the same noisy count, at no further cost
        assert place.refresh("--date", LAST) == 75
        assert [charge.epsilon for charge in place.history.charges] == [Decimal("0.04")]
    assert place.files(LAST) == ["index.html", "manifest.json"]
    place.write(min_users=50)
    assert place.refresh("--date", LAST) == 0
    assert place.manifest(LAST)["privacy"]["epsilon_spent"] == 3.96  # with the refusal's 0.04 it is what a day may cost


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "status"), [("missing", 75), ("damaged", 1)])
def test_backfill_goes_on_after_a_day_that_fails(place: Place, problem: str, status: int) -> None:
    day = place.folder / "logs" / f"dt={SECOND}"
    if problem == "missing":
        shutil.rmtree(day)
    else:
        for path in day.iterdir():
            path.write_bytes(b"damaged")
    assert place.refresh("--backfill", f"{FIRST}:{LAST}") == status
    assert started_from(place, LAST) == f"city-{FIRST}"


@pytest.mark.slow
def test_changed_input_after_a_crash_is_refused(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Reserved, then crashed; then the records changed. The same noise must not meet the new data."""
    place.crash(LAST)
    entries, file = place.entries, place.folder / "logs" / f"dt={LAST}" / "log-1.parquet"
    content = file.read_bytes()
    pq.write_table(make_logs(10, 1, seed=9), file)
    assert place.refresh("--date", LAST) == 2
    file.write_bytes(content)
    write_key(place.folder / "key", SECRET[::-1])
    assert place.refresh("--date", LAST) == 2
    write_key(place.folder / "key")
    place.write(options={**CONFIG["options"], "epsilon": 3})
    assert place.refresh("--date", LAST) == 2
    assert place.entries == entries
    place.write()
    for file in (place.folder / "logs").rglob("*.parquet"):
        file.rename(file.with_name(f"moved-{file.name}"))  # names and times do not matter, content does
    pq.write_table(make_logs(10, 1, seed=9), place.folder / "logs" / f"dt={LAST}" / "late.parquet")
    for _ in range(2):  # resumed without the late file, then found published
        capsys.readouterr()
        assert place.refresh("--date", LAST) == 0
        assert f"1 file came after city-{LAST} was charged" in capsys.readouterr().err
        assert place.entries == entries + 1


@pytest.mark.slow
def test_second_attempt_is_charged_again(place: Place) -> None:
    place.write(budget=[{"epsilon": 8, "days": 1}])
    assert place.refresh("--date", LAST) == 0
    assert place.refresh("--date", LAST, "--attempt", "2") == 0
    assert place.manifest(LAST)["release_id"] == f"city-{LAST}-2"
    assert place.refresh("--date", LAST) == 0  # some attempt stands
    assert place.refresh("--date", LAST, "--attempt", "2") == 0
    assert len(place.history.reservations) == 2
    assert place.refresh("--date", LAST, "--attempt", "3") == 3
    timeline = (place.published / "timeline.json").read_text()
    assert sum(path.name in timeline for path in (place.published / "maps").iterdir()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"options": {**CONFIG["options"], "depth": 5}}, {"warm_start": False}])
def test_without_a_fitting_start_a_day_starts_from_none(place: Place, changes: dict[str, Any]) -> None:
    assert place.refresh("--date", FIRST) == 0
    place.write(**changes)
    assert place.refresh("--date", SECOND) == 0
    assert started_from(place, SECOND) is None


@pytest.mark.slow
def test_slower_run_resumes_what_a_faster_one_began(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts from an earlier release, which had not been published when the slower one looked, and is charged."""

    def overtaken(*arguments: Any) -> Any:
        if not place.has_ledger:
            monkeypatch.undo()
            assert place.refresh("--date", FIRST) == 0
            place.crash(SECOND)
        return real(*arguments)

    real = frame.run_release
    monkeypatch.setattr(frame, "run_release", overtaken)
    assert place.refresh("--date", SECOND) == 0
    assert started_from(place, SECOND) == f"city-{FIRST}"
    assert place.entries == 5


def test_refresh_passes_beam_options_on(place: Place) -> None:
    """Lists one by one, Google's region under the name that the jobs have for it, a runner's file beside this one."""
    (place.folder / "runner.yaml").write_text("runner: DirectRunner\n")
    place.write(beam={"labels": ["a=1", "b=2"], "region": "europe-west1"}, runner_config="runner.yaml")
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sfumato.pipelines.frame.release_run.run_release", lambda job, settings: seen.append(settings.options)
        )
        assert place.refresh("--date", LAST) == 0
    told = seen[0].get_all_options()
    assert (told["labels"], told["region"]) == (["a=1", "b=2"], "europe-west1")


# --- every job that publishes ---

OTHER_JOBS: dict[str, dict[str, Any]] = {
    "histogram": {"region": "-1,50,1,51", "cells": 2, "delta": 1e-6},
    "hotspots": {"region": [-1, 50, 1, 51], "depth": 4, "levels": 2, "delta": 1e-6},
    "quantiles": {"column": "longitude", "range": [-1, 1], "bits": 6, "quantiles": [0.5, 0.9], "delta": 1e-6},
    "moments": {"column": "latitude", "statistics": ["mean", "variance"]},
    "flows": {"region": [-1, 50, 1, 51], "time_column": "longitude"},
    "zones": {"region": [-1, 50, 1, 51], "h3": 5},
    "ranges build": {"region": [-1, 50, 1, 51], "method": "grid", "sizes": [2000, 20_000]},
}


@pytest.mark.slow
@pytest.mark.parametrize("job", OTHER_JOBS)
def test_refresh_publishes_each_job_once_a_day(place: Place, job: str) -> None:
    options = {"epsilon": 4, **OTHER_JOBS[job]}
    delta = options.get("delta", 0)
    place.write(job=job, budget=[{"epsilon": 4, "delta": delta, "days": 1}], options=options)
    assert place.refresh("--backfill", f"{FIRST}:{SECOND}") == 0
    maps = [one.name[:10] for one in sorted((place.published / "maps").glob("*.js"))]
    assert maps == ([FIRST, SECOND] if job == "zones" else [])  # of cells and of zones
    page = (place.published / "index.html").read_text()
    for day in (FIRST, SECOND):
        assert f"releases/{day}" in page
        manifest = place.manifest(day)
        assert (manifest["job"], manifest["release_id"]) == (job.split()[0], f"city-{day}")
        assert manifest["ledger"]["first_day"] == day
    history = place.history
    assert [(float(charge.epsilon), float(charge.delta)) for charge in history.charges] == [(4, delta)] * 2
    assert place.verify() == 0
    assert place.refresh("--backfill", f"{FIRST}:{SECOND}") == 0  # once more: nothing is charged
    assert place.entries == history.entries


def test_jobs_of_a_refresh_are_those_that_publish(tmp_path: Path) -> None:
    assert {name for name, job in JOBS.items() if job.publishes} == {"heatmap", *OTHER_JOBS}
    new = tmp_path / "refresh.yaml"
    assert cli.main(["refresh", "--init", str(tmp_path), "--users", "9000", "--region", "13,52,14,53"]) == 0
    for file in (new, Path(__file__).parents[3] / "runner_configs" / "schedules" / "refresh.yaml"):
        comment = " ".join(file.read_text().partition("job: heatmap")[2].partition("options:")[0].split())
        assert [job for job in OTHER_JOBS if job not in comment] == []


@pytest.mark.parametrize(("left", "expected"), [("4", (1, 4)), ("2", (1, 2)), ("0.5", (0.5, 0.5))])
def test_rest_of_a_charge_raises_no_epsilon(
    place: Place, monkeypatch: pytest.MonkeyPatch, left: str, expected: tuple[float, float]
) -> None:
    """A release of moments may cost more than the local epsilon, and a day is resumed with what its charge left."""
    options = {"column": "latitude", "epsilon": 1, "group_by": "user_id", "groups": "a,b", "group_epsilon": 4}
    place.write(job="moments", budget=[{"epsilon": 4, "days": 1}], options=options)
    ran: list[Any] = []
    monkeypatch.setattr("sfumato.pipelines.operations.refresh.run_job", lambda request, _: ran.append(request))
    runner, config = RefreshRequest.of({"config": str(place.config)}), read_config(str(place.config))
    nights = PublishedNights.read(config, str(place.config))
    Refresh(config, str(place.config), runner)._run(date(2026, 11, 18), nights, None, left)
    assert (ran[0].epsilon, ran[0].group_epsilon) == expected


# --- a job of its own that charges the ledger, beside a refresh ---


def job(place: Place, output: str, *more: str) -> list[str]:
    return [
        "--input", str(place.folder / "logs" / f"dt={LAST}"), "--output", str(place.folder / output),
        "--region", "-1,50,1,51", "--depth", "6", "--epsilon", "4", "--shard_size", "300", "--dropout", "0.4", *more,
    ]  # fmt: skip


def books(place: Place, *budget: str) -> list[str]:
    ledger = ["--ledger", str(place.folder / "ledger.db"), "--dataset", "city", "--period", LAST]
    return [*ledger, "--key_file", str(place.folder / "key"), *(f"--budget={one}" for one in budget)]


LEDGER = ["--ledger", "L", "--dataset", "c", "--period", LAST]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--dataset", "city"], "dataset"),
        ([*LEDGER, "--budget", "9/1d"], "key_file"),
        (["--ledger", "L", "--period", LAST], "dataset"),
        (LEDGER[:4], "period"),
        ([*LEDGER, "--period", "x", "--budget", "1/1d"], "period"),
        ([*LEDGER, "--budget", "1"], "budget"),
        ([*LEDGER, "--dataset", "a b", "--budget", "9/1d"], "dataset"),
        ([*LEDGER, "--budget", "9/1d", "--seed", "1"], "seed"),
    ],
)
def test_job_refuses_wrong_ledger_options(place: Place, options: list[str], option: str) -> None:
    options = [str(place.folder / "ledger.db") if one == "L" else one for one in options]
    with rejects(option):
        cli.run_command("heatmap", job(place, "out", *options))
    assert not place.has_ledger
    assert not (place.folder / "out").exists()


def test_job_run_again_returns_its_release(place: Place) -> None:
    for _ in range(2):
        assert cli.main(["heatmap", *job(place, "one", *books(place, "4/1d"), "--release_id", "mine")]) == 0
    assert place.entries == 3


@pytest.mark.parametrize(
    "arguments",
    [["verify", "--budget", "1/1d"], ["show", "--releases", "x"], ["limit", "--dataset", "c"],
     ["limit", "--budget", "1/1d"], ["limit", "--dataset", "a b", "--budget", "1/1d"], ["audit"], ["show"], ["verify"]],
)  # fmt: skip
def test_ledger_refuses_wrong_commands(tmp_path: Path, arguments: list[str]) -> None:
    assert cli.main(["ledger", *arguments, "--ledger", str(tmp_path / "ledger.db")]) == 2
    assert not (tmp_path / "ledger.db").exists()


def test_no_release_starts_from_one_without_a_charge(place: Place) -> None:
    assert cli.main(["heatmap", *job(place, f"published/releases/{FIRST}")]) == 0
    assert place.refresh("--date", SECOND) == 4
    with rejects("warm_start"):
        cli.run_command("heatmap", job(place, "warm", *books(place, "4/1d"), "--warm_start", str(place.night(FIRST))))
    assert not place.has_ledger
