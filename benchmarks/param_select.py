"""How well the width of cells is chosen: by the rule, by tuners, and against the labels that paper 003 published.

    SFUMATO_DATA=... python -m benchmarks.param_select [--only published]

Searches are by the plain grid, at synthetic maps, Beijing's taxis, Tokyo's check-ins and San Francisco's cabs. No tuner
learns from the kind of map that it is judged by, and none from San Francisco, nor is the rule fitted to it. It takes a
few minutes.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.baselines.range_methods.ug import UniformGrid
from benchmarks.synthetic_maps import draw_users
from sfumato.pipelines.ranges_tune import PublicData, read_public
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.ranges import BASE_DEPTH, Field, Sizes
from sfumato.schemas.region import EARTH_RADIUS_KM, Grid, Region
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts
from sfumato.transforms.ranges.tuner import TREE_DEPTH, TREES, Label, Tuner, train
from sfumato.transforms.ranges.width_search import (
    QUERIES,
    QuerySample,
    SearchResult,
    entropy,
    sample_users,
    search_grid,
)
from sfumato.transforms.synth.landscape import city_rasters

SIZES = (Sizes(25, 35), Sizes(25, 100), Sizes(50, 100), Sizes(100, 400))
EPSILONS, USERS = (0.05, 0.2, 0.8), (20_000, 200_000, 1_000_000)
PAPER_SIDE, PAPER_KM = 10.0, 20.0  # the published widths are in units of a tenth of the region; a city has 20 km
SF, CITY = "SF cabs", "synthetic city"
_CROPS = ((14.0, 0, 0, 2048), (3.5, 700, 900, 512))  # km, and the part of the city's raster
_CASCADES = (("even cascade", 1.6), ("uneven cascade", 0.8), ("spiky cascade", 0.4), ("mixed cascade", None))


@dataclass(frozen=True)
class Searched:
    """A search on a data set of a kind."""

    kind: str
    spec: CollectionSpec
    entropy: float
    found: SearchResult

    @property
    def label(self) -> Label:
        return Label(self.spec, self.entropy, self.found.width)

    def loss(self, width: float) -> float:
        """By how much more the error is than the least one found, as a share of it."""
        return self.found.at(width) / float(self.found.errors.min()) - 1


# --- data ---


def square(km: float) -> Field:
    """A square region at the equator, where a degree is as long as it is wide."""
    degrees = km / (EARTH_RADIUS_KM * math.pi / 180)
    return Field(Grid(Region(0, -degrees / 2, degrees, degrees / 2), BASE_DEPTH))


def cascade(codes: NDArray[np.uint64], levels: int, concentration: float | None, rng: Generator) -> ExactCounts:
    """People of cells, uint64[n], passed on to quarters of them by shares from Dirichlet distributions.

    concentration: of all cells, or None for that of each drawn from a lognormal distribution.
    """
    for _ in range(levels):
        cells, place = np.unique(codes, return_inverse=True)
        alpha = rng.lognormal(0, 1.2, len(cells)) if concentration is None else np.full(len(cells), concentration)
        shares = np.cumsum(rng.gamma(np.repeat(alpha[:, None], 4, axis=1)) + 1e-12, axis=1)
        shares /= shares[:, -1:]
        quarter = (rng.random(len(codes))[:, None] > shares[place][:, :3]).sum(axis=1)
        codes = codes * np.uint64(4) + quarter.astype(np.uint64)
    return ExactCounts.from_codes(BASE_DEPTH, codes)


def makers(data: Path) -> Iterator[tuple[str, Field, Callable[[int, Generator], ExactCounts]]]:
    """Kinds of maps of which there are as many people as are asked for: (kind, field, its people)."""
    for raster in city_rasters(2048):
        for km, row, column, side in _CROPS:
            part = raster[row : row + side, column : column + side]
            yield CITY, square(km), lambda n, rng, part=part: draw_users(part, BASE_DEPTH, n, rng)  # type: ignore[misc]
    for kind, concentration in _CASCADES:
        for km in (14.0, 5.0):
            yield (
                kind,
                square(km),
                lambda n, rng, c=concentration: cascade(np.zeros(n, np.uint64), BASE_DEPTH, c, rng),  # type: ignore[misc]
            )
    taxis = np.load(data / "beijing_taxi_starts_256x256.npy").astype(np.float64)

    def beijing(n: int, rng: Generator) -> ExactCounts:
        coarse = draw_users(taxis, 8, n, rng)
        return cascade(np.repeat(coarse.codes, coarse.users), BASE_DEPTH - 8, None, rng)

    for km in (14.0, 5.0):
        yield "Beijing, finer by a cascade", square(km), beijing


def look(
    kind: str, exact: ExactCounts, held: float, field: Field, epsilon: float, sizes: Sizes, rng: Generator
) -> Searched:
    spec = CollectionSpec(field, float(exact.users.sum()), epsilon, sizes)
    queries = QuerySample.draw(exact, field, sizes, QUERIES, rng)
    return Searched(kind, spec, held, search_grid(exact, spec, queries, [1]))


def searches(data: Path) -> list[Searched]:
    """All of them; at each number of users and epsilon one range of sizes, in turn. San Francisco's are the last."""
    rng, done = np.random.default_rng(1), list[Searched]()
    for kind, field, make in makers(data):
        whole = make(max(USERS), rng)
        for users in USERS:
            exact = sample_users(whole, users, rng)
            for epsilon in EPSILONS:
                sizes = SIZES[len(done) % len(SIZES)]
                done.append(look(kind, exact, entropy(whole), field, epsilon, sizes, rng))
    tokyo = read_public(str(data / "foursquare_tokyo_checkins.parquet"), None, LocationColumns(), rng)
    cabs = san_francisco(data)
    for kind, public, epsilons in (("Tokyo's check-ins", tokyo, EPSILONS), (SF, cabs, (0.05, 0.1, 0.2, 0.4, 0.8))):
        for epsilon in epsilons:
            for sizes in SIZES:
                held = entropy(public.exact)
                done.append(look(kind, public.exact, held, public.field, epsilon, sizes, rng))
    return done


