"""Tests of benchmarks/several_locations.py: its tables can be made."""

from pathlib import Path

import pytest

import sfumato
from benchmarks.evaluation.cases import parse_cases
from benchmarks.several_locations import DEPTH, MAPS, TABLES, compare_on_logs
from sfumato.schemas.region import Region


@pytest.mark.parametrize("title", TABLES)
def test_every_table_has_cases_that_are_not_refused(title: str) -> None:
    """A modulus, for one, is refused without --allow_overflow, because a comparison states no population."""
    cases, _ = parse_cases(f"--depth {DEPTH} {TABLES[title]}")
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
