"""Groups: who is in which, the noise on their tallies, and that it is enough for one client more or less."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import EVERYBODY, OTHER, FixedPoint, Statistic
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.moments.groups import MAX_GROUPS, CellGroups, ColumnGroups, Grouping
from sfumato.transforms.moments.protocol import MomentsPlan, Progress
from sfumato.transforms.moments.tally import Block, Tally, tally
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf

REGION = Region(-1.0, 50.0, 1.0, 51.0)
CITIES = ColumnGroups("city", ("Bath", "Cork", "Deal"))


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"group tests!" * 3), {"number": number})


def noise(reports: int, epsilon: float = 1.0, number: int = 0, name: tuple[str, int] = ("value", 1)) -> np.ndarray:
    """What is added to 20,000 counts of ones, and to as many of zeros."""
    counted = Tally(*np.random.default_rng(0).integers(0, 10**6, (2, 2000, 10)))
    noisy = Grouping(CITIES, epsilon).protected(counted, name, reports, key(number))
    return np.stack([noisy.ones - counted.ones, noisy.zeros - counted.zeros])


@pytest.mark.parametrize("reports", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_noise_is_that_of_so_many_counts_moved(reports: int, epsilon: float) -> None:
    """A client of two reports who changes her group moves four counts: two down, two up."""
    sample = noise(reports, epsilon).ravel()
    moved = 2 * reports
    reach = math.ceil(60 * moved / epsilon)
    assert chi_square_p(sample, discrete_laplace_pmf(epsilon / moved, reach)) > FLAKE_RATE
    for wrong in {0.7, 1.3, 2.0, 0.5, float(moved)}:
        assert chi_square_p(sample, discrete_laplace_pmf(wrong * epsilon / moved, reach)) < FLAKE_RATE
    stated = Grouping(CITIES, epsilon).noise_stddev(reports)
    kurtosis = 6 + 1 / stated**2  # below that of the discrete Laplace distribution
    assert sample.var() / stated**2 == pytest.approx(1, abs=6.2 * math.sqrt(kurtosis / len(sample)))


def test_noise_is_drawn_once_for_every_question_group_slot_and_told_bit() -> None:
    """A second draw for the same count would average it out; the same for two counts would cancel in a difference."""
    once = noise(2)
    assert np.array_equal(once, noise(2))
    for other in (noise(2, name=("value", 2)), noise(2, name=("square", 1)), noise(2, number=1)):
        assert abs(np.corrcoef(once.ravel(), other.ravel())[0, 1]) < 6.2 / math.sqrt(once.size)
    ones, zeros = once
    pairs = [(ones, zeros), (ones[1:], ones[:-1]), (ones[:, 1:], ones[:, :-1]), (zeros[:, 1:], ones[:, :-1])]
    for left, right in pairs:
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 6.2 / math.sqrt(left.size)
    # A group's noise does not depend on how many other groups there are.
    few = Tally(np.zeros((3, 10), np.int64), np.zeros((3, 10), np.int64))
    assert np.array_equal(Grouping(CITIES, 1.0).protected(few, ("value", 1), 2, key()).ones, ones[:3])


@pytest.mark.parametrize("reports", [1, 2, 4])
def test_one_client_is_in_so_many_counts_of_all_questions_as_she_tells_bits(reports: int) -> None:
    """The L1 sensitivity that the noise is for, by leaving clients out: over all questions and groups together.

    Every question is put to the clients at once, with the later ones' chances held, as they are where the noisy earlier
    tallies are the same.
    """
    rng, n = np.random.default_rng(1), 400
    plan = MomentsPlan(
        form=FixedPoint(6), statistics=(Statistic("mean"), Statistic("variance")), bits_per_client=reports
    )
    codes, groups = rng.integers(0, 64, n).astype(np.uint8), rng.integers(0, 4, n).astype(np.uint16)
    block = Block.shuffled("a", codes, groups, False, key())
    progress = Progress()
    for _ in plan.stages:
        asks = plan.asks(progress)
        progress = progress.after(asks, [tally(block, one, 4, plan.told, key()) for one in asks])
    assert len(progress.rounds) == 4
    for gone in range(0, n, 13):
        assert block.groups is not None
        assert block.places is not None
        columns = {name: np.delete(getattr(block, name), gone) for name in ("codes", "groups", "places")}
        moved = 0
        for one, before in progress.rounds:
            after = tally(replace(block, **columns), one, 4, plan.told, key())
            changes = np.stack([before.ones - after.ones, before.zeros - after.zeros])
            assert set(changes.ravel().tolist()) <= {0, 1}
            assert not np.delete(changes, int(block.groups[gone]), axis=1).any()  # her own group's alone
            moved += int(changes.sum())
        assert moved == reports


@pytest.mark.parametrize(
    ("values", "names", "expected"),
    [
        (pa.array(["Cork", None, "Bath", "bath", ""]), ("Bath", "Cork"), [1, 2, 0, 2, 2]),
        (pa.array(["Cork", None, "Bath"], pa.large_string()), ("Bath", "Cork"), [1, 2, 0]),
        (pa.array(["Cork", None, "Bath"], pa.string_view()), ("Bath", "Cork"), [1, 2, 0]),
        (pa.array(["Cork", None, "Bath", "X"]).dictionary_encode(), ("Bath", "Cork"), [1, 2, 0, 2]),
        (pa.array([3, -1, None, 30], pa.int16()), ("-1", "3"), [1, 0, 2, 2]),
        (pa.array([3, 3, None, 1], pa.int64()).dictionary_encode(), ("1", "3"), [1, 1, 2, 0]),
        (pa.array([True, False, None]), ("false", "true"), [1, 0, 2]),
        (pa.array([datetime.date(2026, 1, 2), None]), ("2026-01-02",), [0, 1]),
        (pa.array(["é", "e"]), ("é",), [0, 1]),
    ],
)
def test_rows_are_in_the_group_of_their_text_or_in_none(values: pa.Array, names: tuple, expected: list[int]) -> None:
    groups = ColumnGroups("g", names)
    found = groups.encode(pa.RecordBatch.from_pydict({"g": values}))
    assert found.tolist() == expected
    assert found.dtype == np.uint16
    assert (len(groups), tuple(groups.names())) == (len(names), names)


@pytest.mark.parametrize("encode", [lambda array: array, lambda array: array.dictionary_encode()])
def test_text_that_is_not_utf8_is_in_no_group(encode: Any) -> None:
    offsets = pa.py_buffer(np.array([0, 1, 3, 5], np.int32))
    broken = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"a\xff\xfe\xc3\xa9"))
    found = ColumnGroups("g", ("a", "é")).encode(pa.RecordBatch.from_arrays([encode(broken)], ["g"]))
    assert found.tolist() == [0, 2, 1]


def test_cells_are_those_of_the_grid_and_the_rest_is_in_none() -> None:
    groups = CellGroups(Grid(REGION, 2))
    rng = np.random.default_rng(3)
    north, east = rng.uniform(49.8, 51.2, 500), rng.uniform(-1.3, 1.3, 500)
    north[0] = np.nan
    batch = pa.RecordBatch.from_pydict({"latitude": [*north, None, 51.0], "longitude": [*east, 0.0, 1.0]})
    expected = []
    for y, x in zip([*north, math.nan, 51.0], [*east, 0.0, 1.0], strict=True):
        if not (50 <= y <= 51 and -1 <= x <= 1):
            expected.append(16)
            continue
        column, row = min(int((x + 1) / 2 * 4), 3), min(int((y - 50) * 4), 3)
        expected.append(
            int(groups.grid.codes(np.array([-1 + (column + 0.5) / 2]), np.array([50 + (row + 0.5) / 4]))[0])
        )
    assert groups.encode(batch).tolist() == expected
    assert len(groups) == len(set(groups.names())) == 16
    with pytest.raises(RequestError, match="cells: depth 8 has more than 16,384 cells; give 1 to 7"):
        CellGroups(Grid(REGION, 8))
    assert len(CellGroups(Grid(REGION, 7))) == MAX_GROUPS


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "groups: list 1 to 16,384 groups, got 0"),
        (tuple(map(str, range(MAX_GROUPS + 1))), "groups: list 1 to 16,384 groups, got 16,385"),
        (("a", EVERYBODY), f"groups: '{EVERYBODY}' cannot be the name of a group"),
        (("a", OTHER), f"groups: '{OTHER}' cannot be the name of a group"),
        (("a", ""), "groups: '' cannot be the name of a group"),
        (("a", "b", "a"), "groups: 'a' is there twice"),
    ],
)
def test_lists_of_groups_that_cannot_be_are_refused(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ColumnGroups("city", names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, "group_epsilon: must be a finite number > 0, got 0.0"),
        ({"epsilon": -1.0}, "group_epsilon: must be a finite number > 0"),
        ({"epsilon": math.nan}, "group_epsilon: must be a finite number > 0, got nan"),
        ({"epsilon": math.inf}, "group_epsilon: must be a finite number > 0"),
        ({"epsilon": 1e-7}, "group_epsilon: must lie in 1e-05..30"),
        ({"epsilon": 31.0}, "group_epsilon: must lie in 1e-05..30"),
        ({"min_group": 0}, "min_group: must be a number of clients >= 1, got 0"),
        ({"min_group": -5}, "min_group: must be a number of clients >= 1"),
        ({"min_group": True}, "min_group: must be a number of clients >= 1, got True"),
    ],
)
def test_groupings_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Grouping(CITIES, **{"epsilon": 1.0, **arguments})


def test_the_least_epsilon_goes_with_the_most_reports() -> None:
    counted = Tally(np.zeros((2, 60), np.int64), np.zeros((2, 60), np.int64))
    assert Grouping(CITIES, 1e-5).protected(counted, ("value", 1), 60, key()).ones.any()


def test_small_groups_are_merged_into_other() -> None:
    grouping = Grouping(CITIES, 1.0, 100)
    names, places = grouping.settle(np.array([100.0, 99.5, 2000.0, 3.0]))
    assert names == ["Bath", "Deal", OTHER]
    assert places.tolist() == [0, 2, 1, 2]  # Cork, and whoever is in no group
    names, places = grouping.settle(np.array([-4.0, 0.0, 99.0, 5000.0]))
    assert names == [OTHER]
    assert places.tolist() == [0, 0, 0, 0]
    names, places = grouping.settle(np.array([1e3, 1e3, 1e3, 0.0]))
    assert names == ["Bath", "Cork", "Deal", OTHER]
    assert places.tolist() == [0, 1, 2, 3]


def test_what_is_merged_is_the_sum_of_its_parts() -> None:
    counted = Tally(np.arange(8).reshape(4, 2), np.ones((4, 2), np.int64))
    _, places = Grouping(CITIES, 1.0, 100).settle(np.array([500.0, 20.0, 500.0, 30.0]))
    joined = counted.joined(places)
    assert joined.ones.tolist() == [[0, 1], [4, 5], [2 + 6, 3 + 7]]
    assert joined.reports.sum() == counted.reports.sum()