def san_francisco(data: Path) -> PublicData:
    """All trip starts."""
    region = Region(-122.50764, 37.70794, -122.35978, 37.81944)
    path = str(data / "sf_cabs_starts.parquet")
    return read_public(path, region, LocationColumns(), np.random.default_rng(1))


# --- tables ---


def fit(done: list[Searched]) -> str:
    """The powers of a rule by least squares, over all but San Francisco, and how far off it is there."""
    known = [one for one in done if one.kind != SF]

    def terms(of: list[Searched]) -> NDArray[np.float64]:
        rows = []
        for one in of:
            spec = one.spec
            size, area = spec.sizes.low * spec.sizes.high, math.prod(spec.field.metres)
            rows.append((1, math.log(size) / 2, math.log(area) / 2, math.log(spec.users * spec.epsilon)))
        return np.array(rows)

    target = np.log([one.found.width for one in known])
    powers = np.linalg.lstsq(terms(known), target, rcond=None)[0]
    spread = float(np.std(target - terms(known) @ powers))
    return (
        f"{len(known)} searches: width = {math.exp(powers[0]):.3g} s^{powers[1]:.2f} L^{powers[2]:.2f} "
        f"(n epsilon)^{powers[3]:.2f}, standard deviation of its logarithm {spread:.2f}\n"
    )


def losses(done: list[Searched]) -> str:
    """By kind of map, what each way to choose the width loses against the best found: mean and worst."""
    lines = [["map", "entropy", "rule", "tuner", "tuner, entropy unknown", "tuner of the city", "ug"]]
    of_city = tuner_of([one for one in done if one.kind == CITY])
    for kind in dict.fromkeys(one.kind for one in done):
        judged = [one for one in done if one.kind == kind]
        tuner = tuner_of([one for one in done if one.kind not in (kind, SF)])
        mean = float(np.mean([held for _, held in tuner.places]))
        ways = (
            [one.loss(one.spec.default_width) for one in judged],
            [one.loss(tuner.width(one.spec, one.entropy)) for one in judged],
            [one.loss(tuner.width(one.spec, mean)) for one in judged],
            None if kind == CITY else [one.loss(of_city.width(one.spec, one.entropy)) for one in judged],
            [one.loss(uniform(one.spec)) for one in judged],
        )
        shown = ["-" if way is None else f"{np.mean(way):.1%} ({max(way):.0%})" for way in ways]
        lines.append([kind, f"{np.mean([one.entropy for one in judged]):.1f}", *shown])
    return markdown_table(lines)


def tuner_of(done: list[Searched]) -> Tuner:
    return train([one.label for one in done], 0)


def uniform(spec: CollectionSpec) -> float:
    """The uniform grid's rule in metres."""
    return math.sqrt(math.prod(spec.field.metres)) / UniformGrid().cells_per_side(spec)


