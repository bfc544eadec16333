"""Made-up releases of sample and threshold for tests of the pages: items, prefixes, cells and a distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from sfumato.schemas.charts import CellLayer, Curve, ItemBars, Quantile, RangeAnswer
from tests.transforms.release.city import REGION, city_density

RATE, THRESHOLD, HIDDEN = 0.25, 20, 118
_SYLLABLES = ["ba", "ca", "da", "fe", "gi", "ho", "ka", "lo", "ma", "ne", "pi", "ru", "sa", "te", "vo", "za"]


def estimates(true: NDArray[np.float64], rng: Generator) -> tuple[NDArray[np.int64], Any, Any]:
    """Rows that a round publishes of true counts, their estimates and standard deviations."""
    drawn = rng.binomial(true.astype(np.int64), RATE)
    kept = np.flatnonzero(drawn >= THRESHOLD)
    return kept, drawn[kept] / RATE, np.sqrt(drawn[kept] * (1 - RATE)) / RATE


def zipf_items(n: int = 3000, users: float = 4e6) -> ItemBars:
    """A histogram: `n` names whose users fall off as 1 / rank, less what the threshold drops."""
    rng = default_rng(5)
    true = np.floor(users / np.log(n) / (1 + np.arange(n)))
    kept, count, stddev = estimates(true, rng)
    zeros = np.zeros(len(kept), np.int64)
    return ItemBars([name_of(int(i)) for i in kept], zeros, zeros - 1, count, stddev)


def name_of(rank: int) -> str:
    """A different made-up name for each number."""
    return " ".join(
        "".join(_SYLLABLES[int(digit, 16)] for digit in part) for part in (f"{rank * 7919 % 65536:04x}", f"{rank:x}")
    )


def prefix_items(lengths: tuple[int, ...] = (2, 4, 8), n: int = 3000) -> ItemBars:
    """Hot spots over strings: published prefixes of the same names, and whole items (length 0) at the end."""
    rng = default_rng(6)
    names = [name_of(i).replace(" ", "") for i in range(n)]
    weight = 1e6 / (1 + np.arange(n))
    rows: dict[str, tuple[int, int, float, float]] = {}
    for length in (*lengths, 0):
        sums: dict[str, float] = {}
        for name, users in zip(names, weight, strict=True):
            key = name[:length] if length else name
            sums[key] = sums.get(key, 0.0) + users
        keys = sorted(sums)
        kept, count, stddev = estimates(np.array([sums[key] for key in keys]), rng)
        above = lengths[-1] if not length else ([0, *lengths])[lengths.index(length)]
        order = {key: i for i, key in enumerate(rows)}
        for i, users, spread in zip(kept, count, stddev, strict=True):
            parent = order.get(keys[i][:above], -1) if above else -1
            if (above and parent < 0) or keys[i] in rows:
                continue
            rows[keys[i]] = (length, parent, float(users), float(spread))
    columns = list(zip(*rows.values(), strict=True))
    return ItemBars(list(rows), np.array(columns[0]), np.array(columns[1]), np.array(columns[2]), np.array(columns[3]))


def city_cells(levels: tuple[int, ...] = (8,), users: float = 2e6) -> list[CellLayer]:
    """Cells of the made-up city; those of a level lie inside the published cells of the level before."""
    rng = default_rng(8)
    finest = max(levels)
    density = city_density(1 << finest)
    true = rng.poisson(density * users).astype(np.float64)
    # Stations, halls and corners where many meet: a cell's own users, apart from the street's.
    spots = rng.choice(density.size, 400, p=density.ravel())
    true.ravel()[spots] += np.floor(60 * (1 + rng.pareto(0.9, 400)).clip(0, 400))
    layers: list[CellLayer] = []
    for level in levels:
        factor = 1 << (finest - level)
        sums = true.reshape(1 << level, factor, 1 << level, factor).sum(axis=(1, 3)).ravel()
        if layers:
            above = layers[-1]
            inside = np.zeros((1 << above.level,) * 2)
            inside[above.y, above.x] = 1
            step = 1 << (level - above.level)
            sums = sums * np.kron(inside, np.ones((step, step))).ravel()
        kept, count, stddev = estimates(sums, rng)
        x, y = kept & ((1 << level) - 1), kept >> level
        names = [f"r{level}-{i}" for i in kept.tolist()]
        layers.append(CellLayer(level, x, y, count, stddev, names, RATE, THRESHOLD))
    return layers


def trip_lengths() -> tuple[Curve, list[Quantile], list[RangeAnswer]]:
    """Trip lengths in kilometres: short hops, the way to work, and a tail; estimates with their draw's spread."""
    rng = default_rng(9)
    drawn = np.concatenate([rng.gamma(2.0, 1.1, 9000), rng.normal(9, 2.2, 6000), rng.exponential(14, 2500) + 2])
    drawn = np.clip(drawn, 0, 50)
    value = np.linspace(0, 50, 257)
    share = np.searchsorted(np.sort(drawn), value, side="right") / len(drawn)
    spread = 1.96 * np.sqrt(share * (1 - share) * (1 - RATE) / len(drawn)) * 3
    curve = Curve(value, share, share - spread, share + spread)
    quantiles = []
    for asked in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        low, middle, high = (float(np.interp(asked, line, value)) for line in (curve.high, share, curve.low))
        quantiles.append(Quantile(asked, middle, min(low, middle), max(high, middle)))
    ranges = []
    for low, high in ((0.0, 2.0), (2.0, 10.0), (5.0, 20.0), (20.0, 50.0)):
        inside = float(((drawn > low) & (drawn <= high)).sum())
        ranges.append(RangeAnswer(low, high, inside / RATE, float(np.sqrt(inside * (1 - RATE)) / RATE)))
    return curve, quantiles, ranges


def sample_manifest(job: str, levels: tuple[int, ...] = (0,), safe: bool = True, **others: Any) -> dict[str, Any]:
    """A manifest by the contract of the three jobs."""
    return {
        "format": "sfumato-release/2",
        "release_id": "2026-11-21-made-up",
        "job": job,
        "created": "2026-11-21T03:00:00+00:00",
        "region": REGION,
        "grid": {"depth": max(levels), "side": 2 ** max(levels)},
        "privacy": {
            "unit": "user",
            "contribution_bound": "one item a user, chosen uniformly by the key",
            "adjacency": "two datasets are neighbours when one holds all the records of one more user",
            "epsilon": 1.0,
            "epsilon_spent": 1.0,
            "delta": 1e-8,
            "mechanism": "sample and threshold: no noise is added",
            "randomness": {"source": "operating system" if safe else "seed", "safe": safe},
            "rounds": [
                {
                    "index": index,
                    "level": level,
                    "sampling_rate": RATE,
                    "threshold": THRESHOLD,
                    "published": 100 * (index + 1),
                }
                for index, level in enumerate(levels)
            ],
            "round_guarantee": {"epsilon": 0.41, "delta": 2.5e-9},
            "composition": "one round, exact" if len(levels) == 1 else "privacy loss distributions",
            "population": {"users": 4_000_000, "source": "given"},
            "assumptions": [
                "Every user has one id; a person with two ids counts as two users.",
                "The key that draws the users is secret and is never used for another release.",
            ],
        },
        "results": {"published": 1234, "estimated_users": 3_912_345.0, "hidden_count": HIDDEN},
        "parameters": {"column": "trip_km", "epsilon": 1.0, "delta": 1e-8},
        "versions": {"sfumato": "0.1.0", "numpy": np.__version__},
        "warnings": [],
    } | others
