import numpy as np
import pytest
from scipy import stats

from benchmarks.synthetic_maps import draw_users
from sfumato.schemas.ranges import Boxes, Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts
from sfumato.transforms.ranges.methods import PlainGrid
from sfumato.transforms.ranges.width_search import QuerySample, entropy, mean_relative_error, sample_users, search_width
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.ranges.oracle import image, overlap, people_at, town

FIELD = Field(Grid(Region(0, -0.03, 0.06, 0.03), 10))  # base cells of 6.5 m
PEOPLE = town(10, 5000)


def test_questions_are_around_users_and_their_truth_is_exact() -> None:
    asked = QuerySample.draw(PEOPLE, FIELD, Sizes(100.0, 300.0), 200, seeded_rng(1))
    base, (width, height) = image(PEOPLE), FIELD.cell_metres
    rows, columns = np.nonzero(base)
    edges = (getattr(asked.boxes, one) for one in ("x0", "y0", "x1", "y1"))
    for x0, y0, x1, y1, truth in zip(*edges, asked.truth, strict=True):
        brute = sum(
            base[y, x] * overlap(x0, x1, x, x + 1) * overlap(y0, y1, y, y + 1)
            for y, x in zip(rows, columns, strict=True)
            if x0 - 1 < x < x1 and y0 - 1 < y < y1
        )
        assert truth == pytest.approx(brute, abs=1e-6)
        assert 0 <= x0 < x1 <= 1024
        if x0 > 0 and x1 < 1024 and y0 > 0 and y1 < 1024:
            assert 100 <= (x1 - x0) * width <= 300
            assert (x1 - x0) * width == pytest.approx((y1 - y0) * height)
            assert base[int((y0 + y1) / 2), int((x0 + x1) / 2)] > 0


def test_small_truths_count_as_psi() -> None:
    none = Boxes(*(np.zeros(2) for _ in range(4)))
    asked = QuerySample(none, np.array([0.0, 50.0]))
    assert asked.error(np.array([3.0, 40.0]), 10_000) == pytest.approx((3 / 10 + 10 / 50) / 2)


def test_entropy_is_of_512_by_512_cells() -> None:
    at = np.arange(0, 4096, 8)
    assert entropy(people_at(12, at, at)) == pytest.approx(np.log(512))
    assert entropy(people_at(12, at % 8, at % 8)) == 0.0
    users = np.array([3, 1])
    assert entropy(ExactCounts(9, np.array([0, 9], np.uint64), users)) == pytest.approx(
        -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    )


def test_a_sample_is_of_the_people() -> None:
    sample = sample_users(PEOPLE, 1000, seeded_rng(1))
    assert sample.users.sum() == 1000
    assert (image(sample) <= image(PEOPLE)).all()
    assert sample_users(PEOPLE, 5000, seeded_rng(1)) is PEOPLE


def test_people_are_drawn_by_density() -> None:
    density = np.array([[1.0, 0.0], [2.0, 5.0]])
    people = draw_users(density, 2, 40_000, seeded_rng(1))
    found = image(people)
    expected = np.repeat(np.repeat(density, 2, axis=0), 2, axis=1) / 32 * 40_000
    some = expected > 0
    assert found[~some].sum() == 0
    assert stats.chisquare(found[some], expected[some]).pvalue > FLAKE_RATE


def test_the_search_finds_the_bottom_wherever_it_starts() -> None:
    """Of a parabola in logarithms it is found exactly, also far from the start."""
    for best in (3.0, 40.0, 700.0):
        found = search_width(
            lambda width, best=best: float(np.exp((np.log(width / best)) ** 2)), 50.0, 1.0, 1e4, 1.3, 3
        )
        assert found.width == pytest.approx(best, rel=1e-6)
        assert found.error >= 1.0
        assert found.at(best * 1000) == found.errors[-1]
        assert (np.diff(found.widths) > 0).all()


def test_the_search_stays_in_its_bounds() -> None:
    found = search_width(lambda width: width, 50.0, 20.0, 200.0, 1.3, 3)
    assert 20.0 <= found.width < 20.0 * 1.3
    found = search_width(lambda width: 1 / width, 5000.0, 20.0, 200.0, 1.3, 3)
    assert 200 / 1.3 < found.width <= 200.0


def test_errors_are_of_the_method_and_its_seeds() -> None:
    spec = CollectionSpec(FIELD, 5000.0, 1.0, Sizes(100.0, 300.0))
    asked = QuerySample.draw(PEOPLE, FIELD, spec.sizes, 500, seeded_rng(1))
    one, again, other = (mean_relative_error(PlainGrid(100.0), PEOPLE, spec, asked, [seed]) for seed in (1, 1, 2))
    assert one == again != other
    assert mean_relative_error(PlainGrid(100.0), PEOPLE, spec, asked, [1, 2]) == pytest.approx((one + other) / 2)
    assert mean_relative_error(PlainGrid(10.0), PEOPLE, spec, asked, [1]) > one  # noise
    assert mean_relative_error(PlainGrid(3000.0), PEOPLE, spec, asked, [1]) > one  # users unevenly spread
