"""Tests of benchmarks/several_locations.py: the commands of its tables can be run."""

import pytest

from benchmarks.several_locations import DEPTH, MAPS, TABLES
from sfumato.pipelines.command_line import parse_command
from sfumato.pipelines.compare import CompareJob
from sfumato.transforms.evaluation.compare_request import CompareRequest


@pytest.mark.parametrize("title", TABLES)
def test_every_table_is_a_comparison_that_is_not_refused(title: str) -> None:
    """A modulus, for one, is refused without --allow_overflow, because a comparison states no population."""
    given = f"--input LOGS --output OUT --region={MAPS['tokyo']} --depth {DEPTH} {TABLES[title]} --keys 1 --seed 1"
    job = CompareJob.of(parse_command(CompareRequest, given.split())[0])
    assert all(case.parameters.contribution in ("one", "top", "all") for case in job.cases)
    assert len(job.cases) > 1
