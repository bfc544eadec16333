"""Each installed library gives the exact result but for a little noise, where epsilon is large."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.baselines.dp_libraries import GROUPS, TASKS

MODULES = {"OpenDP": "opendp", "PyDP": "pydp", "PipelineDP": "pipeline_dp"}
USERS, EPSILON = 2_000, 10.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two records a user, one of each of two items; 100 users a group."""
    pytest.importorskip("duckdb")
    user = np.repeat(np.arange(USERS), 2)
    group = np.array(GROUPS)[user % len(GROUPS)]
    item = np.tile(["left", "right"], USERS)
    made = tmp_path_factory.mktemp("logs")
    pd.DataFrame({"user_id": user, "item": item, "group": group, "value": user / USERS * 100}).to_parquet(
        made / "0.parquet"
    )
    return made


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("library", MODULES)
def test_a_library_is_near_the_exact_result(folder: Path, library: str, task: str) -> None:
    if not importlib.util.find_spec(MODULES[library]):
        pytest.skip(f"{library} is not installed")
    exact = TASKS[task]["duckdb"](folder)
    options = {
        "counts": {"delta": 1e-9, "bound": 2},
        "quantiles": {},
        "moments": {"statistics": ("mean", "variance")},
    }[task]
    found = TASKS[task][library](folder, epsilon=EPSILON, **options)
    if task == "counts":
        assert found.keys() == exact.keys() == {"left", "right"}
        assert list(found.values()) == pytest.approx([USERS, USERS], abs=5)  # the noise's scale is 0.2
    elif task == "quantiles":
        assert found == pytest.approx(exact, abs=2)  # 40 users, and what PyDP's tree is off without noise
    else:
        assert set(found.index) == set(GROUPS)
        assert found["mean"].to_numpy() == pytest.approx(
            exact["mean"][found.index].to_numpy(), abs=10
        )  # 30 times the scale
