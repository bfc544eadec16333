"""The first steps of a heatmap's run for tests: a number of users is counted with noise, as the job counts it."""

from __future__ import annotations

from sfumato.schemas.guarantee import Population
from sfumato.transforms.counting import sub_queries
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.privacy.admission import UserCounts, count_users
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.keys import RunKey


def count_population(users: int, parameters: CountParameters, key: RunKey) -> tuple[Population, Budget]:
    """The population to plan from and what is left of the budget, for a true number of users; nothing is refused."""
    return sub_queries.population_and_budget(count_users(UserCounts(users), parameters.admission(), key), parameters)


def start(users: int, parameters: CountParameters, key: RunKey, prior: Estimate | None = None) -> CountState:
    """The cohort's plan and the first sub-query, for a true number of users; nothing is refused."""
    return sub_queries.first_state(*count_population(users, parameters, key), parameters, prior)
