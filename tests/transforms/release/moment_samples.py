"""Made-up releases of bit pushing for tests of the page and the picture: bit means, estimates, groups and cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from sfumato.schemas.moments import EVERYBODY, OTHER, BitMeans, MomentEstimate
from tests.transforms.release.city import REGION, city_density

CLIENTS = 10_000
_Z = 1.96


def bit_means(
    values: NDArray[np.float64],
    weight: NDArray[np.float64],
    epsilon: float | None,
    *,
    quantity: str = "value",
    clients: int = CLIENTS,
    seed: int = 3,
) -> BitMeans:
    """What `clients` of those who hold whole `values` answer about the bits of the given weights."""
    rng = default_rng(seed)
    signed = np.where(weight[:, None] < 0, -values, values)
    bit = np.log2(np.abs(weight) / np.abs(weight).min()).round().astype(np.int64)
    true = ((np.maximum(signed, 0).astype(np.int64) >> bit[:, None]) & 1).mean(axis=1)
    share = np.abs(weight) ** 0.5
    reports = np.maximum(np.floor(clients * share / share.sum()), 1)
    truth = 1.0 if epsilon is None else math.exp(epsilon) / (1 + math.exp(epsilon))
    ones = rng.binomial(reports.astype(np.int64), true * truth + (1 - true) * (1 - truth))
    mean = (ones / reports - (1 - truth)) / (2 * truth - 1)
    noise = np.sqrt((0.25 if epsilon is not None else np.maximum(mean * (1 - mean), 0)) / reports) / (2 * truth - 1)
    squashed = (mean < 2 * noise) if epsilon is not None else np.zeros(len(weight), bool)
    return BitMeans(quantity, weight, mean, noise, reports, squashed, reports / clients)


def trip_times(n: int = CLIENTS) -> NDArray[np.float64]:
    """Seconds of n trips, whole numbers below 4,096, so that of 16 bits the upper four are never set."""
    return np.minimum(np.floor(default_rng(1).gamma(3.0, 420.0, n)), 4095.0)


def unsigned_bits(epsilon: float | None = 2.0) -> list[BitMeans]:
    """16 bits of trip times."""
    return [bit_means(trip_times(), 2.0 ** np.arange(16), epsilon)]


def split_bits(epsilon: float | None = 2.0) -> list[BitMeans]:
    """12 bits, two below the point, of temperatures with either sign, and the 20 bits of their squares."""
    steps = np.clip(np.rint(default_rng(2).normal(24.0, 60.0, CLIENTS)), -4095, 4095)
    weight = 2.0 ** np.arange(12)
    both = bit_means(steps, np.concatenate([weight, -weight]), epsilon)
    square = bit_means(np.rint((steps / 4) ** 2), 2.0 ** np.arange(20), epsilon, quantity="square", seed=4)
    value = BitMeans(
        "value", both.weight / 4, both.mean, both.stddev, both.reports, both.squashed, both.read_probability
    )
    return [value, square]


def estimate(group: str, statistic: str, value: float, stddev: float, clients: float = CLIENTS) -> MomentEstimate:
    """One published number with the interval of a normal law."""
    return MomentEstimate(group, statistic, value, stddev, value - _Z * stddev, value + _Z * stddev, clients)


def estimates(bits: list[BitMeans], statistics: tuple[str, ...] = ("mean",)) -> list[MomentEstimate]:
    """Everybody's numbers; the first is the mean by the bits, the others are made up."""
    first = bits[0]
    kept = ~first.squashed
    mean = float((first.weight * first.mean)[kept].sum())
    stddev = float(np.sqrt(((first.weight * first.stddev)[kept] ** 2).sum()))
    made_up = {"variance": (521_300.0, 18_200.0), "moment:3": (6.1e9, 4.4e8), "geometric_mean": (1031.0, 25.1)}
    others = [estimate(EVERYBODY, name, *made_up.get(name, (6.9381e4, 12.0))) for name in statistics if name != "mean"]
    return [estimate(EVERYBODY, "mean", mean, stddev), *others]


