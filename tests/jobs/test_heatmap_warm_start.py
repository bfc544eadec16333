"""A warm start through the job: against the oracle, what the release says of it, and what none can start from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.pipelines import cli
from sfumato.pipelines.inputs import match_files
from sfumato.schemas.region import Grid
from sfumato.transforms.heatmap.private_heatmap import PrivateHeatmap
from sfumato.transforms.heatmap.request import heatmap_parameters, start_of
from sfumato.transforms.heatmap.warm_start import digest
from sfumato.transforms.release.published_release import open_release
from tests.conftest import REGION, make_logs, write_files
from tests.digests import seal_again
from tests.jobs import oracle
from tests.jobs.test_heatmap import KEY, PAPER, SMALL, assert_same, command
from tests.seeds import seeded_rng


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(make_logs(3000, 2, seed=0), tmp_path_factory.mktemp("logs"), 3)


@pytest.fixture(scope="module")
def monday(logs: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("releases") / "on_monday"
    assert cli.main(command(logs, output, "--release_id", "monday")) == 0
    return output


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, PAPER, {"trust": "central"}], ids=["default", "paper", "central"])
def test_the_job_equals_the_oracle(logs: str, monday: Path, tmp_path: Path, options: dict[str, str]) -> None:
    start = start_of(open_release(monday), Grid(REGION, SMALL["depth"]))
    parameters, out = heatmap_parameters("adaptive", {**SMALL, **options}), tmp_path / "state"
    paths = [file.path for file in match_files(logs)]
    coder = beam.coders.registry.get_coder(object)
    with beam.Pipeline(runner=FnApiRunner()) as root:
        heatmap = PrivateHeatmap(REGION, parameters, KEY, prior=start.estimate)
        _ = root | beam.Create(paths) | heatmap | beam.Map(lambda found: out.write_bytes(coder.encode(found)))
    state = coder.decode(out.read_bytes())
    assert_same(state, oracle.heatmap(logs, REGION, parameters, KEY, prior=start.estimate))
    assert state.budget.spent == 4.0
    if options != PAPER:  # nothing is left to find out before the measurement
        assert len(state.results) == 1


def test_a_release_says_from_which_it_started_and_not_where_that_stood(logs: str, monday: Path, tmp_path: Path) -> None:
    assert cli.main(command(logs, tmp_path / "out", "--warm_start", str(monday), "--release_id", "tuesday")) == 0
    release, before = open_release(tmp_path / "out"), start_of(open_release(monday), Grid(REGION, 6))
    published = open_release(monday)
    assert np.array_equal(np.sort(before.estimate.counts), np.sort(published.cells["count"].to_numpy()))
    assert release.manifest["parameters"]["warm_start"] == {
        "release_id": "monday",
        "epsilon": 4.0,
        "digest": digest(before.estimate),
    }
    assert published.manifest["parameters"]["warm_start"] is None
    (asked,) = release.manifest["privacy"]["sub_queries"]
    assert asked["epsilon"] + release.manifest["privacy"]["population"]["epsilon"] == 4.0
    assert asked["shards"] == 10
    assert release.manifest["privacy"]["composition"] == "sequential"
    for file in (tmp_path / "out").iterdir():
        content = file.read_bytes()
        for secret in (monday.name, str(monday.parent)):
            assert secret.encode() not in content


@pytest.mark.slow
def test_another_earlier_release_gives_other_noise(logs: str, monday: Path, tmp_path: Path) -> None:
    """By seed and release id everything else is the same; the earlier map differs in one count's last place."""
    copy = tmp_path / "copy"
    shutil.copytree(monday, copy)
    cells = pq.read_table(copy / "cells.parquet")
    counts = cells["count"].to_numpy().copy()
    counts[0] = np.nextafter(counts[0], np.inf)
    pq.write_table(cells.set_column(cells.schema.get_field_index("count"), "count", [counts]), copy / "cells.parquet")
    seal_again(copy)
    starts = {"first": monday, "second": copy, "again": monday}
    found = {}
    for name, start in starts.items():
        assert cli.main(command(logs, tmp_path / name, "--warm_start", str(start), "--release_id", "tuesday")) == 0
        found[name] = open_release(tmp_path / name)
    assert np.array_equal(found["first"].density, found["again"].density)
    assert not np.array_equal(found["first"].density, found["second"].density)
    digests = {one.manifest["parameters"]["warm_start"]["digest"] for one in found.values()}
    assert len(digests) == 2


