"""The paper's algorithms against their formulas, by brute force, and beside the product."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.baselines.published_bit_pushing import PublishedBitPushing, exact_quotas
from benchmarks.evaluation.moments_in_memory import run_in_memory
from sfumato.schemas.moments import FixedPoint
from sfumato.transforms.moments.local.allocation import Tuning
from sfumato.transforms.moments.local.protocol import MomentsPlan
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

BITS, RUNS, CLIENTS = 4, 2000, 300
PLACES = 2.0 ** np.arange(BITS)


def draw(generator: np.random.Generator, clients: int = CLIENTS) -> np.ndarray:
    """Clients with independent values, as Lemma 3.1 has them."""
    return generator.integers(0, 11, clients).astype(np.float64)


def estimates(mechanism: PublishedBitPushing) -> np.ndarray:
    generator = seeded_rng(3)
    return np.array([mechanism.estimate_mean(draw(generator), 2.0**BITS - 1, generator) for _ in range(RUNS)])


def lemma(power: float, epsilon: float | None) -> float:
    """Lemma 3.1, with the variance of Section 3.3: the sum of 4^j (m (1 - m) + noise) / n_j."""
    means = np.array([np.mean(np.arange(11) >> bit & 1) for bit in range(BITS)])
    noise = 0.0 if epsilon is None else math.exp(epsilon) / (math.exp(epsilon) - 1) ** 2
    quotas = CLIENTS * PLACES**power / (PLACES**power).sum()
    return float((PLACES**2 * (means * (1 - means) + noise) / quotas).sum())


@pytest.mark.parametrize("epsilon", [None, 1.0])
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_one_round_is_unbiased_with_the_variance_of_lemma_3_1(epsilon: float | None, power: float) -> None:
    found = estimates(PublishedBitPushing(epsilon, first_share=0, power=power))
    expected = lemma(power, epsilon)
    assert 2 * stats.norm.sf(abs(found.mean() - 5) / math.sqrt(expected / RUNS)) > FLAKE_RATE
    spread = abs(stats.norm.isf(FLAKE_RATE / 2)) * math.sqrt(2 / RUNS)
    assert found.var(ddof=1) / expected == pytest.approx(1, abs=spread + 0.02)  # 0.02: rounded quotas


def test_quotas_are_exact() -> None:
    """Every number is one of the two whole numbers about its share, and they add up."""
    generator = seeded_rng(1)
    for _ in range(100):
        shares = generator.dirichlet(np.ones(7))
        clients = int(generator.integers(1, 1000))
        counts = exact_quotas(shares, clients)
        assert counts.sum() == clients
        assert np.all(np.abs(counts - shares * clients) < 1)


def test_both_rounds_ask_as_algorithm_2_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the clients by 2^(j/2), the others by 2^j sqrt(m (1 - m)) of the first round's bit means."""
    asked: list[tuple[int, np.ndarray]] = []
    told: list[tuple[np.ndarray, np.ndarray]] = []
    ask = PublishedBitPushing._ask

    def recorded(self: PublishedBitPushing, codes: np.ndarray, weights: np.ndarray, generator: np.random.Generator):
        asked.append((len(codes), weights))
        told.append(ask(self, codes, weights, generator))
        return told[-1]

    monkeypatch.setattr(PublishedBitPushing, "_ask", recorded)
    found = PublishedBitPushing().estimate_mean(draw(seeded_rng(2)), 15.0, seeded_rng(4))
    (first_clients, first), (second_clients, second) = asked
    assert (first_clients, second_clients) == (100, 200)
    assert first == pytest.approx(np.sqrt(PLACES))
    (ones, reports), (more_ones, more_reports) = told
    means = ones / reports
    assert second == pytest.approx(PLACES * np.sqrt(means * (1 - means)))
    assert reports.tolist() == exact_quotas(first / first.sum(), 100).tolist()
    assert found == pytest.approx(PLACES @ ((ones + more_ones) / (reports + more_reports)))


def test_without_response_a_bit_that_all_or_none_have_costs_no_report() -> None:
    """The second round asks neither, so the error is that of the others; every bit known: no error."""
    constant = np.full(CLIENTS, 9.0)
    mechanism = PublishedBitPushing()
    assert mechanism.estimate_mean(constant, 2.0**BITS - 1, seeded_rng(0)) == 9
    assert PublishedBitPushing(caching=False).estimate_mean(constant, 2.0**BITS - 1, seeded_rng(0)) == 9


def test_squashing_empties_the_bits_that_noise_fills() -> None:
    """Values of 4 bits in a form of 14, where the noise of the upper ten is far above the mean."""
    generator = seeded_rng(5)
    plain, squashed = (
        np.array([one.estimate_mean(draw(generator, 5000), 2.0**14 - 1, generator) - 5 for _ in range(60)])
        for one in (PublishedBitPushing(2.0), PublishedBitPushing(2.0, squash=3.0))
    )
    assert np.abs(squashed).mean() < np.abs(plain).mean() / 20


def test_the_product_with_the_papers_tuning_has_the_same_error() -> None:
    """`--tuning paper` draws a bit for each client: its error is that of the published form without exact quotas."""
    generator, key = seeded_rng(7), RunKey.derive(FixedSecret(b"published"), {"test": "published"})
    plan = MomentsPlan(form=FixedPoint(BITS), tuning=Tuning.from_paper(local=False))
    errors: dict[str, list[float]] = {"product": [], "published": []}
    for run in range(120):
        values = draw(generator, 500)
        found = run_in_memory(values, plan, key.narrowed({"run": str(run)})).estimates[0].value
        errors["product"].append(found - values.mean())
        mechanism = PublishedBitPushing(quotas=False)
        errors["published"].append(mechanism.estimate_mean(values, 2.0**BITS - 1, generator) - values.mean())
    product, published = (np.array(errors[name]) for name in errors)
    for one in (product, published):
        assert abs(one.mean()) < 5 * one.std() / math.sqrt(120)
    # the ratio of two variances of 120 normal errors each
    assert stats.f.sf(max(product.var() / published.var(), published.var() / product.var()), 119, 119) > FLAKE_RATE
