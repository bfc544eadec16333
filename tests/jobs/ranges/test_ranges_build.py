"""`sfumato ranges build`: the release, its key, its log, its charge, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.schemas.ranges import Boxes
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.ranges import query_files
from sfumato.transforms.ranges.methods import PlainGrid
from sfumato.transforms.ranges.model import GridModel
from sfumato.transforms.ranges.model_file import open_model
from sfumato.transforms.ranges.networks import local
from sfumato.transforms.ranges.plan import METHODS
from sfumato.transforms.release.published_release import open_release
from tests.conftest import make_logs, write_files
from tests.digests import seal_again
from tests.jobs.moment_logs import contents, shows
from tests.keys import SECRET, write_key
from tests.leaks import holds

USERS, RECORDS = 1877, 3
FILES = {"basemap.json", "index.html", "manifest.json", "model.npz", "ranges.png"}
REGION = ["--region", "-1,50,1,51"]
SIZES = ["--sizes", "500,4000"]
GAUSSIAN = ["--delta", "1e-6"]
GRID = ["--method", "grid", "--cell_width", "4000"]
BUDGET = ["--dataset", "rides", "--period", "2026-11-20", "--budget", "0.5/1d"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs in three files of several row groups, and a key."""
    folder = tmp_path_factory.mktemp("ranges")
    write_files(make_logs(USERS, RECORDS, 0), folder / "logs", 3)
    write_key(folder / "key")
    return folder


def build(folder: Path, output: Path, *more: str, epsilon: str = "0.5", sizes: bool = True) -> int:
    """The exit status of the job, of the key and release `monday` where no seed is given."""
    key = [] if "--seed" in more else ["--key_file", str(folder / "key"), "--release_id", "monday"]
    for file in (folder / "logs").iterdir():
        os.utime(file, (1e9, 1e9))
    with chdir(folder):
        where = ["--input", "logs/*.parquet", "--output", str(output), *REGION, *(SIZES if sizes else [])]
        return cli.main(["ranges", "build", *where, "--epsilon", epsilon, *key, *more])


@pytest.fixture(scope="module")
def published(folder: Path) -> Path:
    """The release `monday` of a grid."""
    assert build(folder, folder / "published", *GRID) == 0
    return folder / "published"


@pytest.fixture(scope="module")
def heatmap(folder: Path) -> Path:
    """A published heatmap of the same logs."""
    where = ["--input", str(folder / "logs" / "*.parquet"), "--output", str(folder / "heatmap"), *REGION]
    own = ["--trust", "central", "--depth", "7", "--population", str(USERS), "--key_file", str(folder / "key")]
    assert cli.main(["heatmap", *where, *own]) == 0
    return folder / "heatmap"


# --- what is published ---


@pytest.mark.slow
@pytest.mark.false_alarm(5e-9)  # two errors at 6.2 deviations, of noise that is a sum over many cells
def test_the_release_answers_where_people_are(folder: Path, published: Path) -> None:
    assert {path.name for path in published.iterdir()} == FILES
    model, manifest = open_model(published), open_release(published).manifest
    assert (model.method, model.epsilon) == ("grid", 0.5)
    assert manifest["privacy"]["epsilon"] == 0.5
    assert manifest["parameters"]["options"] == {"cell_width": 4000.0}
    logs = pq.read_table(folder / "logs")
    x, y = logs["longitude"].to_numpy(), logs["latitude"].to_numpy()
    size = 15_000.0

    def in_square(middle: int) -> np.ndarray:
        return (abs(x - x[middle]) < size / 141_458) & (abs(y - y[middle]) < size / 111_195 / 2)

    # The place among some with the most people round it: one of five lumps, none of which is near the borders.
    middle = max(range(300), key=lambda one: in_square(one).sum())
    inside = in_square(middle)
    share = np.bincount(np.unique(logs["user_id"].to_numpy(), return_inverse=True)[1], inside / RECORDS)
    assert share.sum() > 100
    answers, covered = model.answer(np.array([x[middle], -1.0]), np.array([y[middle], 51.0]), np.array([size, 2000.0]))
    assert covered.tolist() == [1.0, pytest.approx(0.25, abs=0.01)]  # the second is round the corner, where nobody is
    # One of a user's records counts: it is in the square with a probability of the square's share.
    probability = (share * (1 - share)).sum()
    assert abs(answers.users[0] - share.sum()) < 6.2 * np.sqrt(answers.stddev[0] ** 2 + probability)
    assert answers.users[1] < 6.2 * answers.stddev[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (["adaptive", "--depth", "7", "--trust", "secagg", "--dropout", "0.3", "--shard_size", "300"], "tree"),
        (["grid", "--cell_width", "4000", "--trust", "secagg", "--population", str(USERS), "--dropout", "0.3"], "grid"),
        (["grid", *GAUSSIAN], "grid"),
        (["grid", "--trust", "secagg", "--population", str(USERS), *GAUSSIAN], "grid"),
    ],
    ids=lambda one: " ".join(one),
)
def test_every_method_publishes(folder: Path, tmp_path: Path, method: list[str], kind: str) -> None:
    assert build(folder, tmp_path / "out", "--method", *method) == 0
    manifest = open_release(tmp_path / "out").manifest
    assert (manifest["method"], manifest["results"]["kind"]) == (method[0], kind)
    privacy = manifest["privacy"]
    assert privacy["trust"] == ("secagg" if "secagg" in method else "central")
    assert (privacy["noise"], privacy["delta"], "rho" in privacy) == (
        ("gaussian", 1e-6, True) if "--delta" in method else ("laplace", 0.0, False)
    )
    model = open_model(tmp_path / "out")
    everywhere, _ = model.answer(np.array([0.0]), np.array([50.5]), np.array([300_000.0]))
    assert abs(everywhere.users[0] - USERS) < 10 * everywhere.stddev[0]


