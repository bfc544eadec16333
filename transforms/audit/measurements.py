"""The noisy counts that a release publishes, and what one user may add to them. Pure.

A job's audit compares them between runs on neighbouring logs. What a user may add is taken from the manifest, as is the
noise: whether it pays for the stated epsilon is checked by `claims`.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from sfumato.schemas.guarantee import SERVERS, Trust, days_averaged, entry_of
from sfumato.schemas.release import (
    ANSWERS_FILE,
    BINS_FILE,
    CELLS_FILE,
    FLOWS_FILE,
    ITEMS_FILE,
    MODEL_FILE,
    MOMENTS_FILE,
    ZONES_FILE,
)
from sfumato.transforms.audit.answers import table_of
from sfumato.transforms.audit.claims import StatedNoise, sub_query_noises
from sfumato.transforms.release.published_release import Release

_ROUNDED = 1.01  # a value is rounded to parts of the range, at random
_TO = " to "
_CELL_ENDS = ("origin_cell", "destination_cell")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measurement:
    """Counts of one draw of noise, or of one sample.

    Attributes:
        name: in words.
        keys: what each value counts, such as names of nodes.
        values: float64[n].
        bound: what one user adds to all values at most, in the norm.
        norm: 1 or 2.
        stddev: of the noise of a value, float64[n]; None where values are of a sample, which has no noise.
        noise: of one draw; None where it is not stated.
        threshold: the least value that is shown; None where every value is shown.
        follows: whether what is counted follows from earlier measurements.
        keeps_noise: whether a count has the same noise whatever else is counted.
        nested: whether keys are names of nodes, of which some may hold others.
        parents: what the measurement before shows, if only what is below it is counted; None where all is.
        cut: whether only the largest values are shown.
    """

    name: str
    keys: tuple[str, ...]
    values: Floats
    bound: float
    norm: int = 1
    stddev: Floats | None = None
    noise: StatedNoise | None = None
    threshold: float | None = None
    follows: bool = False
    keeps_noise: bool = False
    nested: bool = False
    parents: frozenset[str] | None = None
    cut: bool = False

    @cached_property
    def by_key(self) -> dict[str, float]:
        """The values by what they count."""
        return dict(zip(self.keys, self.values.tolist(), strict=True))

    @cached_property
    def inner(self) -> frozenset[str]:
        """The nodes that hold other nodes: they are counted without these, and so differ with them."""
        if not self.nested:
            return frozenset()
        found = set()
        for key in self.keys:
            ends = [[end[:length] for length in range(1, len(end) + 1)] for end in key.split(_TO)]
            found |= {_TO.join(outer) for outer in itertools.product(*ends)} - {key}
        return frozenset(found)

    def has_parent(self, key: str) -> bool:
        """Whether a key was counted, as far as the measurement before shows it."""
        return self.parents is None or any(key[:length] in self.parents for length in range(1, len(key) + 1))


def measurements(release: Release) -> list[Measurement]:
    """Returns the measurements of a release, in the order in which they were made.

    Raises KeyError, TypeError or ValueError for a figure that the manifest lacks.
    """
    found = list(_user_counts(release.manifest))
    for file, read in _READERS.items():
        if file in (release.listed or {}):
            found += read(release)
    return found


def _user_counts(manifest: Mapping[str, Any]) -> Iterator[Measurement]:
    """Yields the noisy counts of users, of which a user changes each by 1."""
    privacy = manifest["privacy"]
    counted = privacy.get("admission") or {**entry_of(privacy, "population"), "noise": privacy.get("noise")}
    users = {name: counted[name] for name in ("counted", "users", "unusable") if counted.get(name) is not None}
    if "counted" in users:
        users = {"counted": users["counted"]}
    stddev, kind = counted.get("noise_stddev"), counted.get("noise") or "laplace"
    if not stddev:
        return
    unit = 1 / counted.get("sampling_rate", 1.0)  # of a sample each user counts for several
    for name, value in users.items():
        noise = StatedNoise(kind, stddev / unit, unit=unit)
        shown = np.array([float(value)])
        yield Measurement(f"noisy number of users ({name})", (name,), shown, unit, 1, np.array([stddev]), noise)


def _answers(release: Release) -> Iterator[Measurement]:
    table, queries = table_of(release, ANSWERS_FILE), release.manifest["privacy"]["sub_queries"]
    for query, noise in zip(queries, sub_query_noises(release.manifest), strict=True):
        part = table.filter(pc.equal(table["sub_query"], query["index"]))
        columns = part["cell_id"].to_pylist(), part["users"].to_numpy(), part["stddev"].to_numpy()
        yield _noisy(f"sub-query {query['index']}", *columns, noise, follows=query["index"] > 1, nested=True)


def _zones(release: Release) -> Iterator[Measurement]:
    if "sub_queries" not in release.manifest["privacy"]:
        yield from _rounds(release)  # of a histogram; the statistics of moments are in another table
        return
    queried = [level for level in release.manifest["zones"]["levels"] if level["noise_stddev"] is not None]
    if len(queried) == 1:  # with several levels the published users are estimates from all of them
        zones, (noise,) = table_of(release, ZONES_FILE), sub_query_noises(release.manifest)
        part = zones.filter(pc.equal(zones["level"], queried[0]["name"]))
        columns = part["zone"].to_pylist(), part["users"].to_numpy(), part["stddev"].to_numpy()
        yield _noisy(f"zones of {queried[0]['name']}", *columns, noise)


def _noisy(name: str, keys: list[str], values: Floats, stddev: Floats, noise: StatedNoise, **more: Any) -> Measurement:
    bound = noise.sensitivity * noise.unit
    return Measurement(name, tuple(keys), values, bound, noise.norm, stddev, noise, **more)


def _rounds(release: Release) -> Iterator[Measurement]:
    """Yields the rounds of a histogram, hot spots or quantiles. All items of a round have its level."""
    manifest, files = release.manifest, release.listed or {}
    rounds = manifest["privacy"].get("rounds")
    if not rounds or manifest["job"] == "flows":
        return
    file = next(name for name in (BINS_FILE, ITEMS_FILE, CELLS_FILE, ZONES_FILE) if name in files)
    table, level = table_of(release, file), "depth" if file == CELLS_FILE else "level"
    key = {CELLS_FILE: "cell_id", ITEMS_FILE: "item", BINS_FILE: "low", ZONES_FILE: "zone"}[file]
    bound = entry_of(manifest["parameters"], "bound")
    items, records, top = bound.get("max_items", 1), bound.get("max_records", 1), manifest["parameters"].get("top")
    days = days_averaged(manifest)
    shown: frozenset[str] | None = None
    for index, one in enumerate(rounds):
        at = one["level"] if len(rounds) > 1 or file != ITEMS_FILE else 0
        part = table if file == ZONES_FILE else table.filter(pc.equal(table[level], at))
        sampled, is_gaussian = "sampled" in table.column_names, one.get("noise") == "gaussian"
        keys = tuple(map(str, part[key].to_pylist()))
        values = part["sampled" if sampled else "count"].to_numpy().astype(float)
        cut = index == len(rounds) - 1 and top is not None and len(values) >= top
        threshold = one.get("threshold")
        if cut:
            threshold = float(values.min())
        yield Measurement(
            f"level {one['level']}",
            keys,
            values,
            records * (math.sqrt(items) if is_gaussian else items) / days,
            2 if is_gaussian else 1,
            None if sampled else part["stddev"].to_numpy(),
            None if sampled else replace(_noise_of_round(one, manifest["privacy"]["trust"]), unit=1 / days),
            threshold,
            index > 0,
            keeps_noise=True,
            parents=shown,
            cut=cut,
        )
        shown = None if threshold is None else frozenset(keys)


def _noise_of_round(one: Mapping[str, Any], trust: str) -> StatedNoise:
    """Returns the noise of one party; truncated noise is Laplace noise but for its far tail."""
    draws = SERVERS if trust == Trust.SPLIT else 1
    kind = "laplace" if one["noise"] == "truncated" else one["noise"]
    return StatedNoise(kind, one["noise_stddev"] / math.sqrt(draws), draws=draws)


def _grid(release: Release) -> Iterator[Measurement]:
    """Yields the parts of a grid for range counts. Those of a tree are estimates."""
    privacy = release.manifest["privacy"]
    with np.load(io.BytesIO(release.read(MODEL_FILE)), allow_pickle=False) as model:
        if "x_edges" in model and privacy["trust"] == Trust.CENTRAL and privacy.get("noise_stddev"):
            users = model["users"].astype(float).ravel()
            (noise,) = sub_query_noises(release.manifest)
            edges = "/".join(f"{model[axis][:3]}{model[axis][-3:]}" for axis in ("x_edges", "y_edges"))
            keys = [f"{edges}:{number}" for number in range(len(users))]
            yield _noisy("parts of the grid", keys, users, np.full(len(users), privacy["noise_stddev"]), noise)


def _flows(release: Release) -> Iterator[Measurement]:
    """Yields the noisy counts of listed pairs. Each round counts all trips of its pairs again."""
    table, trips = table_of(release, FLOWS_FILE), release.manifest["parameters"]["max_trips"]
    table = table.filter(pc.invert(table["is_rest"]))
    ends = ("origin_zone", "destination_zone") if "origin_zone" in table.column_names else _CELL_ENDS
    keys = [_TO.join(pair) for pair in zip(*(table[end].to_pylist() for end in ends), strict=True)]
    noise = StatedNoise("laplace", release.manifest["privacy"]["rounds"][-1]["noise_stddev"])
    stddev, values = np.full(len(keys), noise.stddev), table["noisy"].to_numpy().astype(float)
    yield Measurement(
        "pairs", tuple(keys), values, trips, 1, stddev, noise, follows=True, keeps_noise=True, nested=ends == _CELL_ENDS
    )


def _central_mean(release: Release) -> Iterator[Measurement]:
    """Yields the sum of the values of all users. The noise of mean and users is not stated for this product."""
    manifest = release.manifest
    if manifest["privacy"]["trust"] == Trust.CENTRAL and "second" not in manifest:
        table, span = table_of(release, MOMENTS_FILE), manifest["range"]
        means = table.filter(pc.and_(pc.equal(table["statistic"], "mean"), pc.equal(table["group"], "everybody")))
        sums = means["value"].to_numpy() * means["clients"].to_numpy()
        bound = max(abs(span["low"]), abs(span["high"]), span["high"] - span["low"])
        yield Measurement("sum of values", ("sum",) * len(sums), sums, bound * _ROUNDED)


_READERS: Mapping[str, Callable[[Release], Iterator[Measurement]]] = {
    ANSWERS_FILE: _answers,
    ZONES_FILE: _zones,
    CELLS_FILE: _rounds,
    ITEMS_FILE: _rounds,
    BINS_FILE: _rounds,
    MODEL_FILE: _grid,
    FLOWS_FILE: _flows,
    MOMENTS_FILE: _central_mean,
}
