"""A job of its own that charges a ledger, beside a refresh."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.pipelines import cli
from tests.jobs.test_refresh import Place, days, place  # noqa: F401  (fixtures)


def job(at: Place, output: str, *more: str) -> list[str]:
    return [
        "heatmap", "--input", str(at.folder / "logs/dt=2026-11-20/*.parquet"),
        "--output", str(at.folder / output), "--region", "-1,50,1,51",
        "--depth", "6", "--epsilon", "4", "--shard_size", "300", "--dropout", "0.4", *more,
    ]  # fmt: skip


def books(at: Place, *budget: str) -> list[str]:
    ledger = ["--ledger", str(at.folder / "ledger.db"), "--dataset", "city", "--period", "2026-11-20"]
    return [*ledger, "--key_file", str(at.folder / "key"), *(f"--budget={one}" for one in budget)]


@pytest.mark.slow
def test_a_job_charges_a_ledger(place: Place, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert cli.main(job(place, "one", *books(place))) == 2
    assert "has no limits for dataset 'city'" in capsys.readouterr().err
    assert cli.main(job(place, "one", *books(place, "8/1d"))) == 0
    assert cli.main(job(place, "two", *books(place))) == 0  # another release id, by chance
    assert cli.main(job(place, "three", *books(place))) == 3
    assert not (place.folder / "three").exists()
    assert place.ledger("verify", "--releases", str(place.folder / "one"), "--releases", str(place.folder / "two")) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "city"], "dataset: needs a ledger; give --ledger as well"),
        (
            ["--ledger", "L", "--dataset", "c", "--period", "2026-11-20", "--budget", "9/1d"],
            "a ledger needs a kept key",
        ),
        (["--ledger", "L", "--period", "2026-11-20"], "dataset: --ledger needs it"),
        (["--ledger", "L", "--dataset", "city"], "period: --ledger needs it"),
        (["--ledger", "L", "--dataset", "c", "--period", "x", "--budget", "1/1d"], "period: write a date"),
        (["--ledger", "L", "--dataset", "c", "--period", "2026-11-20", "--budget", "1"], "budget: write EPSILON/DAYSd"),
        (["--ledger", "L", "--dataset", "a b", "--period", "2026-11-20", "--budget", "9/1d"], "dataset: letters"),
        (
            ["--ledger", "L", "--dataset", "c", "--period", "2026-11-20", "--budget", "9/1d", "--seed", "1"],
            "seed: anybody",
        ),
    ],
)
def test_bad_ledger_options(place: Place, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    options = [str(place.folder / "ledger.db") if one == "L" else one for one in options]
    assert cli.main(job(place, "out", *options)) == 2
    assert message in capsys.readouterr().err
    assert not (place.folder / "ledger.db").exists()
    assert not (place.folder / "out").exists()


def test_a_job_run_again_returns_its_release(place: Place, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    key = ["--key_file", str(place.folder / "key"), "--release_id", "mine"]
    keyed = job(place, "one", *books(place, "4/1d"), *key)
    assert cli.main(keyed) == 0
    assert cli.main(keyed) == 0
    assert "mine is published already; nothing is charged" in capsys.readouterr().err
    assert place.entries == 3


@pytest.mark.parametrize(
    "arguments",
    [["verify", "--budget", "1/1d"], ["show", "--releases", "x"], ["limit", "--dataset", "c"],
     ["limit", "--budget", "1/1d"], ["limit", "--dataset", "a b", "--budget", "1/1d"], ["audit"], ["show"], ["verify"]],
)  # fmt: skip
def test_bad_ledger_commands(tmp_path: Path, arguments: list[str]) -> None:
    assert cli.main(["ledger", *arguments, "--ledger", str(tmp_path / "ledger.db")]) == 2
    assert not (tmp_path / "ledger.db").exists()


def test_no_release_starts_from_one_that_nobody_charged(place: Place, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert cli.main(job(place, "published/releases/2026-11-18")) == 0
    assert place.refresh("--date", "2026-11-19") == 4
    warm = ["--warm_start", str(place.folder / "published/releases/2026-11-18")]
    assert cli.main(job(place, "warm", *books(place, "4/1d"), *warm)) == 2
    assert "is not in the ledger" in capsys.readouterr().err
    assert not (place.folder / "ledger.db").exists()