# --- its key, its charge, its log ---


@pytest.mark.slow
def test_nothing_raw_is_in_the_release_or_in_the_log(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = USERS * RECORDS
    assert build(folder, tmp_path / "out", *GRID, "--log_format", "json") == 0
    told = capfd.readouterr().err
    population = open_release(tmp_path / "out").manifest["privacy"]["population"]
    raw = [rows, *(file.stat().st_size for file in (folder / "logs").iterdir())]
    if population["users"] != USERS:  # noise may be 0, once in some hundred keys
        raw.append(USERS)
    # Ids of nine digits, as numbers of their own: others may be part of a fraction or digest, once in 500 seeds.
    ids = [user for user in pq.read_table(folder / "logs")["user_id"].to_pylist()[:100] if user > 10**8]
    assert len(ids) > 50
    for text in (told, *((tmp_path / "out" / name).read_text() for name in ("manifest.json", "index.html"))):
        assert [number for number in raw if shows(text, number)] == []
        assert not any(shows(text, user) for user in ids)
    for content in (*contents(tmp_path / "out").values(), told.encode()):
        assert not holds(content, SECRET)
    events = [json.loads(line) for line in told.splitlines()]
    assert [one["event"] for one in events if one["event"] not in ("read_file", "no_coast", "no_ledger")] == [
        "files",
        "read_logs",
    ]
    (read,) = [one for one in events if one["event"] == "read_logs"]
    assert (read["users"], read["epsilon"]) == (population["users"], population["epsilon"])
    # What the search is worth: operations data are shown when asked for.
    assert build(folder, tmp_path / "out", *GRID, "--log_format", "json", "--verbose", "--overwrite") == 0
    assert shows(capfd.readouterr().err, rows)


@pytest.mark.slow
def test_it_is_charged_once(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = ["--ledger", str(tmp_path / "ledger.db"), *BUDGET]
    for _ in range(2):  # the second finds it published
        assert build(folder, tmp_path / "out", *GRID, *ledger) == 0
    (charge,) = open_ledger(str(tmp_path / "ledger.db")).history().charges
    assert (charge.job, float(charge.epsilon), float(charge.delta)) == ("ranges", 0.5, 0.0)
    check = ["ledger", "verify", "--ledger", str(tmp_path / "ledger.db"), "--releases", str(tmp_path / "out")]
    assert cli.main(check) == 0
    assert "1 release charged as stated, and unchanged" in capsys.readouterr().out
    assert build(folder, tmp_path / "more", *GRID, *ledger, "--release_id", "tuesday") != 0
    assert "may spend epsilon 0.5 in 1 day" in capsys.readouterr().err
    assert not (tmp_path / "more").exists()


# --- what is refused ---


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--sizes", "500,500"], "sizes: give LOW,HIGH"),
        (["--sizes", "500"], "sizes: must be numbers LOW,HIGH, got '500'"),
        (["--cell_width", "nan"], "cell_width: must be a number"),
        (["--depth", "8"], "depth: applies only with --method adaptive"),
        (["--shard_size", "100"], "shard_size: applies only with --trust secagg"),
        (["--max_dwell", "60"], "max_dwell: requires --time_column"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_bad_requests(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert build(folder, tmp_path / "out", *GRID, *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("trust", [[], ["--trust", "secagg"]], ids=["central", "secagg"])
def test_bad_data(tmp_path: Path, capsys: pytest.CaptureFixture[str], trust: list[str]) -> None:
    write_key(tmp_path / "key")
    """Users without a usable record are refused by noisy counts; with nobody usable a model of noise is no failure."""
    logs = make_logs(3_000, 1, 0)
    for change in (pa.array(np.full(3_000, 70.0)), pa.array(np.full(3_000, np.nan))):
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
        write_files(logs.set_column(1, "latitude", change), tmp_path / "logs", 2)
        assert build(tmp_path, tmp_path / "out", *GRID, *trust, "--epsilon", "30") == 1
        assert "have no usable record" in capsys.readouterr().err
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", "manifest.json"}
        if not trust:  # secagg plans for the public --population, which nobody would contradict
            assert build(tmp_path, tmp_path / "out", *GRID, "--max_bad_fraction", "1") == 0
        shutil.rmtree(tmp_path / "out")


@dataclass(frozen=True)
class Weighted(PlainGrid):
    """A grid that takes a workload, and keeps the number of its squares as the noise."""

    NAME: ClassVar[str] = "weighted"

    workload: Boxes | None = None

    def model(self, counts: Any, spec: Any, trained: Any) -> GridModel:
        squares = 0 if self.workload is None else len(self.workload)
        return GridModel(replace(counts, noise_stddev=float(squares)))


@pytest.mark.slow
def test_a_workload(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, Weighted.NAME, Weighted)
    squares = {"x": np.array([-1.0, 0.5, 9.0]), "y": np.array([51.0, 50.5, 50.5]), "size": np.array([900, 800, 700.0])}

    monkeypatch.setattr(query_files, "MIN_SQUARES", 2)

    def build_with_workload(name: str, columns: dict[str, Any], *more: str) -> int:
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        own = ["--method", "weighted", "--cell_width", "4000", "--workload", str(tmp_path / f"{name}.parquet")]
        return build(folder, tmp_path / name, *own, *more)

    assert build_with_workload("good", squares) == 0
    assert open_model(tmp_path / "good").model.grid.noise_stddev == 2  # type: ignore[attr-defined]  # one lies outside
    told = open_release(tmp_path / "good").manifest["parameters"]["options"]["workload"]
    assert (told["squares"], len(told["digest"])) == (2, 64)
    monkeypatch.setattr(query_files, "MAX_SQUARES", 5)
    for name, columns, message in (
        ("no x", {"y": squares["y"], "size": squares["size"]}, "no column 'x'"),
        ("nan", {**squares, "y": np.array([51.0, np.nan, 50.5])}, "row 2 has nan for y"),
        ("negative", {**squares, "size": np.array([900.0, 800.0, -1.0])}, "row 3 has -1 for size"),
        ("outside", {**squares, "x": np.full(3, 9.0)}, "lies in the region"),
        ("empty", {key: value[:0] for key, value in squares.items()}, "lies in the region"),
        ("few", {key: value[1:] for key, value in squares.items()}, "1 squares of"),
        ("many", {key: np.tile(value, 2) for key, value in squares.items()}, "holds 6 squares, and the limit is 5"),
    ):
        assert build_with_workload(name, columns) == 2
        error = capsys.readouterr().err
        assert "workload: " in error
        assert message in error
    assert build_with_workload("other", squares, "--method", "grid") == 2
    assert "workload: applies only with --method auto or snh or weighted" in capsys.readouterr().err


@pytest.mark.slow
def test_networks_are_learned_by_default(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command to the model's file, in little; the same command makes the same file."""
    for name, value in {"WORLDS": 1, "SQUARES_PER_WORLD": 4000, "EPOCHS": 2}.items():
        monkeypatch.setattr(local, name, value)
    for name in ("one", "two"):
        assert build(folder, tmp_path / name, "--models", "2", epsilon="0.1") == 0
    assert capfd.readouterr().err.count("trained network 2 of 2") == 2
    assert (tmp_path / "one" / "model.npz").read_bytes() == (tmp_path / "two" / "model.npz").read_bytes()
    model, manifest = open_model(tmp_path / "one"), open_release(tmp_path / "one").manifest
    assert (model.method, manifest["method"], manifest["parameters"]["method"]) == ("snh", "snh", "auto")
    assert (manifest["results"]["kind"], set(manifest["results"]["learned_with"])) == ("network", {"jax", "optax"})
    answers, inside = model.answer([0.0, 0.5], [50.5, 50.4], 2000)
    assert np.isfinite(answers.users).all()
    assert (answers.stddev > 0).all()
    assert inside.tolist() == [1.0, 1.0]


# --- from a published heatmap ---


def of_heatmap(heatmap: Path, output: Path, *more: str) -> int:
    return cli.main(["ranges", "build", "--release", str(heatmap), "--output", str(output), *SIZES, *more])


@pytest.mark.slow
def test_a_published_heatmap_answers_as_its_cells_say(
    heatmap: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert of_heatmap(heatmap, tmp_path / "out", "--release_id", "of-heatmap") == 0
    assert capsys.readouterr().out.strip().endswith("index.html")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    model, manifest = open_model(tmp_path / "out"), open_release(tmp_path / "out").manifest
    earlier = open_release(heatmap).manifest
    assert (manifest["release_id"], manifest["method"]) == ("of-heatmap", "adaptive")
    assert manifest["parameters"]["release"]["release_id"] == earlier["release_id"]
    assert manifest["privacy"]["epsilon"] == earlier["privacy"]["epsilon"]
    assert manifest["privacy"]["randomness"] == earlier["privacy"]["randomness"]
    cells = open_release(heatmap).cells
    assert manifest["results"]["parts"] == len(cells)
    leaf = cells[cells["depth"] == cells["depth"].max()].iloc[0]
    everywhere, _ = model.answer(np.array([0.0]), np.array([50.5]), np.array([300_000.0]))
    assert everywhere.users[0] == pytest.approx(cells["count"].clip(0).sum())
    # The square that just holds a finest cell is higher than wide, or wider than high: its cell is part of it.
    middle = np.array([(leaf["west"] + leaf["east"]) / 2]), np.array([(leaf["south"] + leaf["north"]) / 2])
    answer, _ = model.answer(*middle, np.array([111_195 * (leaf["north"] - leaf["south"])]))
    assert 0 <= answer.users[0] <= cells["count"].clip(0).sum()


@pytest.mark.slow
def test_what_a_heatmap_says_need_not_be_said_again(
    folder: Path, heatmap: Path, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, message in (
        (["--epsilon", "1"], "epsilon: cannot be combined with --release"),
        (["--input", "x"], "input: cannot be combined with --release"),
        (["--region=-1,50,1,51"], "region: cannot be combined with --release"),
        (
            ["--ledger", "x", "--dataset", "city", "--period", "2026-11-20", "--key_file", "k"],
            "dataset: cannot be combined with --release",
        ),
        (["--method", "grid"], "method: must be adaptive with --release, got 'grid'"),
        (["--release_id", "../here"], "release_id: must contain only letters, digits, - and _"),
        (["--sizes", "500,200000"], "sizes: a square of 200000 m does not fit"),
    ):
        assert of_heatmap(heatmap, tmp_path / "out", *more) == 2
        assert message in capsys.readouterr().err
    assert of_heatmap(folder / "nothing", tmp_path / "out") == 2
    assert "release: " in capsys.readouterr().err
    assert of_heatmap(published, tmp_path / "out") == 2
    assert "release: " in capsys.readouterr().err
    shutil.copytree(heatmap, tmp_path / "damaged")
    cells = pq.read_table(tmp_path / "damaged" / "cells.parquet")
    pq.write_table(cells.slice(1), tmp_path / "damaged" / "cells.parquet")
    assert of_heatmap(tmp_path / "damaged", tmp_path / "out") == 2
    assert "cells.parquet is damaged: it differs from the published file" in capsys.readouterr().err
    seal_again(tmp_path / "damaged")
    assert of_heatmap(tmp_path / "damaged", tmp_path / "out") == 2
    assert "release: the release's cells are damaged" in capsys.readouterr().err
    assert of_heatmap(heatmap, tmp_path / "out", "--dry_run") == 0
    assert "charges    nothing" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    assert of_heatmap(heatmap, tmp_path / "out") == 2
    assert of_heatmap(heatmap, tmp_path / "out", "--overwrite") == 0