def groups(n: int = 40, statistics: tuple[str, ...] = ("mean",), rng: Generator | None = None) -> list[MomentEstimate]:
    """Numbers of n districts, of very different sizes, and of all others."""
    rng = rng or default_rng(5)
    rows = []
    for i in range(n + 1):
        name = OTHER if i == n else f"District {i + 1}"
        clients = float(np.round(60_000 / (i + 1.5)))
        for statistic in statistics:
            rows.append(estimate(name, statistic, float(rng.normal(1250, 240)), 9000 / clients**0.5, clients))
    return rows


def mean_cells(level: int = 5, seed: int = 6) -> dict[str, Any]:
    """The columns of cells with their means, over the made-up city; quiet cells are left out."""
    rng = default_rng(seed)
    clients = np.rint(city_density(1 << level).ravel() * 2e5)
    kept = np.flatnonzero(clients >= 100)
    x, y = kept & ((1 << level) - 1), kept >> level
    stddev = 900 / np.sqrt(clients[kept])
    value = -40 + 7 * x + 3 * y + stddev * rng.normal(size=len(kept))
    return {
        "level": level,
        "x": x,
        "y": y,
        "cell_id": [f"r{level}-{i}" for i in kept.tolist()],
        "value": value,
        "low": value - _Z * stddev,
        "high": value + _Z * stddev,
        "clients": clients[kept],
        "differs": np.where(np.abs(value - np.median(value)) > 60, np.sign(value - np.median(value)), 0).astype(
            np.int8
        ),
    }


def moments_manifest(
    epsilon: float | None = 2.0,
    *,
    column: str = "trip_seconds",
    bits: int = 16,
    signed: str = "no",
    safe: bool = True,
    grouped: bool = False,
    bits_per_client: int = 1,
    **others: Any,
) -> dict[str, Any]:
    """A manifest by the contract of `sfumato moments`."""
    apart = None if epsilon is None else epsilon / bits_per_client
    truth = None if apart is None else math.exp(apart) / (1 + math.exp(apart))
    most = 2.0**bits - 1
    return {
        "format": "sfumato-release/2",
        "release_id": "2026-11-21-made-up",
        "job": "moments",
        "created": "2026-11-21T03:00:00+00:00",
        "region": REGION,
        "grid": {"depth": 5, "side": 32},
        "column": column,
        "fixed_point": {
            "bits": bits,
            "fraction_bits": 0,
            "signed": signed,
            "offset": 0.0,
            "step": 1.0,
            "low": -most if signed == "split" else 0.0,
            "high": most,
        },
        "method": "adaptive",
        "privacy": {
            "unit": "user",
            "contribution_bound": "one value a user, and one bit of it",
            "adjacency": "add or remove one user",
            "collector": epsilon and {"epsilon": epsilon, "adjacency": "one client's value is replaced"},
            "noise_stddev": 0.8,
            "trust": "none" if epsilon is None else "local",
            "epsilon": epsilon,
            "delta": 0.0,
            "mechanism": "bit pushing" if epsilon is None else "bit pushing with randomised response",
            "randomness": {"source": "operating system" if safe else "seed", "safe": safe},
            "groups": {"epsilon": 1.0, "min_group": 100, "noise_stddev": 11.3} if grouped else None,
            "meter": {
                "bits_per_client": bits_per_client,
                "bits_per_value": 1,
                "cap": bits_per_client,
                "epsilon_per_bit": apart,
                "epsilon_per_client": epsilon,
                "truth_probability": truth,
                "highest_read_probability": 0.2931,
            },
            "assumptions": [
                "Every user has one id; a person with two ids counts as two users.",
                "Each client's device, or whoever runs the job for it, forgets the value after the bit was sent.",
            ],
        },
        "results": {
            "clients": float(CLIENTS),
            "groups_published": 40 if grouped else None,
            "rounds": [
                {"quantity": "value", "round": 1, "clients": 3333.0, "reports": 3333.0},
                {"quantity": "value", "round": 2, "clients": 6667.0, "reports": 6667.0},
            ],
        },
        "parameters": {"column": column, "bits": bits, "epsilon": epsilon},
        "versions": {"sfumato": "0.1.0", "numpy": np.__version__},
        "warnings": [],
    } | others
