"""The error that the tables of bit pushing print, and the signs of its contenders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from benchmarks.bit_errors import Bench, Data, Pushing, Task
from tests.seeds import seeded_rng

SIGNED = Data("either sign", 6, lambda count, generator: generator.normal(10, 20, count), signed=True)


@dataclass(frozen=True)
class Off:
    """Is off by 1, 2, 3, ... in turn."""

    name: str = "off"

    def estimate(self, values: np.ndarray, task: Task, seed: tuple[int, ...]) -> float:
        return float(values.mean()) + seed[0] + 1


def test_an_error_is_the_root_of_the_mean_square_over_the_mean() -> None:
    data = Data("as many of each", 4, lambda count, generator: np.arange(count) % 16)
    found = Bench(3).score(Off(), Task(data, 4, 160))
    assert found.error == pytest.approx(100 * np.sqrt((1 + 4 + 9) / 3) / 7.5)


@pytest.mark.parametrize("signed", ["shift", "split"])
def test_signed_values_are_found_by_both_ways(signed: str) -> None:
    task = Task(SIGNED, 6, 100_000)
    values = SIGNED.clients(task.clients, seeded_rng(0))
    assert values.min() < 0 < values.max() <= 63
    found = Pushing("", signed=signed).estimate(values, task, (1,))  # type: ignore[arg-type]
    assert found == pytest.approx(values.mean(), abs=1)  # five standard errors and more


def test_changes_reach_the_plan() -> None:
    plan = Pushing("", changes={"bits_per_client": 3}).plan(Task(SIGNED, 6))
    assert plan.bits_per_client == 3
