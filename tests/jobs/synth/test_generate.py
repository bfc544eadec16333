import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.region import Grid, Region
from sfumato.transforms.synth.request import ROW_GROUP_ROWS, SynthSpec
from sfumato.transforms.synth.transform import add_counts, count_codes, density_raster
from tests.rejections import rejects


def test_too_many_files_are_refused_with_the_least_that_would_do() -> None:
    with rejects("users_per_file"):
        SynthSpec(users=1_000_001, users_per_file=1)
    assert SynthSpec(users=1_000_001, users_per_file=11).files == 90_910


@pytest.mark.parametrize(
    ("users", "records", "users_per_file"), [(1, 1, 1), (10, 3, 4), (9, 5, 3), (7, 2, 100), (2_300_000, 2, 1_100_000)]
)
def test_files_hold_every_record_once_and_spread_a_users_records(users: int, records: int, users_per_file: int) -> None:
    request = SynthSpec(users=users, records_per_user=records, users_per_file=users_per_file)
    seen: dict[tuple[int, int], int] = {}
    total = 0
    for index in range(request.files):
        for first, last, record in request.pieces(index):
            assert 0 <= first < last <= users
            assert last - first <= ROW_GROUP_ROWS
            total += last - first
            for user in {first, last - 1}:
                assert seen.setdefault((user, record), index) == index
    assert total == users * records
    for user in (0, users - 1):
        files = {seen[user, record] for record in range(records)}
        assert len(files) == min(records, request.files)


def test_density_raster_begins_in_the_north_and_sums_to_one() -> None:
    grid = Grid(Region(0, 0, 4, 4), 2)
    table = pa.table({"longitude": [0.5, 0.5, 3.5, 4.0], "latitude": [3.5, 3.5, 2.5, 0.0]})
    raster = density_raster(count_codes(table, grid))
    expected = np.zeros((4, 4))
    expected[0, 0], expected[1, 3], expected[3, 3] = 0.5, 0.25, 0.25
    assert raster.dtype == np.float64
    assert np.array_equal(raster, expected)


def test_counts_add_up_over_bundles() -> None:
    parts = [np.arange(4), np.ones(4, dtype=np.int64), np.full(4, 7)]
    copies = [part.copy() for part in parts]
    assert add_counts([add_counts(parts[:2]), add_counts([]), parts[2]]).tolist() == [8, 9, 10, 11]
    assert all(np.array_equal(part, copy) for part, copy in zip(parts, copies, strict=True))
