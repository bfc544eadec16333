"""Who is in a rotating cohort depends only on key, dataset and id; which noisy counts of users admit a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.errors import NotAdmittedError, TooFewUsersError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.log_layout import DayRows
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.admission import (
    AdmissionRule,
    ChargeAndAdmit,
    NoisyUserCounts,
    UserCounts,
    check_admission,
)
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.user_hashes import ActiveCohort, cohort_of, hash_users, rotation_key, with_partition
from tests.seeds import seeded_rng

SECRET = FixedSecret(b"s" * 32)
IDS = pa.array(np.arange(60_000))


@pytest.mark.parametrize("cohorts", [1, 2, 7, 30, 366])
def test_a_cohort_is_the_share_of_the_hash_in_exact_integers(cohorts: int) -> None:
    key = rotation_key(SECRET, "city", cohorts, "user_id")
    expected = [1 + int(one) * cohorts // 2**64 for one in hash_users(IDS, key.subkey("users"))]
    found = cohort_of(IDS, key, cohorts)
    assert found.dtype == np.int64
    assert found.tolist() == expected


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("ids", [IDS, IDS.cast(pa.string())])
def test_cohorts_are_equally_large(ids: pa.Array) -> None:
    sizes = np.bincount(cohort_of(ids, rotation_key(SECRET, "city", 30, "user_id"), 30), minlength=31)[1:]
    # Each is binomial with mean 2,000 and standard deviation 44: seven of them have probability below 1e-9 in 30 sizes.
    assert abs(sizes - 2000).max() < 7 * 44


def test_cohort_depends_on_the_id_alone_in_any_form() -> None:
    key = rotation_key(SECRET, "city", 30, "user_id")
    cohorts = cohort_of(IDS, key, 30)
    some = np.array([5, 59_999, 17])
    assert cohort_of(IDS.take(pa.array(some)), key, 30).tolist() == cohorts[some].tolist()
    assert cohort_of(IDS.cast(pa.int32()), key, 30).tolist() == cohorts.tolist()
    texts = IDS.cast(pa.string())
    forms = (pa.string(), pa.binary(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
    for form in forms:  # a night's logs may be Parquet, and the next one's CSV
        assert cohort_of(texts.cast(form), key, 30).tolist() == cohorts.tolist()
    assert cohort_of(IDS[:0], key, 30).tolist() == []


def test_text_is_an_integer_where_it_is_written_as_one() -> None:
    subkey = rotation_key(SECRET, "city", 30, "user_id").subkey("users")

    def hashed(ids: list, kind: pa.DataType | None = None) -> list[int]:
        return hash_users(pa.array(ids, kind), subkey).tolist()

    integers, unsigned = [0, 7, -7, 10**18, 10**18 - 1, 2**63 - 1, -(2**63)], [2**63, 2**64 - 1]
    assert hashed(list(map(str, integers))) == hashed(integers)
    assert hashed(list(map(str, unsigned))) == hashed(unsigned, pa.uint64())
    others = ["", "-", "-0", "007", "+7", "7 ", "7\n", "7.0", "u7", str(2**64), str(-(2**63) - 1), "9" * 30]
    assert len({*hashed(integers), *hashed(others)}) == len(integers) + len(others)


@pytest.mark.false_alarm(1e-9)
def test_key_dataset_and_number_of_cohorts_divide_anew() -> None:
    keys = [
        (rotation_key(SECRET, "city", 30, "user_id"), 30),
        (rotation_key(SECRET, "town", 30, "user_id"), 30),
        (rotation_key(FixedSecret(b"t" * 32), "city", 30, "user_id"), 30),
        (rotation_key(SECRET, "city", 31, "user_id"), 31),
    ]
    partitions = {with_partition(Rotation(1, cohorts), key).partition for key, cohorts in keys}
    assert len(partitions) == 4
    first = cohort_of(IDS, *keys[0])
    for key, cohorts in keys[1:]:
        # Independent divisions agree on one user in 30: mean 2,000, standard deviation 44.
        assert abs(int((cohort_of(IDS, key, cohorts) == first).sum()) - 60_000 // cohorts) < 7 * 44
    assert rotation_key(SECRET, "City", 30, "user_id").subkey("users") == keys[0][0].subkey("users")


def test_the_cohort_does_not_change_the_partition() -> None:
    key = rotation_key(SECRET, "city", 30, "user_id")
    assert with_partition(Rotation(7, 30), key).partition == with_partition(Rotation(8, 30), key).partition


# --- the rows of one cohort ---


COLUMNS = LocationColumns()
COHORTS = 7
KEY = rotation_key(FixedSecret(bytes(range(32))), "city", COHORTS, "user_id")


def logs(ids: pa.Array, seed: int = 0) -> pa.RecordBatch:
    rng = seeded_rng(seed)
    latitude, longitude = rng.uniform(50, 51, len(ids)), rng.uniform(-1, 1, len(ids))
    return pa.RecordBatch.from_pydict({"user_id": ids, "latitude": latitude, "longitude": longitude})


def active_cohort(cohort: int) -> ActiveCohort:
    return ActiveCohort(Rotation(cohort, COHORTS), KEY)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_user_is_in_one_cohort_with_all_rows(kind: pa.DataType) -> None:
    numbers = seeded_rng(1).integers(0, 300, 2_000)
    ids = pa.array(numbers) if kind == pa.int64() else pa.array([f"u{one}" for one in numbers]).cast(kind)
    batch = logs(ids)
    parts = [active_cohort(cohort).only(batch, COLUMNS) for cohort in range(1, COHORTS + 1)]
    assert sum(part.num_rows for part in parts) == batch.num_rows
    users = [set(part.column("user_id").to_pylist()) for part in parts]
    assert sum(map(len, users)) == len(set(ids.to_pylist()))
    for part, own in zip(parts, users, strict=True):
        rows = [row for row in batch.to_pylist() if row["user_id"] in own]
        assert part.to_pylist() == rows  # in the order of the log


def test_rows_without_an_id_are_one_user() -> None:
    """All of them may be one person's, who is asked as rarely as any other."""
    ids = pa.array([None if number % 2 else number for number in range(4_000)])
    batch = logs(ids)
    batch = batch.set_column(1, "latitude", pa.array([None if n % 8 == 1 else 50.5 for n in range(4_000)]))
    parts = [active_cohort(cohort).only(batch, COLUMNS) for cohort in range(1, COHORTS + 1)]
    assert sum(part.num_rows for part in parts) == batch.num_rows
    assert sorted(part.column("user_id").null_count for part in parts) == [0] * (COHORTS - 1) + [2_000]


