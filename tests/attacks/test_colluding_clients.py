"""Clients who collude with a secure-aggregation server subtract their shares of the noise from a shard's sum.

The paper's shares add up to the noise of epsilon over the clients that a shard needs. Without the colluders' shares the
rest protects less: 5% of a minimal shard make epsilon 1.05 out of 1. With `colluding` the others suffice.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Population
from sfumato.schemas.places import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.plan import make_plan, trust_table
from sfumato.transforms.heatmap.schedule import plan
from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy.colluding import colluding_epsilon
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.shard_sums import ShardQuery, client_noise, shard_noise
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf, polya_difference_pmf
from tests.unit.release.city import city_release

REQUIRED, SHARDS, REACH = 20, 256, 30
KEY = RunKey.derive(FixedSecret(b"colluding" * 4), {})


def query_of(colluders: int, planned_clients: int | None) -> ShardQuery:
    encoding = TreeEncoding(Tree.uniform(4, 4))  # 256 entries
    window = Window(1 << 40, 1 << 39)
    return ShardQuery(
        1, encoding, 1.0, window, REQUIRED, planned_clients=planned_clients, colluders=colluders
    )  # fmt: skip


def minimal_shards() -> ShardGroup:
    """Shards of exactly the required clients."""
    keys = (np.repeat(np.arange(SHARDS), REQUIRED) << 8) | np.tile(np.arange(REQUIRED), SHARDS)
    return ShardGroup(0, SHARDS, Places(4), keys.astype(np.uint32))


def exact_loss(clients: int, share: float, epsilon: float) -> float:
    """The largest log ratio of the sums of two neighbours with the noise of so many clients, one user adding 1.

    By convolution of the clients' shares, Polya(share) - Polya(share) each.
    """
    values = np.arange(400)
    one = stats.nbinom.pmf(values, share, -math.expm1(-epsilon))
    spectrum = np.abs(np.fft.fft(one, 1 << 12)) ** 2  # of X - Y
    noise = np.fft.ifft(spectrum**clients).real
    centre = np.concatenate([noise[-REACH // 2 :], noise[: REACH // 2]])
    return float(np.abs(np.diff(np.log(centre))).max())


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
@pytest.mark.parametrize("colluding", [0.05, 0.2])
def test_the_honest_clients_shares_keep_epsilon(colluding: float, epsilon: float) -> None:
    for participation in ("planned", "paper"):
        values: dict[str, Any] = {"population": 200_000, "shard_size": 2_000, "participation": participation}
        protected = plan_of(colluding=colluding, **values)
        usual = plan_of(**values)
        required = usual.required_survivors
        colluders = math.floor(colluding * required)
        assert (protected.required_survivors, protected.colluders) == (required, colluders)
        honest = required - colluders
        assert exact_loss(honest, 1 / protected.honest_survivors, epsilon) <= epsilon + 1e-6
        loss = exact_loss(honest, 1 / usual.honest_survivors, epsilon)
        assert math.isclose(loss, colluding_epsilon(epsilon, 1, honest / required), rel_tol=1e-5)
        assert loss > epsilon * 1.03


def plan_of(**values: Any) -> ShardQuery:
    parameters = HeatmapParameters(**values)
    query = plan(Population(200_000.0, "public"), parameters.budget, parameters).query
    assert query is not None
    return query


@pytest.mark.parametrize("colluders", [0, 4])
def test_what_remains_after_the_attack_is_the_noise_of_epsilon_with_colluding_alone(colluders: int) -> None:
    """The server subtracts the shares of four of twenty clients in 256 shards of 256 entries."""
    group = minimal_shards()
    honest = np.tile(np.arange(REQUIRED) >= 4, SHARDS)
    remaining = client_noise(group, slice(0, SHARDS), honest, query_of(colluders, None), KEY).ravel()
    laplace = discrete_laplace_pmf(1.0, REACH)
    if colluders:
        assert chi_square_p(remaining, laplace) > FLAKE_RATE
    else:
        assert chi_square_p(remaining, laplace) < FLAKE_RATE
        assert chi_square_p(remaining, polya_difference_pmf(0.8, 1.0, REACH)) > FLAKE_RATE


@pytest.mark.parametrize("mode", ["shard", "client"])
def test_a_planned_shard_has_the_noise_of_all_required_clients(mode: str) -> None:
    group, query = minimal_shards(), query_of(5, REQUIRED)

    def draw(one: ShardQuery) -> NDArray[np.int64]:
        if mode == "shard":
            return shard_noise(group.numbers(), group.sizes(), one, KEY).ravel()
        return client_noise(group, slice(0, SHARDS), None, one, KEY).ravel()

    pmf = polya_difference_pmf(20 / 15, 1.0, REACH)
    assert chi_square_p(draw(query), pmf) > FLAKE_RATE
    assert chi_square_p(draw(replace(query, colluders=0)), pmf) < FLAKE_RATE
    empty = ShardGroup(0, SHARDS, Places(4), np.zeros(0, dtype=np.uint32))
    if mode == "shard":  # whoever is there
        assert (shard_noise(empty.numbers(), empty.sizes(), query, KEY).ravel() == draw(query)).all()


@pytest.mark.slow
def test_plans_and_releases_state_the_epsilon_against_colluders() -> None:
    usual, protected = (HeatmapParameters(population=200_000, shard_size=2_000, colluding=one) for one in (None, 0.05))
    states = [make_plan(one).state for one in (usual, protected)]
    assert math.isclose(states[0].epsilon_against(0.05), 1.048, rel_tol=1e-3)
    assert math.isclose(states[1].epsilon_against(0.05), 1.0, rel_tol=1e-9)
    assert states[1].epsilon_against(0.2) > 1.1
    noise = [state.results[-1].spent.noise_stddev for state in states]
    assert math.isclose(noise[1] / noise[0], math.sqrt(1900 / 1805), rel_tol=1e-9)
    assert "not with these options" not in trust_table(protected).splitlines()[2]  # central needs no such noise
    # A distribution adds to many entries with a small epsilon each, which costs much more.
    spread = make_plan(replace(usual, contribution="all")).state
    assert spread.epsilon_against(0.05) > 1.5

    stated = [city_release("flat", **given).manifest["privacy"] for given in ({}, {"colluding": 0.05})]
    assert "colluders" not in stated[0]["cohort"]
    assert stated[1]["cohort"]["colluders"] == math.floor(0.05 * stated[1]["cohort"]["required_survivors"]) > 0
    for privacy, words in zip(stated, ("if none of", "if at most"), strict=True):
        assert sum("collude" in one and words in one for one in privacy["assumptions"]) == 1


@pytest.mark.parametrize("values", [{"trust": "central"}, {"noise": "gaussian", "delta": 1e-6}])
def test_colluding_is_refused_where_noise_has_no_shares(values: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"^colluding"):
        HeatmapParameters(colluding=0.05, **values)
