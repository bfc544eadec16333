"""What takes long: notebooks, kills, training, benchmarks, real data, statistics of many draws."""

from __future__ import annotations

from tests.job_fixtures import fast_pipelines, fixed_code  # noqa: F401  (fixtures of this folder)