@dataclass(frozen=True, eq=False)
class PublishedWidths:
    """The published labels of ParamSelect: the cell widths at which the authors' networks had the least error.

    Attributes:
        city: object[n], without the prefix of the data set.
        features: float64[n, 5]: n, epsilon, 1 / (n epsilon), 1 / sqrt(n epsilon), entropy of the city's check-ins.
        best: float64[n], in tenths of the region's side.
        trained: bool[n], the 45 labels of nine cities that the authors train on; the others are Veraset's.
    """

    city: NDArray[np.object_]
    features: NDArray[np.float64]
    best: NDArray[np.float64]
    trained: NDArray[np.bool_]

    @classmethod
    def read(cls, data: Path) -> PublishedWidths:
        with (data / "snh_city_features_gowalla.csv").open() as file:
            held = {row["city"]: float(row["entropy_512"]) for row in csv.DictReader(file)}
        with (data / "snh_best_cell_width_gowalla.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["best"]]
        features = [paper_features(float(row["n"]), float(row["eps"]), held[row["city"]]) for row in rows]
        names = np.array([row["city"] for row in rows], dtype=object)
        city = np.array([name.removeprefix("gowalla_") for name in names], dtype=object)
        best = np.array([float(row["best"]) for row in rows])
        return cls(city, np.array(features), best, names != city)

    @property
    def scale(self) -> NDArray[np.float64]:
        """n epsilon."""
        return np.asarray(self.features[:, 0] * self.features[:, 1])

    def trees(self, rows: NDArray[np.bool_], columns: int = 5) -> Any:
        """The regression that the paper names, by the labels of some rows and the first features."""
        from sklearn.ensemble import ExtraTreesRegressor

        trees = ExtraTreesRegressor(TREES, max_depth=TREE_DEPTH, random_state=0)
        return trees.fit(self.features[rows, :columns], self.best[rows])

    def guesses(self, rest: NDArray[np.bool_], test: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
        """Widths for the labels `test`, by each way, from the labels `rest`."""
        power = np.stack([np.ones(len(self.best)), np.log(self.scale)], axis=1)
        fitted = np.linalg.lstsq(power[rest], np.log(self.best[rest]), rcond=None)[0]
        return {
            "ParamSelect (ExtraTrees)": self.trees(rest).predict(self.features[test]),
            "without entropy": self.trees(rest, 4).predict(self.features[test, :4]),
            "a constant power of n epsilon": np.exp(power[test] @ fitted),
            "a constant": np.full(test.sum(), self.best[rest].mean()),
            "the rule of ug": PAPER_SIDE / np.sqrt(self.scale[test] / 10),
        }


def paper_features(users: float, epsilon: float, held: float) -> tuple[float, ...]:
    """The five features of ParamSelect (paper 003, Section 5.1)."""
    return users, epsilon, 1 / (users * epsilon), 1 / math.sqrt(users * epsilon), held


def published(data: Path) -> str:
    """Mean absolute error of the width, in tenths of the region: city by city left out, then by the paper's split."""
    labels = PublishedWidths.read(data)
    cities = np.unique(labels.city)
    found: dict[str, NDArray[np.float64]] = {}
    for city in cities:
        test = labels.city == city
        for name, guess in labels.guesses(~test, test).items():
            found.setdefault(name, np.empty(len(labels.best)))[test] = guess
    epsilon = labels.features[:, 1]
    epsilons = np.unique(epsilon)
    lines = [["width by", "all", *(f"epsilon {one:g}" for one in epsilons)]]
    for name, off in [(name, np.abs(guess - labels.best)) for name, guess in found.items()]:
        lines.append([name, f"{off.mean():.4f}", *(f"{off[epsilon == one].mean():.4f}" for one in epsilons)])
    means = [f"{labels.best[epsilon == one].mean():.4f}" for one in epsilons]
    lines.append(["(mean label)", f"{labels.best.mean():.4f}", *means])
    left_out = f"{len(labels.best)} labels of {len(cities)} cities, each left out in turn\n\n{markdown_table(lines)}"
    return f"{left_out}\n{paper_split(labels)}"


def paper_split(labels: PublishedWidths) -> str:
    """Errors in metres of a region of 20 km: trained on nine Gowalla cities, judged by three cities of Veraset."""
    test = ~labels.trained
    setting = (labels.city == "Milwaukee") & (labels.features[:, 0] == 100_000)
    metres = 1000 * PAPER_KM / PAPER_SIDE
    lines = [["width by", f"all {test.sum()} labels, m", f"Milwaukee, 100,000 ({(test & setting).sum()}), m"]]
    for name, guess in labels.guesses(labels.trained, test).items():
        off = np.abs(guess - labels.best[test]) * metres
        lines.append([name, f"{off.mean():.1f}", f"{off[setting[test]].mean():.1f}"])
    means = [f"{labels.best[rows].mean() * metres:.1f}" for rows in (test, test & setting)]
    lines.append(["(mean label)", *means])
    return f"The paper's split, in metres of a region of {PAPER_KM:g} km\n\n{markdown_table(lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("published",), help="only the tables on the published labels")
    options = parser.parse_args()
    data = Path(os.environ["SFUMATO_DATA"])
    print(f"### Published labels\n\n{published(data)}")
    if options.only:
        return
    done = searches(data)
    print(f"### The rule's powers\n\n{fit(done)}")
    print(f"### Error above that of the best width, mean (worst)\n\n{losses(done)}")


if __name__ == "__main__":
    main()
