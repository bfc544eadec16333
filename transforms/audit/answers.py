"""Published answers against the stated noise: two noisy counts of the same users must agree within it. Pure.

Sub-queries count the same users with independent noise. So wherever two of them have a node of the quadtree, their sums
below it differ by noise only, and so do the noisy user count and the sum of a sub-query. By Chernoff's bound

    P[|difference of n1 and n2 answers| >= x] <= 2 min_t exp(n1 K1(t) + n2 K2(t) - t x),

where K is the cumulant generating function of one answer's noise, exact for discrete Laplace noise. All comparisons of
an audit share FALSE_ALARM by the union bound: a release whose noise was drawn as stated is accused at most so often.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sfumato.schemas.guarantee import days_averaged, entry_of
from sfumato.schemas.release import ANSWERS_FILE, CELLS_FILE, ZONES_FILE
from sfumato.transforms.audit.claims import StatedNoise, sub_query_noises
from sfumato.transforms.release.published_release import Release

FALSE_ALARM = 1e-6  # of a whole audit
_GRID = np.geomspace(1e-5, 0.999, 400)  # of t, as shares of the largest
_GAUSSIAN_REACH = 60.0  # the largest t, in inverse standard deviations of an answer
_ROUNDING = 1e-6  # relative, of sums of floats
_ROOT = "r"
_MOST_ROWS = 20_000_000  # a small file may hold billions of equal ones

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """Answers of one independent draw of noise: the users of nodes, each without its descendants.

    name: in words. nodes: names as in the column cell_id. users: float64[n]. noise: of each.
    """

    name: str
    nodes: Sequence[str]
    users: Floats
    noise: StatedNoise

    def sums(self) -> dict[str, tuple[float, int]]:
        """Returns the users of every node that is an answer or holds one, and the number of answers in the sum."""
        found: dict[str, tuple[float, int]] = {}
        for name, users in zip(self.nodes, self.users.tolist(), strict=True):
            for length in range(1, len(name) + 1):
                total, number = found.get(name[:length], (0.0, 0))
                found[name[:length]] = total + users, number + 1
        return found


@dataclass(frozen=True)
class Comparison:
    """Two layers at the nodes that both have. worst: the node whose difference is least probable, and its bound."""

    names: str
    compared: int
    worst: tuple[str, float]


def comparisons(layers: Sequence[Layer]) -> list[Comparison]:
    """Compares each layer with the one before it. All have the root."""
    found = []
    for layer, other in itertools.pairwise(layers):
        first, second = layer.sums(), other.sums()
        nodes = sorted(first.keys() & second.keys())
        one, two = (np.array([sums[node] for node in nodes]) for sums in (first, second))
        bound = tail_bound(np.abs(one[:, 0] - two[:, 0]), [(layer.noise, one[:, 1]), (other.noise, two[:, 1])])
        at = int(bound.argmin())
        found.append(Comparison(f"{layer.name} and {other.name}", len(nodes), (nodes[at], float(bound[at]))))
    return found


def tail_bound(differences: Floats, noises: Sequence[tuple[StatedNoise, Floats]]) -> Floats:
    """Bounds the probability of absolute differences at least as large: float64[n].

    noises: of the answers, and how many of each a difference adds up, float64[n].
    """
    most = min((one.decay if one.kind == "laplace" else _GAUSSIAN_REACH / one.stddev) / one.unit for one, _ in noises)
    best = np.zeros(len(differences))
    for t in (most * _GRID).tolist():
        exponent = -t * differences
        for noise, number in noises:
            exponent += number * noise.draws * _cumulant(noise, t * noise.unit)
        best = np.minimum(best, exponent)
    return np.asarray(np.minimum(2 * np.exp(best), 1.0))


def _cumulant(noise: StatedNoise, t: float) -> float:
    """Returns ln E[e^(t Z)] of one draw, for t below the decay of Laplace noise."""
    if noise.kind == "gaussian":
        return (1.001 * noise.stddev * t) ** 2 / 2  # sigma is above the standard deviation by less than this
    a = noise.decay
    return 2 * math.log(-math.expm1(-a)) - math.log(-math.expm1(t - a)) - math.log(-math.expm1(-t - a))


def answer_layers(release: Release) -> list[Layer]:
    """Returns the layers of a release that are comparable. Raises KeyError or ValueError, which says why none are."""
    privacy, files = release.manifest["privacy"], release.listed or {}
    if "sub_queries" in privacy:
        _check_same_users(release.manifest)
        if ANSWERS_FILE in files:
            return [*_user_count(release.manifest), *_sub_query_layers(release)]
        if ZONES_FILE in files:
            return [*_user_count(release.manifest), _zone_layer(release)]
    rounds, bound = privacy.get("rounds"), entry_of(release.manifest["parameters"], "bound")
    table = next((name for name in (CELLS_FILE, ZONES_FILE) if name in files), None)
    if table and rounds and set(bound.values()) == {1}:
        cells, counted = table_of(release, table), privacy["admission"]
        layers = [Layer("the noisy user count", [_ROOT], np.array([counted["users"]]), _noise(counted))]
        # Of the last level only the largest counts are published where there is a `top`.
        for one in rounds[:-1] if release.manifest["parameters"].get("top") else rounds:
            if one["threshold"] is not None:
                raise ValueError("items below a threshold are not published")
            if table == ZONES_FILE:
                nodes = [f"{_ROOT}{number}" for number in range(len(cells))]
                layers.append(Layer("zones", nodes, cells["count"].to_numpy(), _noise(one)))
                continue
            part = cells.filter(pc.equal(cells["depth"], one["level"]))
            layers.append(
                Layer(f"level {one['level']}", part["cell_id"].to_pylist(), part["count"].to_numpy(), _noise(one))
            )
        return layers
    raise ValueError("the release has no two noisy counts of the same users")


def table_of(release: Release, name: str) -> pa.Table:
    """Returns a table of a release. Raises RequestError if it is damaged or has too many rows to check."""
    return release.arrow_table(name, _MOST_ROWS)


def _noise(stated: Mapping[str, Any]) -> StatedNoise:
    return StatedNoise(stated.get("noise", "laplace"), stated["noise_stddev"])


def _check_same_users(manifest: Mapping[str, Any]) -> None:
    """Raises ValueError unless all sub-queries counted the same users with noise of a known size."""
    privacy, parameters = manifest["privacy"], manifest["parameters"]
    if privacy["composition"] != "sequential":
        raise ValueError("each sub-query counted other users")
    if parameters.get("rounding") == "independent" and parameters.get("gamma"):
        raise ValueError("users' entries were rounded at random in each sub-query")
    is_lost = any(one["shards_lost"] for one in privacy["sub_queries"]) or parameters.get("simulated_dropout")
    if is_lost or parameters.get("allow_overflow") or privacy["participation"]["model"] != "planned":
        raise ValueError("clients were lost, or may have been, so sub-queries counted different users")


def _user_count(manifest: Mapping[str, Any]) -> list[Layer]:
    """Returns the noisy user count, where every counted user adds one to the map; else none."""
    privacy, columns = manifest["privacy"], entry_of(manifest["parameters"], "columns")
    counted, rate = privacy["population"]["counted"], privacy["cohort"]["sampling_rate"]
    if counted is None or rate != 1 or "rotation" in privacy or columns.get("auxiliary") or columns.get("slots"):
        return []
    noise = _noise({**privacy["population"], "noise": privacy["noise"]})
    return [Layer("the noisy user count", [_ROOT], np.array([counted]), noise)]


def _sub_query_layers(release: Release) -> Iterator[Layer]:
    answers, queries = table_of(release, ANSWERS_FILE), release.manifest["privacy"]["sub_queries"]
    for query, noise in zip(queries, sub_query_noises(release.manifest), strict=True):
        part = answers.filter(pc.equal(answers["sub_query"], query["index"]))
        if part.num_rows:  # answers by slot are in no such table
            bins = (part["stddev"].to_numpy() / query["noise_stddev"]) ** 2  # counts that an answer adds up
            noise = replace(noise, draws=noise.draws * float(bins.min()))
            name, nodes = f"sub-query {query['index']}", part["cell_id"].to_pylist()
            yield Layer(name, nodes, part["users"].to_numpy(), noise)


def _zone_layer(release: Release) -> Layer:
    """Returns the zones of the queried level."""
    queried = [one for one in release.manifest["zones"]["levels"] if one["noise_stddev"] is not None]
    if len(queried) != 1:
        raise ValueError("published users are estimates from the noisy counts of several levels")
    zones, (noise,) = table_of(release, ZONES_FILE), sub_query_noises(release.manifest)
    users = zones.filter(pc.equal(zones["level"], queried[0]["name"]))["users"].to_numpy()
    bins = entry_of(release.manifest, "auxiliary").get("entries_per_node", 1)
    nodes = [f"{_ROOT}{number}" for number in range(len(users))]
    return Layer(f"zones of {queried[0]['name']}", nodes, users, replace(noise, draws=noise.draws * bins))


def contradictions(release: Release) -> list[str]:
    """Returns how the release's tables contradict the manifest or themselves, whatever the noise is, in words."""
    privacy, files = release.manifest["privacy"], release.listed or {}
    found: list[str] = []
    if ANSWERS_FILE in files:
        stated = {one["index"]: one["noise_stddev"] for one in privacy["sub_queries"]}
        found += _other_noise(table_of(release, ANSWERS_FILE), "sub_query", stated)
    if any("noise_stddev" in one for one in privacy.get("rounds", ())):
        stated = {one["level"]: one["noise_stddev"] / days_averaged(release.manifest) for one in privacy["rounds"]}
        if CELLS_FILE in files:
            found += _other_noise(table_of(release, CELLS_FILE), "depth", stated)
        if ZONES_FILE in files:
            zones = table_of(release, ZONES_FILE)
            found += _other_noise(zones.append_column("level", pa.array([0] * len(zones))), "level", stated)
    return found + (_broken_sums(release) if ZONES_FILE in files and "sub_queries" in privacy else [])


