"""What a dry run refuses: a key, a column or an engine that the run could not use, in its words. Nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.runners import job_servers
from tests.keys import SECRET


def command(place: Path, *options: str) -> list[str]:
    (place / "log.csv").write_text("user_id,latitude,longitude\n")
    places = "--input", str(place / "log.csv"), "--output", str(place / "out")
    return ["heatmap", *places, "--region", "0,50,1,51", "--depth", "6", *options]


@pytest.mark.parametrize("dry", [["--dry_run"], []])
@pytest.mark.parametrize(
    ("mode", "content"),
    [
        (0o644, SECRET),
        (0o600, b"short"),
        (0o600, b"a word and another, and no key " * 2),
        (0o600, bytes(32)),
        (0o600, None),
    ],
)
def test_a_bad_key_is_refused(
    tmp_path: Path, mode: int, content: bytes | None, dry: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
        key.chmod(mode)
    assert cli.main(command(tmp_path, "--key_file", str(key), "--release_id", "one", *dry)) == 2
    assert capsys.readouterr().err.startswith("sfumato heatmap: --key_file: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dry", [["--dry_run"], []])
def test_a_missing_column_is_refused(tmp_path: Path, dry: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command(tmp_path, "--user_id_column", "rider"), *dry]) == 2
    assert "--user_id_column" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_field_of_json_has_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of JSON records states no columns: the run itself would learn this from the records, after the charge."""
    log = tmp_path / "log.ndjson"
    log.write_text('{"userid": "a", "latitude": 0.5}\n{"longitude": null}\n')
    assert cli.main([*command(tmp_path, "--input", str(log)), "--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert [line.split("WARNING: ")[1] for line in shown.splitlines() if "WARNING" in line] == [
        "'user_id' is in none of the first records; did you mean userid?"
    ]


@pytest.mark.parametrize(
    ("region", "suggested", "status"),
    [
        ((52.3, 13.0, 52.7, 13.8), "--region=13,52.3,13.8,52.7", 2),  # in the Gulf of Aden, for Berlin
        ((51.1, 24.9, 51.7, 25.5), "", 0),  # Doha
        ((45.4, 9.1, 45.5, 9.3), "--region=9.1,45.4,9.3,45.5", 0),  # in the desert of Somalia, for Milan
        ((-40.5, 30.0, -40.0, 30.5), "", 0),  # at sea in either order
    ],
)
def test_a_region_in_another_order_is_named(
    region: tuple[float, ...], suggested: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused if it has no land, and else warned of: it may be right."""
    assert cli.main([*command(tmp_path, f"--region={','.join(map(str, region))}"), "--dry_run"]) == status
    shown = capsys.readouterr().err
    assert suggested in shown
    assert ("--region=" in shown) == bool(suggested)


def test_other_zones_are_warned_of_and_trips_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--region=8.5,41,8.8,41.3", "--day_column", "time", "--time_zone", "Europe/Lisbon"
    given = command(tmp_path, *options, "--user_id_column", "trip_id", "--period", "2026-11-20")
    (tmp_path / "log.csv").write_text("trip_id,latitude,longitude,time\n7,41.1,8.6,2026-11-20 09:00:00\n")
    assert cli.main([*given, "--dry_run"]) == 2
    assert "--user_id_column: trip_id" in capsys.readouterr().err
    assert cli.main([*given, "--title", "Trips", "--dry_run"]) == 0
    (shown,) = (line for line in capsys.readouterr().err.splitlines() if "warning: " in line)
    assert "the time zone Europe/Rome" in shown


@pytest.mark.parametrize(("period", "is_warned"), [((), True), (("--period", "2026-11-20"), False)])
def test_hours_of_all_days_have_a_warning(
    period: tuple[str, ...], is_warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = command(tmp_path, "--region=8.5,44,8.8,44.3", "--day_column", "time", "--hours", "8-9", *period)
    (tmp_path / "log.csv").write_text("user_id,latitude,longitude,time\n7,44.1,8.6,2026-11-20 09:00:00\n")
    assert cli.main([*given, "--dry_run"]) == 0
    assert ("give --period" in capsys.readouterr().err) == is_warned


@pytest.mark.parametrize(
    ("options", "is_warned"),
    [((), True), (("--day_column", "time"), False), (("--input", "{folder}/dt=2026-11-20/log.csv"), False)],
)
def test_a_period_that_selects_no_rows_has_a_warning(
    options: tuple[str, ...], is_warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (tmp_path / "log.csv", tmp_path / "dt=2026-11-20" / "log.csv"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("user_id,latitude,longitude,time\n7,44.1,8.6,2026-11-20 09:00:00\n")
    assert cli.main(["key", "new", f"{tmp_path}/key"]) == 0
    book = ["--ledger", f"{tmp_path}/l.db", "--dataset", "city", "--budget", "9/9d", "--key_file", f"{tmp_path}/key"]
    given = [*command(tmp_path, "--region=8.5,44,8.8,44.3", *book, "--period", "2026-11-20", "--trust", "central")]
    (tmp_path / "log.csv").write_text("user_id,latitude,longitude,time\n")
    assert cli.main([*given, *(one.format(folder=tmp_path) for one in options), "--dry_run"]) == 0
    assert ("whatever their days" in capsys.readouterr().err) == is_warned


def _java(place: Path) -> str:
    java = place / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    return f"--job_server_java_launcher={java}"


# Options of a job, and words of the message; none if the job can start.
ENGINES = {
    "no jar": (lambda place: ["--open_job_server", f"--flink_job_server_jar={place}/no.jar"], "make flink-jar"),
    "no Java": (lambda place: ["--open_job_server", "--job_server_java_launcher=/nowhere/java"], "was not found"),
    "others reach it": (lambda place: [_java(place)], "reachable through eth0"),
    "nobody answers": (lambda _: ["--job_endpoint", "127.0.0.1:1"], "127.0.0.1:1"),
    "a wrong option": (lambda _: ["--no_such_option", "1"], "--no_such_option"),
    "in order": (lambda place: ["--open_job_server", _java(place)], ""),
}


@pytest.mark.parametrize("case", list(ENGINES))
def test_an_engine_that_cannot_run_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_servers, "_network_interfaces", lambda: ["eth0"])
    (tmp_path / "job-server.jar").touch()
    monkeypatch.setenv("SFUMATO_FLINK_JAR", str(tmp_path / "job-server.jar"))
    make, words = ENGINES[case]
    options = ["--runner_config", "flink", *make(tmp_path), "--key_file", str(tmp_path / "key"), "--release_id", "one"]
    (tmp_path / "key").write_bytes(SECRET)
    (tmp_path / "key").chmod(0o600)
    assert cli.main(command(tmp_path, *options, "--dry_run")) == (2 if words else 0)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