# --- noisy counts of users admit or refuse a run ---


def counted(users: float, unusable: float = 0.0) -> NoisyUserCounts:
    return NoisyUserCounts(users=users, unusable=unusable, cost=1.0, noise_stddev=1.0)


def test_check_admission_counts_the_users_of_all_cohorts() -> None:
    check_admission(counted(120.0), AdmissionRule(1.0, min_users=1_000, cohorts=10))
    with pytest.raises(TooFewUsersError, match="in one of 10 cohorts, so about 1,200 in all"):
        check_admission(counted(120.0), AdmissionRule(1.0, min_users=2_000, cohorts=10))


@pytest.mark.parametrize("users", [500.0, 2_000.0])
def test_check_admission_refuses_a_wrong_population(users: float) -> None:
    """A tenth and what noise explains, in either direction."""
    check_admission(counted(1_000.0), AdmissionRule(1.0, population=1_050))
    with pytest.raises(NotAdmittedError, match="--population"):
        check_admission(counted(users), AdmissionRule(1.0, population=1_000))


@pytest.mark.false_alarm(2e-11)
@pytest.mark.parametrize(("users", "warnings"), [(0, 1), (1_000, 0)])
def test_a_run_that_found_hardly_any_user_warns(users: int, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    """In a pipeline of others nothing else shows a misspelled column, and only warnings are on the terminal.

    Of nobody a count is above two deviations of its noise in 3% of runs, but at epsilon 25 it is 0 in all but 2e-11.
    """
    with caplog.at_level("WARNING", "sfumato.progress"):
        ChargeAndAdmit(AdmissionRule(25.0, max_bad_fraction=1.0))(
            UserCounts(usable=users, unusable=1), RunKey.derive(SECRET, {})
        )
    assert len(caplog.records) == warnings


@pytest.mark.false_alarm(1e-9)
def test_the_warning_names_hours_and_min_users(caplog: pytest.LogCaptureFixture) -> None:
    """Of six keys: a count of nobody is above two deviations of its noise, and no reason to warn, in 3% of runs."""
    rows = DayRows("time", "Asia/Tokyo", None, None, (3, 4))
    with caplog.at_level("WARNING", "sfumato.progress"):
        for number in range(6):
            ChargeAndAdmit(AdmissionRule(0.01), day_rows=rows)(UserCounts(), RunKey.derive(SECRET, {"number": number}))
    assert caplog.messages
    for text in caplog.messages:
        assert "--hours 3-4" in text
        assert "Asia/Tokyo" in text
        assert "--min_users 800" in text  # above five deviations of the noise, 707


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(("dates", "named"), [(None, "dmy or mdy"), ("dmy", "now dmy")])
def test_the_warning_names_dates_first_and_the_zones(
    dates: str | None, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """See test_the_warning_names_hours_and_min_users."""
    rows = DayRows("time", None, date(2026, 11, 16), date(2026, 11, 20), (3, 4))
    rule = AdmissionRule(0.01, area="the zones (they span 14.127,57.592,15.113,58.108)")
    with caplog.at_level("WARNING", "sfumato.progress"):
        for number in range(6):
            key = RunKey.derive(SECRET, {"number": number})
            ChargeAndAdmit(rule, day_rows=rows, dates=dates)(UserCounts(), key)
    assert caplog.messages
    for text in caplog.messages:
        assert f"--dates ({named}" in text.partition("columns")[0]
        assert "--period 2026-11-16:2026-11-20" in text
        assert "--user_id_column" in text
        assert "they span 14.127,57.592,15.113,58.108" in text
        assert len(text) < 400
    admit = ChargeAndAdmit(replace(rule, min_users=10_000), day_rows=rows, dates=dates)
    with pytest.raises(TooFewUsersError) as refused:  # by a count far below two deviations of its noise
        admit(UserCounts(), RunKey.derive(SECRET, {}))
    assert named in str(refused.value)
    assert "--hours 3-4" in str(refused.value)
    with pytest.raises(TooFewUsersError) as refused:
        admit(UserCounts(usable=9_000), RunKey.derive(SECRET, {}))
    assert "--user_id_column" not in str(refused.value)


def test_a_refusal_names_the_zones_and_the_columns() -> None:
    with pytest.raises(NotAdmittedError, match=r"--user_id_column; .*swapped.*they span 14,57,15,58"):
        check_admission(
            counted(900.0, 200.0), AdmissionRule(1.0, max_bad_fraction=0.1, area="the zones (they span 14,57,15,58)")
        )


def test_check_admission_refuses_a_share_of_bad_users() -> None:
    check_admission(counted(900.0, 90.0), AdmissionRule(1.0, max_bad_fraction=0.1))
    with pytest.raises(NotAdmittedError, match="--max_bad_fraction"):
        check_admission(counted(900.0, 200.0), AdmissionRule(1.0, max_bad_fraction=0.1))
