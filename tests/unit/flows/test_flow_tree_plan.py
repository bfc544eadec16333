"""The budget of flows: what a trip costs on every way down the tree, and levels that follow from noisy users alone."""

from __future__ import annotations

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.flows.flow_tree import MAX_SPLITS, MAX_START, FlowPlan
from tests.rejections import rejects


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("depth", [1, 4, 10])
def test_the_epsilons_on_every_way_down_add_up_to_the_budget(epsilon: float, depth: int) -> None:
    plan = FlowPlan(epsilon, depth=depth)
    levels = plan.levels(100_000)
    for splits, level in enumerate(levels):  # a pair that ends here was decided about at each level above, and here
        decisions = splits + (level != levels[-1])
        spent = decisions * plan.split_epsilon + plan.final_epsilon(splits, level == levels[-1])
        assert spent + plan.admission_rule.epsilon == pytest.approx(epsilon, rel=1e-12)
        assert spent + plan.admission_rule.epsilon <= epsilon * (1 + 1e-12)


def test_levels_are_finer_for_more_users_and_end_at_the_depth() -> None:
    starts = [FlowPlan(1.0, depth=15).levels(users)[0] for users in (-500, 10, 1_000, 100_000, 10**9, 10**15)]
    assert starts == sorted(starts)
    assert (starts[0], starts[-1]) == (1, MAX_START)
    assert list(FlowPlan(1.0, depth=4).levels(10**9)) == [4]
    assert len(FlowPlan(1.0, depth=15).levels(10**9)) == MAX_SPLITS + 1


def test_noise_stays_within_what_can_be_drawn() -> None:
    assert FlowPlan(1e6, max_trips=2).tree_epsilon == 60
    with rejects("epsilon"):
        FlowPlan(1e-6, max_trips=1000)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"max_trips": 0}, "max_trips_per_user"),
        ({"max_trips": 1001}, "max_trips_per_user"),
        ({"depth": 0}, "depth"),
        ({"depth": 16}, "depth"),
        ({"max_bad_fraction": 2}, "max_bad_fraction"),
    ],
)
def test_a_value_out_of_range_is_named(options: dict[str, float], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        FlowPlan(**options)  # type: ignore[arg-type]
