"""Published releases and their catalog, as a reader has them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.ledger import Limit, Reservation
from sfumato.schemas.region import Grid
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.counting.estimator import unbiased_counts
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.release import release_index
from sfumato.transforms.release.catalog import disagreement, published_dates, read_folders
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.release_folder import publish
from tests.conftest import REGION
from tests.rejections import rejects
from tests.unit.privacy.ledger.helpers import charge, ledger
from tests.unit.release.city import city_release

# --- totals of cells of a release, with the standard deviation of their error ---


def test_totals_add_up_errors_that_go_together(tmp_path) -> None:
    made = city_release("adaptive")
    publish(str(tmp_path / "out"), made.files, "made-up", False)
    release = open_release(tmp_path / "out")
    cells = release.cells
    assert (cells["users_low"] <= cells["users_unbiased"].clip(lower=0) + 1e-9).all()
    assert (cells["users_unbiased"] <= cells["users_high"] + 1e-9).all()
    chosen = (cells["west"] < cells["west"].median()).to_numpy()
    users, stddev = release.total(chosen)
    assert users == pytest.approx(cells["users_unbiased"][chosen].sum())
    expected = unbiased_counts(made.estimate, made.state).total(chosen.astype(float))
    assert (users, stddev) == pytest.approx(expected)
    everybody, none = release.total(np.ones(len(cells)))
    assert (everybody, none) == pytest.approx(made.state.users_estimate(), abs=1e-6)
    with rejects("cells"):
        release.total(np.ones(len(cells) + 1))


def test_independent_errors_add_up_by_their_squares(tmp_path) -> None:
    publish(str(tmp_path / "out"), city_release("flat", depth=4).files, "made-up", False)
    release = open_release(tmp_path / "out")
    weights = np.linspace(0, 1, len(release.cells))
    users, stddev = release.total(weights)
    assert users == pytest.approx(release.cells["count"] @ weights)
    assert stddev == pytest.approx(np.sqrt(((release.cells["stddev"] * weights) ** 2).sum()))


def test_methods_that_cannot_know_their_error_say_lower_bound() -> None:
    assert "lower bound" in city_release("emd", depth=4).manifest["errors"]["stddev"]
    assert "totals.parquet" in city_release("adaptive").manifest["errors"]["sums"]


# --- releases that stand in a folder ---

MANIFEST: dict[str, Any] = {
    "format": "sfumato-release/2",
    "release_id": "monday",
    "ledger": {"hash": "h"},
    "privacy": {"epsilon": 1.0, "delta": 0.0},
    "region": asdict(REGION),
    "grid": {"depth": 6},
}
STANDING = Reservation(charge("monday"), 1, "h", "now", "digest")
HISTORY = History(3, "head", {"monday": STANDING}, {})


def release(**changes: Any) -> Release:
    return Release("folder", {**MANIFEST, **changes}, "digest")


def put(folder: Path, content: str = json.dumps(MANIFEST)) -> None:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(content)


def test_days_that_hold_a_release(tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    assert read_folders(str(tmp_path)).releases == {}
    for name in ("2026-11-20", "2026-11-18", ".2026-11-19.partial-x", "notes", "2026-11-1"):
        put(releases / name)
    put(releases / "2026-11-21", "{")
    (releases / "2026-11-22").mkdir()
    assert published_dates(str(tmp_path)) == ["2026-11-18", "2026-11-20", "2026-11-21"]
    assert list(read_folders(str(tmp_path)).releases) == ["2026-11-18", "2026-11-20"]


def test_the_digest_is_of_the_bytes_as_they_were_written(tmp_path: Path) -> None:
    text = json.dumps(MANIFEST, indent=7)
    put(tmp_path / "one", text)
    assert open_release(tmp_path / "one").digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "changes",
    [{"region": None}, {"region": {"west": 1}}, {"grid": None}, {"grid": {"depth": 99}}, {"grid": {"depth": "six"}},
     {"region": {**asdict(REGION), "west": float("nan")}}, {"region": {**asdict(REGION), "west": "far"}}]
)  # fmt: skip
def test_a_manifest_may_have_no_grid(changes: dict[str, Any]) -> None:
    assert release().grid == Grid(REGION, 6)
    assert release(**changes).grid is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"release_id": "tuesday"}, "release tuesday was never charged"),
        ({"release_id": None}, "release None was never charged"),
        ({"ledger": {"hash": "g"}}, "names a different entry"),
        ({"ledger": None}, "names a different entry"),
        ({"ledger": "h"}, "names a different entry"),
        ({"privacy": {"epsilon": 0.5}}, "states a different cost"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-9}}, "states a different cost"),
        ({"privacy": {"epsilon": 1.0, "rotation": {"cohort": 7, "cohorts": 30}}}, "states a different cohort"),
    ],
)
def test_what_a_release_and_the_ledger_disagree_on(changes: dict[str, Any], words: str) -> None:
    assert disagreement(release(), HISTORY) is None
    assert words in str(disagreement(release(**changes), HISTORY))


@pytest.mark.parametrize(
    "stated", [None, {"cohort": 8, "cohorts": 30}, {"cohort": 7, "cohorts": 31}, {"cohort": 7}, "7/30"]
)
def test_a_release_states_the_cohort_that_it_was_charged_for(stated: Any) -> None:
    """A release that asked other users than its charge says would be missing from their accounts."""
    other_cohort = replace(STANDING, charge=replace(STANDING.charge, rotation=Rotation(7, 30, "a" * 32)))
    history = replace(HISTORY, reservations={"monday": other_cohort})
    true = {"epsilon": 1.0, "delta": 0.0, "rotation": {"cohort": 7, "cohorts": 30}}
    assert disagreement(release(privacy=true), history) is None
    assert "states a different cohort" in str(disagreement(release(privacy={**true, "rotation": stated}), history))


def test_a_release_that_was_changed() -> None:
    changed = replace(release(), digest="another")
    assert "has been changed since it was published" in str(disagreement(changed, HISTORY))
    unnoted = replace(HISTORY, reservations={"monday": replace(STANDING, manifest=None)})  # its writer was killed
    assert disagreement(changed, unnoted) is None


def test_the_page_says_what_was_spent_on_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release is charged and published while the page is written: the next round knows of both."""
    seen: list[tuple[list[str], int]] = []

    def publish(day: str) -> None:
        ledger(tmp_path).reserve(charge(day, day), [Limit.parse("9/9d")])
        put(tmp_path / "releases" / day, json.dumps({**MANIFEST, "release_id": day}))

    def write(root: str, releases: dict[str, Any], removed: set[str], damaged: list[Any], history: History) -> None:
        seen.append((list(releases), len(history.charges)))
        if len(seen) == 1:
            publish("2026-11-20")

    monkeypatch.setattr(release_index, "_write_all", write)
    publish("2026-11-19")
    release_index.update_timeline(str(tmp_path), str(tmp_path / "ledger.db"))
    assert seen == [(["2026-11-19"], 1), (["2026-11-19", "2026-11-20"], 2)]


def test_a_published_table_is_read_without_other_threads() -> None:
    """A thread of Arrow's that still holds a file of Python's when the interpreter ends aborts the process."""
    code = (
        "import io, os, pyarrow, pyarrow.parquet\n"
        "from sfumato.schemas.parquet_table import parquet_table\n"
        "file = io.BytesIO()\n"
        "pyarrow.parquet.write_table(pyarrow.table({'a': range(9999), 'b': range(9999)}), file, row_group_size=99)\n"
        "before = os.listdir('/proc/self/task')\n"
        "table = parquet_table(file.getvalue(), ['b'])\n"
        "assert os.listdir('/proc/self/task') == before\n"
        "assert table['b'].to_pylist() == list(range(9999))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
