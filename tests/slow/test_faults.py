"""Killed at any step, alone or beside another run: no release without its charge, no charge twice, no half release."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sfumato.schemas.errors import LedgerError
from tests.conftest import make_logs, write_files
from tests.jobs.faults import KILLED, BucketPlace, LocalPlace, Scene, forget_the_charge, steps_of
from tests.seeds import seeded_rng

# Where an earlier test of the process has started JAX, it warns of forks. The forked runs here do not use it.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
DAYS = ["2026-11-19", "2026-11-20"]
SCENARIOS = 200
CHUNKS = 20
EXHAUSTIVE = pytest.mark.exhaustive
Make = Callable[[str], Scene]  # of a job


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("days")
    for number, day in enumerate(DAYS):
        write_files(make_logs(600, 1, seed=number), folder / f"dt={day}", 2)
    return folder


def scene(folder: Path, logs: Path, job: str) -> Scene:
    folder.mkdir(parents=True, exist_ok=True)
    return Scene(folder, job, str(logs), LocalPlace(folder))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, logs: Path) -> dict[str, list[str]]:
    """The steps of a run that nobody kills, by job."""
    found = {}
    for job in ("heatmap", "histogram"):
        calm = scene(tmp_path_factory.mktemp(job), logs, job)
        assert calm.wait([calm.start(DAYS[0], None)]) == [0]
        assert calm.problems == []
        calm.check_finished(DAYS[:1])
        assert calm.problems == []
        found[job] = steps_of(calm)
    return found


def play(make: Make, steps: dict[str, list[str]], seed: int) -> tuple[Scene, list[str]]:
    """One scenario: a day, now and then two, whose runs are killed, some beside another one, and run again."""
    rng = seeded_rng(seed)
    job = "heatmap" if rng.random() < 0.6 else "histogram"
    one = make(job)
    deaths = []
    days = DAYS[: 1 + (rng.random() < 0.25)]
    for day in days:
        for _ in range(1 + (rng.random() < 0.3)):  # runs that are killed, one after the other or two at once
            at = [int(rng.integers(len(steps[job]))) for _ in range(rng.integers(1, 3))]
            if len(at) == 2 and rng.random() < 0.5:
                at[1] = 10**6  # the second one lives
            statuses = one.wait([one.start(day, kill) for kill in at])
            deaths += [
                steps[job][min(kill, len(steps[job]) - 1)]
                for kill, status in zip(at, statuses, strict=True)
                if status == KILLED
            ]
            if not set(statuses) <= {0, KILLED}:
                one.problems.append(f"exit statuses {statuses}: {one.told()}")
            one.look()
        statuses = one.wait([one.start(day, None) for _ in range(1 + (rng.random() < 0.25))])
        if set(statuses) != {0}:
            one.problems.append(f"a re-run fails, {statuses}: {one.told()}")
    one.check_finished(days)
    return one, deaths


def test_a_run_has_all_the_steps_that_matter(steps: dict[str, list[str]]) -> None:
    for found in steps.values():
        names = list(dict.fromkeys(found))
        assert names == [
            "before ledger append", "after ledger append", "before assembly", "after assembly",
            "before file of the release", "after file of the release", "before rename of the release",
            "after rename of the release", "before file of the timeline", "before rename of a file of the timeline",
            "after rename of a file of the timeline", "after file of the timeline",
        ]  # fmt: skip
        assert found.count("before ledger append") == 3  # limits, charge, publication
        assert found.index("before assembly") > found.index("after ledger append") + 1
    assert len(steps["heatmap"]) > 25


@pytest.mark.parametrize("number", [0, 2])
def test_a_run_removes_what_a_killed_one_left_of_the_page(
    tmp_path: Path, logs: Path, steps: dict[str, list[str]], number: int
) -> None:
    """A hidden file of a map, or of `latest.json`: it stayed for ever."""
    one = scene(tmp_path, logs, "heatmap")
    renames = [step for step, name in enumerate(steps["heatmap"]) if name == "before rename of a file of the timeline"]
    assert one.wait([one.start(DAYS[0], renames[number])]) == [KILLED]
    assert len([name for name in one.place.objects() if "/." in f"/{name}"]) == 1
    assert one.wait([one.start(DAYS[0], None)]) == [0]
    one.check_finished(DAYS[:1])
    assert one.problems == []


def test_a_killed_writer_of_a_map_that_another_run_wrote(
    tmp_path: Path, logs: Path, steps: dict[str, list[str]]
) -> None:
    """No later run writes that map, so none removed the hidden file."""
    one = scene(tmp_path, logs, "heatmap")
    assert one.wait([one.start(DAYS[0], steps["heatmap"].index("before rename of a file of the timeline"))]) == [KILLED]
    [hidden] = Path(one.place.root).glob("maps/.*")
    hidden.with_name(hidden.name[1:].partition(".js.")[0] + ".js").write_bytes(hidden.read_bytes())
    assert one.wait([one.start(DAYS[0], None)]) == [0]
    one.check_finished(DAYS[:1])
    assert one.problems == []


@pytest.mark.parametrize("seed", range(3))
def test_killed_runs(tmp_path: Path, logs: Path, steps: dict[str, list[str]], seed: int) -> None:
    one, _ = play(lambda job: scene(tmp_path, logs, job), steps, seed)
    assert one.problems == []


@pytest.mark.parametrize(
    "chunk", [pytest.param(one, marks=EXHAUSTIVE if one else pytest.mark.slow) for one in range(CHUNKS)]
)
def test_two_hundred_scenarios(tmp_path: Path, logs: Path, steps: dict[str, list[str]], chunk: int) -> None:
    deaths: list[str] = []
    each = SCENARIOS // CHUNKS
    for seed in range(100 + chunk * each, 100 + (chunk + 1) * each):
        one, died = play(lambda job, seed=seed: scene(tmp_path / str(seed), logs, job), steps, seed)  # type: ignore[misc]
        assert one.problems == [], f"seed {seed}"
        deaths += died
    assert deaths


@pytest.mark.parametrize("job", ["heatmap", "histogram"])
def test_the_harness_sees_noise_without_a_charge(tmp_path: Path, logs: Path, job: str) -> None:
    """Planted: the charge is only pretended. Nothing is published then, and that noise was drawn must show."""
    one = scene(tmp_path, logs, job)
    assert one.wait([one.start(DAYS[0], None, forget_the_charge)]) == [LedgerError.exit_code]
    one.look()
    assert any("noise was drawn before" in problem for problem in one.problems)
    assert one.releases() == []


def test_two_refreshes_of_a_day_at_once(tmp_path: Path, logs: Path) -> None:
    """One wins; the other returns its release. Three times, since who wins is up to chance."""
    for number in range(3):
        one = scene(tmp_path / str(number), logs, "histogram")
        assert one.wait([one.start(DAYS[0], None) for _ in range(2)]) == [0, 0]
        one.check_finished(DAYS[:1])
        assert one.problems == []


def test_a_second_attempt_twice_at_once(tmp_path: Path, logs: Path) -> None:
    """The existing release is replaced as one, whichever run is first."""
    one = scene(tmp_path, logs, "histogram")
    assert one.wait([one.start(DAYS[0], None)]) == [0]
    assert one.wait([one.start(DAYS[0], None, arguments=("--attempt", "2")) for _ in range(2)]) == [0, 0]
    assert one.wait([one.start(DAYS[0], None, arguments=("--attempt", "2"))]) == [0]
    one.look()
    assert one.problems == []
    assert [release["release_id"] for release in one.releases()] == [f"city-{DAYS[0]}-2"]


# --- in a bucket ---


@pytest.fixture(scope="module")
def in_bucket(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Scenes whose logs, releases and ledger lie in a bucket."""
    storage = pytest.importorskip("tests.storage", reason="needs apache-beam[gcp] and gcp-storage-emulator")
    with storage.storage_emulator() as emulator:
        for day in logs.iterdir():  # by another process: a client would not outlive a fork
            process = multiprocessing.get_context("fork").Process(
                target=storage.upload, args=(day, f"{storage.BUCKET}/logs/{day.name}")
            )
            process.start()
            process.join()

        def make(job: str) -> Scene:
            folder = tmp_path_factory.mktemp("bucket")
            return Scene(folder, job, f"{storage.BUCKET}/logs", BucketPlace(emulator, storage.BUCKET, folder.name))

        yield make


@pytest.fixture(scope="module")
def bucket_steps(in_bucket: Make) -> dict[str, list[str]]:
    """The steps of a run that nobody kills, by job."""
    found = {}
    for job in ("heatmap", "histogram"):
        calm = in_bucket(job)
        assert calm.wait([calm.start(DAYS[0], None)]) == [0], calm.told()
        calm.check_finished(DAYS[:1])
        assert calm.problems == []
        found[job] = steps_of(calm)
    return found


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), *(pytest.param(one, marks=EXHAUSTIVE) for one in range(2, 20))]
)
def test_killed_runs_in_a_bucket(in_bucket: Make, bucket_steps: dict[str, list[str]], seed: int) -> None:
    one, _ = play(in_bucket, bucket_steps, 1000 + seed)
    assert one.problems == []
