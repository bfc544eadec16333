"""Months of nights: benchmarks/month.py and what it simulates."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

import sfumato
from benchmarks import month
from benchmarks.city_nights import Night, make_nights
from benchmarks.evaluation.cases import parse_cases
from benchmarks.month_counts import CountNight, PaperVariances, draw_nights
from benchmarks.month_ways import (
    DELTA,
    EPSILON,
    GAUSSIAN_WAYS,
    REFERENCE,
    WAYS,
    WINDOW,
    Way,
    run_key,
    scaled_measurements,
)
from benchmarks.several_locations import DEPTH as LOCATIONS_DEPTH
from benchmarks.several_locations import MAPS, TABLES, compare_on_logs
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.region import Region
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.privacy.mechanism import rho_for_delta

# Tests of benchmarks/month.py and benchmarks/month_year.py: they run, and their tables say what was found.

SMALL = replace(month.QUICK, people=10_000, nights=3, learned=1)


def test_all_parts_print_their_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(month, "QUICK", replace(SMALL, users=20_000, year=3))
    monkeypatch.setattr(month, "SIZES", (500,))
    monkeypatch.setattr(
        month, "ways_of", lambda trust: (WAYS[5], *month.GAUSSIAN_WAYS[1:2]) if trust == Trust.CENTRAL else WAYS[5:6]
    )
    monkeypatch.setattr("sys.argv", ["month", "--quick", "--seeds", "1", "--plot", str(tmp_path)])
    month.main()
    printed = capsys.readouterr().out
    assert printed.count("1 of 30 cohorts, posterior") >= 8
    assert "nan" not in printed
    assert (tmp_path / "month.png").read_bytes()[:4] == b"\x89PNG"


# Tests of benchmarks/month_counts.py: nights as counts of cells, and variances on paper.

DAY = date(2026, 10, 13)


@pytest.fixture(scope="module")
def night() -> CountNight:
    return next(draw_nights([DAY], 300_000, seed=2))


def _state(night: CountNight, way: Way, trust: Trust) -> CountState:
    return night.run(way.cohorts, way.parameters(trust), run_key(1, way, night.day, trust), None)


@pytest.mark.false_alarm(1e-7)  # of 256 Laplace variates; there are more than 600
def test_noise_has_the_stated_deviation(night: CountNight) -> None:
    """The mean square of the errors of n entries is its variance within 8 standard deviations: kurtosis at most 6.

    Without a curator each sub-query asks a part of the users; the test of measurements below has these.
    """
    state = _state(night, REFERENCE, Trust.CENTRAL)
    assert [one.shard_range for one in state.results] == [None, None]
    errors = [(one.counts - night.entry_counts(one.tree)) / one.noise_stddev for one in state.results]
    squares = np.concatenate(errors) ** 2
    assert abs(squares.mean() - 1) < 8 * np.sqrt(5 / len(squares))


def test_paper_has_the_noise_of_a_run(night: CountNight) -> None:
    """The paper's variance is that of a run that spent its whole budget at once, on all shards."""
    for trust in (Trust.SECAGG, Trust.CENTRAL):
        for way in (REFERENCE, Way("test", 10)):
            paper = PaperVariances.of_way(way, trust, night.users)
            state = _state(night, way, trust)
            entry = way.cohorts**2 * state.noise_stddev(way.parameters(trust).budget.total) ** 2
            assert entry == pytest.approx(paper.noise, rel=0.1)  # shards are whole
            assert paper.sampling == way.cohorts - 1


# Tests of benchmarks/month_ways.py: what ways spend, their measurements, and how coverage is counted.

FIRST = date(2026, 10, 13)


@pytest.fixture(scope="module")
def nights() -> list[CountNight]:
    return list(draw_nights([FIRST + timedelta(number) for number in range(3)], 200_000, seed=1))


@pytest.mark.parametrize("way", [*WAYS, *GAUSSIAN_WAYS], ids=lambda way: way.name)
def test_no_user_spends_more_than_the_limit_in_any_window(way: Way) -> None:
    active_cohorts = [Rotation.of_night(FIRST + timedelta(night), way.cohorts).cohort for night in range(4 * WINDOW)]
    most = max(
        active_cohorts[at : at + WINDOW].count(cohort)
        for at in range(3 * WINDOW)
        for cohort in range(1, 1 + way.cohorts)
    )
    for trust in (Trust.SECAGG, Trust.CENTRAL):
        if way.gaussian and trust == Trust.SECAGG:
            continue
        parameters = way.parameters(trust)
        if way.gaussian:
            assert parameters.rho is not None
            assert most * parameters.rho == pytest.approx(rho_for_delta(EPSILON, DELTA), rel=1e-6)
        else:
            assert most * parameters.epsilon == pytest.approx(EPSILON)


@pytest.mark.parametrize("cohorts", [1, 30])
def test_measurements_are_of_all_users_with_their_variance(cohorts: int, nights: list[CountNight]) -> None:
    """Squared errors over the stated variance: their mean is 1 within 6 standard deviations, of a kurtosis up to 6."""
    way, trust = Way("test", cohorts), Trust.SECAGG
    squares = []
    for night in nights:
        state = night.run(cohorts, way.parameters(trust), run_key(0, way, night.day, trust), None)
        measured, users, stddev = scaled_measurements(state, cohorts)
        assert abs(users - night.users) < 6 * stddev
        for one in measured:
            truth = night.entry_counts(one.tree)
            squares.append((one.counts - truth) ** 2 / (one.variance + one.sampling * truth))
    found = np.concatenate(squares)
    assert abs(found.mean() - 1) < 6 * np.sqrt(5 / len(found))


# Tests of benchmarks/city_nights.py: nights of the synthetic city, crowds and cohorts.

CITY_DAY = date(2026, 10, 20)
PEOPLE = 40_000


@pytest.fixture(scope="module")
def city_nights() -> list[Night]:
    return make_nights([CITY_DAY, CITY_DAY + timedelta(1), CITY_DAY + timedelta(10)], PEOPLE, seed=3)


# Tests of benchmarks/several_locations.py: its tables can be made.


@pytest.mark.parametrize("title", TABLES)
def test_every_table_has_cases_that_are_not_refused(title: str) -> None:
    """A modulus, for one, is refused without --allow_overflow, because a comparison states no population."""
    cases, _ = parse_cases(f"--depth {LOCATIONS_DEPTH} {TABLES[title]}")
    assert all(case.parameters.contribution in ("one", "top", "all") for case in cases)
    assert len(cases) > 1


def test_compare_on_logs_sees_the_distributions_of_all_users(tmp_path: Path) -> None:
    """Almost without noise, distributions are the truth, and one location of each user is a sample of it."""
    pattern = Path(sfumato.synth(tmp_path / "logs", users=300, records_per_user=9, region=MAPS["synthetic"]))
    paths = [str(path) for path in sorted(pattern.parent.glob(pattern.name))]
    rows, _ = compare_on_logs(TABLES["Almost no noise"], paths, Region.parse(MAPS["synthetic"]), 2)
    errors = {row.options["contribution"]: row.metrics["l1"].value for row in rows if row.setting.method == "flat"}
    # 4,096 Laplace variates of scale 1/30 user, each below 0.04 user on average, of 300 users.
    assert errors["all"] < 4096 * 0.04 / 300 < min(errors["one"], errors["top"])