@pytest.mark.slow
def test_rates_start_from_a_release_without_and_with_them(monday: Path, tmp_path: Path) -> None:
    table = make_logs(3000, 1, seed=0)
    infected = seeded_rng(1).random(table.num_rows) < 0.3
    pattern = write_files(table.append_column("infected", [infected]), tmp_path / "logs", 2)
    rates = ("--auxiliary", "infected")
    assert cli.main(command(pattern, tmp_path / "one", *rates, "--warm_start", str(monday))) == 0
    assert cli.main(command(pattern, tmp_path / "two", *rates, "--warm_start", str(tmp_path / "one"))) == 0
    assert "rate" in open_release(tmp_path / "two").cells.columns
    assert len(open_release(tmp_path / "two").manifest["privacy"]["sub_queries"]) == 1


# --- what is no release to start from ---


def refused(capsys: pytest.CaptureFixture[str], logs: str, output: Path, *more: str) -> str:
    """The message with which the job ends, before any work."""
    assert cli.main(command(logs, output, *more)) == 2
    assert not output.exists()
    error = capsys.readouterr().err
    assert "to read" not in error
    assert "Traceback" not in error
    return error


def test_a_folder_without_a_release(logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "nowhere", Path(logs).parent / "log-0.parquet"):
        error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(place))
        assert f"warm_start: {place}: no release here" in error
    assert "warm_start: : no release here" in refused(capsys, logs, tmp_path / "out", "--warm_start", "")


@pytest.mark.parametrize("manifest", ["[]", "7", "null", '"text"', "{}", "{", ""])
def test_a_folder_with_another_manifest(
    logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], manifest: str
) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "manifest.json").write_text(manifest)
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(tmp_path / "strange"))
    assert f"warm_start: {tmp_path / 'strange'}: " in error


def test_another_jobs_release_and_an_evaluation(logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--input", logs, "--region", "-1,50,1,51", "--seed", "1"]
    assert cli.main(["histogram", "--output", str(tmp_path / "cells"), "--cells", "4", *shared]) == 0
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "manifest.json").write_text('{"format": "sfumato-evaluation/2"}')
    capsys.readouterr()
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(tmp_path / "cells"))
    assert "warm_start: a heatmap's release is needed, this one is of 'histogram'" in error
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(tmp_path / "table"))
    assert f"warm_start: {tmp_path / 'table'}: an evaluation on exact data" in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--region", "-1,50,1,51.5"), "warm_start: the release is of region -1,50,1,51"),
        (("--depth", "7"), "warm_start: the release has depth 6, this heatmap 7; give the same"),
        (("--method", "flat"), "warm_start: method flat has no warm start; use adaptive"),
        (("--method", "emd"), "warm_start: method emd has no warm start; use adaptive"),
    ],
)
def test_a_heatmap_that_does_not_fit(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert words in refused(capsys, logs, tmp_path / "out", "--warm_start", str(monday), *options)


@pytest.mark.parametrize("damage", ["cut", "missing", "empty", "noise", "column", "geometry"])
def test_a_damaged_release(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(monday, copy)
    file = copy / "cells.parquet"
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "column":
        pq.write_table(pq.read_table(file).drop_columns(["stddev"]), file)
        seal_again(copy)
    elif damage == "geometry":  # is not read: no damage to what is
        pq.write_table(pq.read_table(file).drop_columns(["geometry"]), file)
        seal_again(copy)
        assert cli.main(command(logs, tmp_path / "out", "--warm_start", str(copy))) == 0
        return
    else:
        middle = len(content) // 2
        file.write_bytes(
            {"cut": content[:middle], "empty": b"", "noise": content[:9] + bytes(middle) + content[-middle:]}[damage]
        )
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(copy))
    expected = {"missing": "cells.parquet is gone, which was published", "column": "the release's cells are damaged ("}
    assert "warm_start: " in error
    assert expected.get(damage, "cells.parquet is damaged") in error


def test_a_release_whose_noise_anybody_can_take_away(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It came from a seed. What is as unsafe itself may start from it."""
    arguments = command(logs, tmp_path / "out", "--warm_start", str(monday))
    at = arguments.index("--seed")
    assert cli.main([*arguments[:at], *arguments[at + 2 :]]) == 2
    error = capsys.readouterr().err
    assert "warm_start: anybody can guess the key of that release" in error
    assert "to read" not in error
    assert not (tmp_path / "out").exists()


def test_a_manifest_without_its_grid(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(monday, tmp_path / "copy")
    manifest = json.loads((monday / "manifest.json").read_text())
    del manifest["grid"]
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(manifest))
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(tmp_path / "copy"))
    assert "warm_start: the release's manifest lacks its region, grid or guarantee" in error
