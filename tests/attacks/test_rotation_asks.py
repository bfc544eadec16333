"""On a night that does not ask a user, nothing that leaves the job depends on the user's records.

A rotation charges a user for the nights that ask their cohort. That is a promise about all other nights: with equal
keys, logs with and without the user give equal bytes there. And who is asked depends on the id and the key alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.pipelines.frame.inputs import InputFile
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Region
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.heatmap.transform import CountHeatmap, bind_key
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.user_hashes import ActiveCohort, cohort_of, rotation_key
from tests.attacks.jobs import charged_run, charges
from tests.conftest import make_logs, write_files
from tests.keys import SECRET, write_key
from tests.refreshes import CONFIG, Place
from tests.seeds import seeded_rng

COHORTS, USERS = 3, 474
OWN_SECRET = FixedSecret(bytes(range(32)))
ROTATION_KEY = rotation_key(OWN_SECRET, "city", COHORTS, "user_id")
REGION = Region(-1, 50, 1, 51)
# A user more makes a shard more if the noisy number without them is 105 or 210: then all noise differs. Noise of this
# epsilon, of scale 3.3, takes no cohort of some 158 so far but with a probability below 1e-7.
PARAMETERS = CountParameters(depth=5, shard_size=100, rotation=COHORTS, epsilon=30)


def table(users: int) -> pa.Table:
    """Three records of each of the users 0 .. users - 1."""
    rng = seeded_rng(0)
    columns = {"latitude": rng.uniform(50, 51, 3 * USERS + 3), "longitude": rng.uniform(-1, 1, 3 * USERS + 3)}
    return pa.table({"user_id": np.repeat(np.arange(USERS + 1), 3), **columns}).slice(0, 3 * users)


def state_of(logs: str, cohort: int) -> CountState:
    """The final state of a run that asks a cohort, under a key that other runs have too."""
    active_cohort = ActiveCohort(Rotation(cohort, COHORTS), ROTATION_KEY)
    key, place = RunKey.derive(OWN_SECRET, {"night": 1}), Path(logs) / f"{cohort}.state"
    with beam.Pipeline(runner=FnApiRunner()) as root:
        files = sorted(map(str, Path(logs).glob("*.parquet")))
        found = root | beam.Create(files) | CountHeatmap(REGION, PARAMETERS, key, active_cohort=active_cohort)
        _ = found | beam.Map(lambda state: place.write_bytes(pickle.dumps(state)))
    state = pickle.loads(place.read_bytes())
    assert isinstance(state, CountState)
    return state


@pytest.fixture(scope="module")
def with_and_without(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder: Path = tmp_path_factory.mktemp("logs")
    for users in (USERS + 1, USERS):
        write_files(table(users), folder / str(users), 2)
    return str(folder / str(USERS + 1)), str(folder / str(USERS))


@pytest.mark.false_alarm(1e-7)
@pytest.mark.parametrize("cohort", range(1, COHORTS + 1))
def test_a_user_shows_on_the_nights_that_ask_them_alone(with_and_without: tuple[str, str], cohort: int) -> None:
    of_user = int(cohort_of(pa.array([USERS]), ROTATION_KEY, COHORTS)[0])
    one, other = (state_of(logs, cohort) for logs in with_and_without)
    if cohort != of_user:
        assert one.population == other.population
        assert len(one.results) == len(other.results)
        for mine, theirs in zip(one.results, other.results, strict=True):
            assert mine.entry() == theirs.entry()
            assert mine.encoding == theirs.encoding
            np.testing.assert_array_equal(mine.counts, theirs.counts)
        return
    assert one.population.counted == other.population.counted + 1  # type: ignore[operator]
    # The user is in one of the sub-queries' disjoint shards, whose sums stand for those of all shards.
    mine, theirs = next(
        pair for pair in zip(one.results, other.results, strict=True) if not np.array_equal(*(q.counts for q in pair))
    )
    assert mine.counts.sum() - theirs.counts.sum() == pytest.approx(one.shard_plan.shards / mine.shards)


def test_another_cohort_has_other_noise() -> None:
    """The same key for two cohorts would give their difference without noise."""
    active_cohorts = [ActiveCohort(Rotation(cohort, COHORTS), ROTATION_KEY) for cohort in (1, 2)]
    run = RunKey.derive(OWN_SECRET, {})
    keys = [bind_key(run, REGION, PARAMETERS, LocationColumns(), None, one) for one in active_cohorts]
    assert keys[0].subkey("noise") != keys[1].subkey("noise")
    all_users = dataclasses.replace(PARAMETERS, rotation=1)
    assert bind_key(run, REGION, all_users, LocationColumns()).subkey("noise") != keys[0].subkey("noise")


# Two operators with one key, whose logs differ in one user, refresh nights that do not ask the user: nothing differs.
#
# In truth the key is bound to the files' digests, so that other logs have other noise. Here the digests are those of
# the files' names. What then differs between the two operators' folders, messages and exit statuses is what the user
# shows.


NIGHTS = [date(2026, 11, 16) + timedelta(days=number) for number in range(3)]
KEY = rotation_key(FixedSecret(SECRET), "city", 3, "user_id")


def user_of(cohort: int) -> int:
    """A user of a cohort."""
    users = np.arange(10_000, 10_100)
    return int(users[cohort_of(pa.array(users), KEY, 3) == cohort][0])


def write_nights(folder: Path, user: int | None) -> None:
    """Three nights of 1,800 users, and of one more who is in many places, first and last in the files."""
    for number, night in enumerate(NIGHTS):
        logs = make_logs(1_800, 2, seed=number)
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
    monkeypatch.setattr("sfumato.pipelines.operations.published_nights.datetime", clock)
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
        # The noisy count of 600 users has the scale 25: three times that is below 20 with a probability of 2e-11.
        assert place.refresh("--date", str(night)) == 0
        said = "\n".join(capsys.readouterr()).replace(str(folder), "")
        (place.folder / "published" / "releases" / str(night) / "said").write_text(said)
    return place


@pytest.mark.slow
@pytest.mark.false_alarm(1e-10)
@pytest.mark.parametrize("querying_night", [1, 2])
def test_nothing_differs_until_the_night_that_asks_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], same_noise: None, querying_night: int
) -> None:
    """Files and their sizes, messages, exit statuses and charges."""
    user = user_of(Rotation.of_night(NIGHTS[querying_night], 3).cohort)
    places = [refreshed(tmp_path / name, one, capsys) for name, one in (("with", user), ("without", None))]
    charged = [charges(place.folder) for place in places]
    # A later charge names what the night starts from: the answers of a night that asked the user.
    assert charged[0][: querying_night + 1] == charged[1][: querying_night + 1]
    for number, night in enumerate(NIGHTS[: querying_night + 1]):
        folders = [place.folder / "published" / "releases" / str(night) for place in places]
        mine, theirs = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
        assert {"answers.parquet", "nights.parquet", "manifest.json", "said"} < set(mine) == set(theirs)
        assert (mine == theirs) == (number != querying_night)  # the user shows where they are asked


@pytest.mark.slow
@pytest.mark.parametrize("other", ["device", "USER_ID"])
def test_a_cohort_of_another_column_of_ids_may_be_anybody(tmp_path: Path, other: str) -> None:
    """A person of cohort 1 by one id may be in cohort 2 by another, so the two charges add up."""
    logs = make_logs(300, 2, seed=0)
    devices = pa.array([f"d{one}" for one in logs["user_id"].to_pylist()])
    write_files(logs.append_column(other, devices), tmp_path / "logs", 2)
    write_key(tmp_path / "key")
    status = [
        charged_run(
            "heatmap", tmp_path / "logs", tmp_path, "--budget=1/30d", f"--rotation={number}/3",
            f"--user_id_column={column}", release_id=f"r{number}", epsilon=1,
        )
        for number, column in ((1, "user_id"), (2, "user_id"), (3, other))
    ]  # fmt: skip
    assert status == [0, 0, 3]
    assert len({one.rotation.partition for one in charges(tmp_path) if one.rotation is not None}) == 1
