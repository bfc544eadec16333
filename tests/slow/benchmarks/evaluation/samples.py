"""Made-up outcomes of a comparison over a city that never was: pictures blurred and noisy by method and setting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.evaluation.density_metrics import HIGHER_IS_BETTER
from benchmarks.evaluation.outcomes import Outcome, Setting
from tests.seeds import seeded_rng
from tests.unit.release.city import city_density

SIDE = 128
USERS, EPSILONS, CALIBRATIONS = (10_000, 100_000), (0.5, 1.0, 2.0), (0.05, 0.1, 0.2)
QUALITY = {
    "adaptive": 1.0,
    "flat": 4.0,
    "hierarchical": 1.6,
    "count_min": 9.0,
    "emd": 1.3,
    "emd (level by truth)": 1.15,
}


def sample_outcomes(metrics: tuple[str, ...], keys: int = 4, side: int = SIDE) -> list[Outcome]:
    """Every method at every number of users and epsilon, the adaptive one at every calibration too, and the yardstick.

    flat has no value where it meets few users and a small epsilon, as if its shards were lost.
    """
    truth = city_density(side)
    outcomes = []
    for users in USERS:
        cohort = {key: seeded_rng([users, key]).normal(1, 0.02) for key in range(keys)}
        for key in range(keys):
            blurred = _picture(truth, 2, 0.0, [users, key]) if key == 0 else None
            setting = Setting("best_level", (("users", users),))
            outcomes.append(Outcome(setting, key, _metrics(metrics, 0.9, users, 9.0, cohort[key]), 2, 14, 0.0, blurred))
        for method, quality in QUALITY.items():
            for epsilon in EPSILONS:
                for c in CALIBRATIONS if method == "adaptive" else (None,):
                    options: tuple[tuple[str, Any], ...] = (("users", users), ("epsilon", epsilon))
                    setting = Setting(method, (*options, ("calibration", c)) if c else options)
                    factor = quality * (1 + abs(math.log(c / 0.1))) if c else quality
                    for key in range(keys):
                        seed = [users, key, int(10 * epsilon), len(outcomes)]
                        jitter = cohort[key] * seeded_rng(seed).normal(1, 0.01)
                        scores = _metrics(metrics, factor, users, epsilon, jitter)
                        failed = method == "flat" and users == USERS[0] and epsilon == EPSILONS[0]
                        noise = 0.02 * factor / epsilon * math.sqrt(1e4 / users)
                        blur = 2 if quality < 2 else 4
                        outcomes.append(
                            Outcome(
                                setting,
                                key,
                                dict.fromkeys(metrics, math.nan) if failed else scores,
                                0 if failed else 340 * int(quality * 2) + key,
                                0 if failed else 5780 * int(quality * 2) + 17 * key,
                                1.0 if failed else 0.0,
                                _picture(truth, blur, noise, seed) if key == 0 and not failed else None,
                            )
                        )
    return outcomes


def _metrics(metrics: tuple[str, ...], factor: float, users: int, epsilon: float, jitter: float) -> dict[str, float]:
    error = factor * (1 + 0.4 / epsilon) * math.sqrt(1e4 / users) * jitter
    sizes = {"mse": 3.9e-11 * error, "l1": 0.21 * error, "mape": 55.0 * error, "emd": 0.004 * error}
    bounded = math.exp(-0.05 * error)
    return {name: bounded if name in HIGHER_IS_BETTER else sizes.get(name, 0.3 * error) for name in metrics}


def _picture(truth: NDArray[np.float64], block: int, noise: float, seed: list[int]) -> NDArray[np.float32]:
    side = len(truth) // block
    coarse = truth.reshape(side, block, side, block).mean(axis=(1, 3)).repeat(block, 0).repeat(block, 1)
    rough = seeded_rng(seed).normal(0, noise * truth.mean() * 10, (side, side)).repeat(block, 0)
    return (coarse + rough.repeat(block, 1)).clip(0).astype(np.float32)
