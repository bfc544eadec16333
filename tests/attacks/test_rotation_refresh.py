"""Two operators with one key, whose logs differ in one user, refresh nights that do not ask the user: nothing differs.

In truth the key is bound to the files' digests, so that other logs have other noise. Here the digests are those of the
files' names. What then differs between the two operators' folders, messages and exit statuses is what the user shows.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from sfumato.pipelines import cli
from sfumato.pipelines.inputs import InputFile
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.keys import FixedSecret
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.user_hashes import cohort_of, rotation_key
from tests.conftest import make_logs, write_files
from tests.keys import SECRET, write_key
from tests.refreshes import CONFIG, Place

NIGHTS = [date(2026, 11, 16) + timedelta(days=number) for number in range(3)]
KEY = rotation_key(FixedSecret(SECRET), "city", 3)


def user_of(cohort: int) -> int:
    """A user of a cohort."""
    users = np.arange(10_000, 10_100)
    return int(users[cohort_of(pa.array(users), KEY, 3) == cohort][0])


def write_nights(folder: Path, user: int | None) -> None:
    """Three nights of 900 users, and of one more who is in many places, first and last in the files."""
    for number, night in enumerate(NIGHTS):
        logs = make_logs(900, 2, seed=number)
        if user is not None:
            places = make_logs(40, 2, seed=50 + number)
            own = places.set_column(0, "user_id", pa.array([user] * len(places), logs["user_id"].type))
            logs = pa.concat_tables([own.slice(0, 40), logs, own.slice(40)])
        write_files(logs, folder / f"dt={night}", 2)


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of names in place of the contents', one clock, and no random numbers in the ledger's entries."""
    name = property(lambda file: hashlib.sha256("/".join(file.path.split("/")[-2:]).encode()).hexdigest())
    monkeypatch.setattr(InputFile, "digest", name)
    now = datetime(2026, 12, 1, tzinfo=UTC)
    clock = SimpleNamespace(now=lambda _: now, fromisoformat=datetime.fromisoformat)
    monkeypatch.setattr("sfumato.transforms.privacy.ledger.ledger.datetime", clock)
    monkeypatch.setattr("sfumato.pipelines.published_nights.datetime", clock)
    nonce = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="0" * 32))
    monkeypatch.setattr("sfumato.transforms.privacy.ledger.ledger.uuid", nonce)


def refreshed(folder: Path, user: int | None, capsys: pytest.CaptureFixture[str]) -> Place:
    """Publishes the nights of an operator, and keeps what each of them says in the file `said`."""
    write_nights(folder / "nights", user)
    (folder / "place").mkdir()
    options = {**CONFIG["options"], "trust": "central", "dropout": None}
    changes = {"rotation": 3, "budget": [{"epsilon": 4, "days": 3}], "min_users": 20, "options": options}
    place = Place(folder / "place", folder / "nights", **changes)
    for night in NIGHTS:
        capsys.readouterr()
        # The noisy count of 300 users has the scale 25: below 20 with probability 1e-5 at most.
        assert place.refresh("--date", str(night)) == 0
        said = "\n".join(capsys.readouterr()).replace(str(folder), "")
        (place.folder / "published" / "releases" / str(night) / "said").write_text(said)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("asked", [1, 2])
def test_nothing_differs_until_the_night_that_asks_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], same_noise: None, asked: int
) -> None:
    """Files and their sizes, messages, exit statuses and charges."""
    user = user_of(Rotation.of_night(NIGHTS[asked], 3).cohort)
    places = [refreshed(tmp_path / name, one, capsys) for name, one in (("with", user), ("without", None))]
    charges = [open_ledger(str(place.folder / "ledger.db")).history().charges for place in places]
    # A later charge names what the night starts from: the answers of a night that asked the user.
    assert charges[0][: asked + 1] == charges[1][: asked + 1]
    for number, night in enumerate(NIGHTS[: asked + 1]):
        folders = [place.folder / "published" / "releases" / str(night) for place in places]
        mine, theirs = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
        assert {"answers.parquet", "nights.parquet", "manifest.json", "said"} < set(mine) == set(theirs)
        assert (mine == theirs) == (number != asked)  # the user shows where they are asked


@pytest.mark.slow
@pytest.mark.parametrize("other", ["device", "USER_ID"])
def test_a_cohort_of_another_column_of_ids_may_be_anybody(tmp_path: Path, other: str) -> None:
    """A person of cohort 1 by one id may be in cohort 2 by another, so the two charges add up."""
    logs = make_logs(300, 2, seed=0)
    devices = pa.array([f"d{one}" for one in logs["user_id"].to_pylist()])
    write_files(logs.append_column(other, devices), tmp_path / "logs", 2)
    write_key(tmp_path / "key")
    status = []
    for number, column in ((1, "user_id"), (2, "user_id"), (3, other)):
        arguments = ["--input", tmp_path / "logs", "--region", "-1,50,1,51", "--depth", 5, "--epsilon", 1]
        arguments += ["--output", tmp_path / f"r{number}", "--release_id", f"r{number}", "--key_file", tmp_path / "key"]
        arguments += ["--ledger", tmp_path / "ledger.db", "--dataset", "city", "--period", "2026-11-20"]
        arguments += ["--budget", "1/30d", "--rotation", f"{number}/3", "--user_id_column", column]
        status.append(cli.main(["heatmap", *map(str, arguments)]))
    assert status == [0, 0, 3]
    charges = open_ledger(str(tmp_path / "ledger.db")).history().charges
    assert len({one.rotation.partition for one in charges if one.rotation is not None}) == 1
