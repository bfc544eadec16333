"""The released histogram of neighbouring inputs: its law by enumeration, and the code's draws against that law."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from sfumato.transforms.histogram.accountant import delta
from sfumato.transforms.histogram.composition import rounds_delta
from sfumato.transforms.histogram.sampling_round import Sampling
from sfumato.transforms.histogram.user_sample import Sample, Sampler, count_rounds, merge, threshold
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from tests.statistics import FLAKE_RATE

KEYS = 6000


def law(counts: tuple[int, ...], sampling: Sampling, rounds: int = 1) -> dict[tuple, float]:
    """The probability of every published histogram: a tuple a round of each item's sampled count, 0 for absent."""
    per_item = []
    for count in counts:
        weights: Counter = Counter()
        for sampled in range(count + 1):
            shown = sampled if sampled >= sampling.threshold else 0
            weights[shown] += stats.binom.pmf(sampled, count, sampling.rate)
        per_item.append(list(weights.items()))
    one = {
        tuple(shown for shown, _ in outcome): float(np.prod([weight for _, weight in outcome]))
        for outcome in itertools.product(*per_item)
    }
    if rounds == 1:
        return one
    return {
        tuple(shown for shown, _ in outcome): float(np.prod([weight for _, weight in outcome]))
        for outcome in itertools.product(one.items(), repeat=rounds)
    }


def hockey_stick(left: dict, right: dict, epsilon: float) -> float:
    return sum(max(0.0, weight - np.exp(epsilon) * right.get(outcome, 0.0)) for outcome, weight in left.items())


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.8])
@pytest.mark.parametrize("tau", [1, 2, 4])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0])
def test_neighbouring_histograms_are_as_close_as_the_accountant_says(rate: float, tau: int, epsilon: float) -> None:
    """Two items; the user who is more or less holds the first. The other item changes nothing; some k is the worst."""
    sampling = Sampling.of(rate, tau)
    promised = delta(epsilon, sampling.rate, tau)
    worst = 0.0
    for k in range(1, 60):
        more, less = law((k, 3), sampling), law((k - 1, 3), sampling)
        found = max(hockey_stick(more, less, epsilon), hockey_stick(less, more, epsilon))
        assert found <= promised * (1 + 1e-12)  # the sums here are of floats
        worst = max(worst, found)
    assert worst == pytest.approx(promised, rel=1e-6)  # the promise is no larger than it must be


def test_two_rounds_are_as_close_as_the_accountant_says() -> None:
    sampling, epsilon = Sampling.of(0.25, 3), 0.8
    promised = rounds_delta(epsilon, sampling.rate, 3, 2)
    for k in range(1, 12):
        more, less = law((k,), sampling, 2), law((k - 1,), sampling, 2)
        assert max(hockey_stick(more, less, epsilon), hockey_stick(less, more, epsilon)) <= promised


@pytest.mark.parametrize(("records", "rounds"), [(1, 1), (3, 1), (1, 2)])
def test_what_is_released_follows_the_law_with_and_without_a_user(records: int, rounds: int) -> None:
    """The code's histograms under 6,000 keys: with a user, without her, and with all her records more than once.

    A second sample for a user with more records, a threshold off by one, or one sample for two rounds would each
    move the law.
    """
    sampling = Sampling.of(0.4, 3)
    for holders in ((6, 4), (5, 4)):
        seen: Counter = Counter()
        for number in range(KEYS):
            key = RunKey.derive(FixedSecret(b"privacy tests" * 2), {"number": number})
            seen[released(key, holders, sampling, records, rounds)] += 1
        expected = law(holders, sampling, rounds)
        outcomes = sorted(expected, key=expected.__getitem__, reverse=True)
        assert set(seen) <= set(outcomes)
        observed = np.array([seen[outcome] for outcome in outcomes], dtype=float)
        wanted = KEYS * np.array([expected[outcome] for outcome in outcomes])
        enough = int((wanted >= 10).sum())  # the rare ones go together
        observed, wanted = (np.append(a[:enough], a[enough:].sum()) for a in (observed, wanted))
        assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > FLAKE_RATE
        other = law((holders[0] + 1, holders[1]), sampling, rounds)  # the test would notice one user more
        moved = KEYS * np.array([other[outcome] for outcome in outcomes])
        moved = np.append(moved[:enough], KEYS - moved[:enough].sum())
        assert stats.chisquare(observed, moved).pvalue < FLAKE_RATE


def released(key: RunKey, holders: tuple[int, ...], sampling: Sampling, records: int, rounds: int) -> tuple:
    """What the job's own stages publish: users with `records` records each, in two batches."""
    items = np.repeat(np.arange(len(holders), dtype=np.uint64), holders)
    users = keyed_hash(key.subkey("users"), np.arange(len(items)))
    sampler = Sampler(key, sampling, rounds)
    drawn = sampler.drawn_at_all(users)
    batch = Sample.of(users[drawn], items[drawn])
    counts = count_rounds(merge([batch] * records), sampler, None, (0,) * rounds)
    shown = []
    for one in counts:
        histogram = threshold(one, sampling, 0)
        found = dict(zip(histogram.items.tolist(), histogram.sampled.tolist(), strict=True))
        shown.append(tuple(found.get(item, 0) for item in range(len(holders))))
    return shown[0] if rounds == 1 else tuple(shown)