def _other_noise(table: pa.Table, column: str, stated: Mapping[int, float]) -> Iterator[str]:
    """Yields the counts of a table whose noise the manifest does not state. stated: by the value of the column."""
    for name in pc.unique(table[column]).to_pylist():
        stddev = pc.filter(table["stddev"], pc.equal(table[column], name)).to_numpy()
        added = (stddev / stated.get(name, np.nan)) ** 2  # counts that one adds up, such as those of all categories
        if not np.allclose(added, max(round(added[0]), 1) if added[0] < _MOST_ROWS else 1, rtol=_ROUNDING, atol=0):
            yield f"the counts of {column} {name} have noise that the manifest does not state"


def _broken_sums(release: Release) -> list[str]:
    """Returns the zones of coarser levels that are not the sum of their zones, in words."""
    table, found = table_of(release, ZONES_FILE).select(["zone", "level", "parent", "users"]).to_pandas(), []
    for finer, coarser in itertools.pairwise(table["level"].unique()):
        sums = table[table["level"] == finer].groupby("parent")["users"].agg(["sum", lambda users: users.abs().sum()])
        own = table[table["level"] == coarser].set_index("zone")["users"]
        sums = sums.reindex(own.index, fill_value=0.0).to_numpy()
        is_sum = np.abs(own.to_numpy() - sums[:, 0]) <= _ROUNDING * (1 + sums[:, 1])
        found += [f"{coarser} {zone} is not the sum of its zones" for zone in own.index[~is_sum]]
    return found
