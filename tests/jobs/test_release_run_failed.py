"""A runner that ends a job without success: the command fails, and nothing is called published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.runner import PipelineResult, PipelineState

from sfumato.pipelines.heatmap import HeatmapJob
from sfumato.pipelines.release_run import run_release
from sfumato.pipelines.runner_settings import runner_settings
from sfumato.schemas.errors import DataError
from sfumato.transforms.heatmap.request import HeatmapRequest
from tests.conftest import REGION


class Ended(BundleBasedDirectRunner):
    """A runner that runs nothing and reports a state."""

    def __init__(self, state: str):
        super().__init__()
        self.state = state

    def run_pipeline(self, pipeline: Any, options: Any) -> PipelineResult:
        result = PipelineResult(self.state)
        result.wait_until_finish = lambda duration=None: self.state
        result.metrics = lambda: None
        return result


@pytest.mark.parametrize("state", [PipelineState.FAILED, PipelineState.CANCELLED, PipelineState.DONE])
def test_run_without_a_release_is_a_failure(state: str, logs: Callable[..., str], tmp_path: Path) -> None:
    output = tmp_path / "release"
    job = HeatmapJob.of(HeatmapRequest.of({"input": logs(600), "output": str(output), "region": REGION, "seed": 1}))
    with pytest.raises(DataError, match=state if state != PipelineState.DONE else "there is no release"):
        run_release(job, replace(runner_settings(None, []), runner=Ended(state)))
    assert not output.exists()
