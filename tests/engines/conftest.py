"""Jobs on Flink, Spark and Prism."""

from __future__ import annotations

from tests.job_fixtures import fast_pipelines, fixed_code  # noqa: F401  (fixtures of this folder)
