"""What a night leaves to the next: the accumulators of all families of siblings, and the table that holds them. Pure.

The table has one row a node. It follows from released noisy counts only, so it is public.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.errors import FormatError, RequestError, check_format
from sfumato.schemas.ledger import Period, parse_day
from sfumato.schemas.tree import node_levels, node_paths
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.nights.night_posterior import WEEK, Accumulated, NightPosterior, infer_night
from sfumato.transforms.statistics.posterior.full_tree import FullTree, by_family, children_of

Floats = NDArray[np.float64]
MAX_NODES = 1 << 17
MEMORY_NIGHTS = 1.5  # see `Estimate.memory`
_FORMAT = "sfumato-nights/1"  # the table states the number
_METADATA = b"sfumato.nights"
_DRIFT = 0.0002  # growth a day of the variance of a family's shares, over its roughness
_MOST = 1e18  # precision of a share, that of a count of 2^30 users without noise
_MAX_MEAN = 1e6  # of a share, above what noise makes of few users
_DAMAGE = (
    AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError, RequestError, pa.ArrowException,
)  # fmt: skip
_FINEST_NODE = np.uint64(1 << 41)
MAX_EVENTS = 512
_FIRST = 10.0  # information of the initial scales
_FADING = 0.97  # of the information, a night
_MAX_STEP = 0.7  # of a logarithm in a night
_LEAST_INFORMATION = 1e-3  # a year of nights that say nothing is no damage
_MAX_SQUARE = 9.0  # of an innovation, over its expectation: a change that was not found moves no scale far
_RANGE = 7.0  # of a logarithm, to each side
MAX_SCALE = math.exp(_RANGE)


@dataclass(frozen=True)
class Event:
    """A sudden change of an earlier night."""

    node: int  # a leading 1 and the path
    night: date  # when it was found
    excess: float  # measured less expected users, over all users
    stddev: float  # of the error of `excess`


@dataclass(frozen=True)
class VarianceScales:
    """Multiples of the initial variances."""

    drift: float = 1.0  # of the growth of variances a day
    night: float = 1.0  # of the variance from night to night
    drift_information: float = _FIRST  # drift_information, night_information: about the logarithms of both
    night_information: float = _FIRST

    def learned(self, square: Floats, variance: Floats, drift_part: Floats, night_part: Floats) -> VarianceScales:
        """Returns the scales after a night; see `nights_update`.

        Args:
            square: float64[n], sum of squares of each family's innovation.
            variance: float64[n], S.
            drift_part, night_part: float64[n], derivatives of S with respect to the logarithm of each scale.
        """
        excess = np.minimum(square / (3 * variance), _MAX_SQUARE) - 1
        found = []
        for scale, known, part in (
            (self.drift, self.drift_information, drift_part),
            (self.night, self.night_information, night_part),
        ):
            slope = part / variance
            known = max(_FADING * known + 1.5 * float((slope**2).sum()), _LEAST_INFORMATION)
            step = 1.5 * float((excess * slope).sum()) / known
            moved = math.log(scale) + min(max(step, -_MAX_STEP), _MAX_STEP)
            found.append((math.exp(min(max(moved, -_RANGE), _RANGE)), known))
        (drift, drift_known), (night, night_known) = found
        return VarianceScales(drift, night, drift_known, night_known)


@dataclass(frozen=True, eq=False)
class NightsState:
    """The state after a night."""

    night: date  # the last one
    rests_on: tuple[Period, ...]  # the nights that were taken in, as periods without gaps
    full: FullTree  # the tree of all nodes that are known
    known: Accumulated  # the accumulators of the nodes of `full`, rounded to float32, as the table has them
    events: tuple[Event, ...] = ()  # sudden changes of the last nights, which may last
    scales: VarianceScales = field(default_factory=VarianceScales)  # of drift and of differences from night to night

    def predict(self, night: date, users: float) -> Estimate:
        """Returns what to expect of a later night with this many users. Raises RequestError if it is not later."""
        posterior = self.expect(night, users)
        full = posterior.full
        counts, variance = full.leaf_values(posterior.users), full.leaf_values(posterior.variance)
        return Estimate(full.tree, counts, np.sqrt(variance), slope=posterior.slope, memory=MEMORY_NIGHTS)

    def expect(self, night: date, users: float, users_variance: float = 0.0) -> NightPosterior:
        """Returns the expected users of all nodes on a later night. Raises RequestError, as `predict` does."""
        known, scale = self.drifted(night), self.scales.night
        return infer_night(self.full, known, night.weekday(), users, users_variance, night_scale=scale)

    def drifted(self, night: date) -> Accumulated:
        """Returns the accumulators as they count on a later night. Raises RequestError, as `predict` does."""
        days = (night - self.night).days
        if days <= 0:
            raise RequestError(f"night: {night} is not after {self.night}, the last night of the earlier release")
        precision = []
        for one, rough in zip(self.known.precision, self.known.roughness, strict=True):
            drift = np.repeat(self.scales.drift * _DRIFT * days * rough, 4)[:, None] if len(rough) else np.zeros((1, 1))
            precision.append(one / (1 + drift * one))
        return replace(self.known, precision=precision)

    def moved_to(self, full: FullTree, known: Accumulated) -> Accumulated:
        """Returns accumulators of this state's nodes for a tree that has all of them; nothing is known of others."""
        moved = Accumulated.empty(full)
        for level, codes in enumerate(self.full.codes):
            place = np.searchsorted(full.codes[level], codes)
            moved.mean[level][place], moved.precision[level][place] = known.mean[level], known.precision[level]
            if level:
                moved.night[level][place[::4] // 4] = known.night[level]
                moved.roughness[level][place[::4] // 4] = known.roughness[level]
        return moved

    def to_table(self) -> pa.Table:
        """Returns the state as a table of one row a node, level by level."""
        columns: dict[str, Any] = {"node": self.full.tree.nodes}
        for name in ("mean", "precision"):
            rows = np.concatenate(getattr(self.known, name)).astype(np.float32)
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WEEK)
        for name in ("night", "roughness"):
            rows = np.concatenate([np.zeros(1), *(np.repeat(one, 4) for one in getattr(self.known, name)[1:])])
            columns[name] = rows.astype(np.float32)
        about = {
            "format": int(_FORMAT.rpartition("/")[2]),
            "night": str(self.night),
            "rests_on": [str(one) for one in self.rests_on],
            "events": [[one.node, str(one.night), one.excess, one.stddev] for one in self.events],
            "scales": asdict(self.scales),
        }
        return pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(about).encode()})

    @classmethod
    def from_table(cls, table: pa.Table, depth: int) -> NightsState:
        """Reads the table of an earlier release, made by `to_table` and perhaps damaged since.

        Raises FormatError if another version of sfumato wrote it, RequestError if it is damaged, or of another depth.
        """
        try:
            return cls._read(table, depth)
        except FormatError:
            raise
        except _DAMAGE as error:
            raise RequestError(f"warm_start: the release's nights.parquet is damaged ({error})") from None

    @classmethod
    def _read(cls, table: pa.Table, depth: int) -> NightsState:
        about = json.loads((table.schema.metadata or {})[_METADATA])
        if not isinstance(about, dict):
            raise ValueError("no description")
        check_format("warm_start: the release's nights.parquet", f"sfumato-nights/{about.get('format')}", _FORMAT)
        night = parse_day("night", about["night"])
        rests_on = tuple(Period.parse(one) for one in about["rests_on"])
        if not rests_on or rests_on[-1].last != night:
            raise ValueError("the nights that it is based on do not end with its last night")
        if any(one.last + timedelta(days=1) >= two.first for one, two in itertools.pairwise(rests_on)):
            raise ValueError("the nights that it is based on are not in order")
        if not 1 <= len(table) <= 2 * MAX_NODES:
            raise ValueError(f"{len(table)} rows")
        full = _read_tree(_column(table, "node", np.uint64), depth)
        ends = np.cumsum([len(codes) for codes in full.codes])[:-1]
        mean, precision = (np.split(_rows(table, name), ends) for name in ("mean", "precision"))
        split = (np.split(_column(table, name, np.float32), ends) for name in ("night", "roughness"))
        night_, roughness = ([root[:0], *(one[::4] for one in others)] for root, *others in split)
        bounds = ((mean, -_MAX_MEAN, _MAX_MEAN), (precision, 0, _MOST), (night_, 0, 1), (roughness, 0, 1))
        for values, least, most in bounds:
            for one in values:
                if not ((one >= least) & (one <= most)).all():  # comparisons with NaN are false
                    raise ValueError("values that are no numbers, or out of range")
        wide = ([one.astype(np.float64) for one in values] for values in (mean, precision, night_, roughness))
        return cls(
            night,
            rests_on,
            full,
            Accumulated(*wide),
            _read_events(about["events"], night, depth),
            _read_scales(about["scales"]),
        )


def pruned(full: FullTree, known: Accumulated, max_nodes: int = MAX_NODES) -> tuple[FullTree, Accumulated]:
    """Returns the tree without the least known families, if it has more nodes than `max_nodes`.

    A family counts as known by the sum of its weekdays' precision times its roughness, or as its best descendant. The
    root's family stays.
    """
    if sum(len(codes) for codes in full.codes) <= max_nodes:
        return full, known
    worth = [known.roughness[level] * by_family(known.precision[level].sum(axis=1)).mean(axis=1)
             for level in range(1, len(full.codes))]  # fmt: skip
    for level in range(len(full.codes) - 1, 1, -1):
        np.maximum.at(worth[level - 2], full.parents[level] // 4, worth[level - 1])
    ranked = np.sort(np.concatenate(worth))
    least = ranked[-(max_nodes // 4)] if len(ranked) > max_nodes // 4 else -1.0
    kept = [np.ones(1, dtype=bool)]
    for level, one in enumerate(worth, 1):
        kept.append(np.repeat((one > least) | (level == 1), 4))
    codes = tuple(one[rows] for one, rows in zip(full.codes, kept, strict=True) if rows.any())
    rows = kept[: len(codes)]
    nodes = ([one[here] for one, here in zip(values, rows, strict=False)] for values in (known.mean, known.precision))
    families = (
        [one[here[::4][: len(one)]] for one, here in zip(values, rows, strict=False)]
        for values in (known.night, known.roughness)
    )
    return FullTree(full.depth, codes), Accumulated(*nodes, *families)


def rounded(known: Accumulated) -> Accumulated:
    """Returns accumulators as the table has them, so that a state is the same before and after it.

    Values are cut off at what the table may hold. A variance of a share is at most 1.
    """

    def single(values: list[NDArray[np.float64]], least: float, most: float) -> list[NDArray[np.float64]]:
        return [np.clip(one, least, most).astype(np.float32).astype(np.float64) for one in values]

    return Accumulated(
        single(known.mean, -_MAX_MEAN, _MAX_MEAN),
        single(known.precision, 0, _MOST / 2),
        single(known.night, 0, 1),
        single(known.roughness, 0, 1),
    )


def joined(periods: tuple[Period, ...], night: date) -> tuple[Period, ...]:
    """Returns periods with a later night added: to the last of them, or as one of its own."""
    if periods and periods[-1].last + timedelta(days=1) == night:
        return (*periods[:-1], Period(periods[-1].first, night))
    return (*periods, Period(night, night))


def _read_events(rows: Any, night: date, depth: int) -> tuple[Event, ...]:
    """Returns the events of the table's metadata. Raises ValueError, TypeError or RequestError for what is none."""
    if len(rows) > MAX_EVENTS:
        raise ValueError(f"{len(rows)} events")
    events = []
    for node, day, excess, stddev in rows:
        event = Event(int(node), parse_day("night", day), float(excess), float(stddev))
        levels = event.node.bit_length() - 1
        if event.night > night or event.node < 1 or levels % 2 or not 0 < levels <= 2 * depth:
            raise ValueError("an event of a later night, or of no node")
        if not (abs(event.excess) < 1e6 and 0 <= event.stddev < 1e6):
            raise ValueError("an event of no size")
        events.append(event)
    return tuple(events)


def _read_scales(values: Any) -> VarianceScales:
    scales = VarianceScales(**{str(name): float(value) for name, value in values.items()})
    drift, night, *information = astuple(scales)
    least, most = (1 - 1e-9) / MAX_SCALE, (1 + 1e-9) * MAX_SCALE  # rounded
    if not all(least <= one <= most for one in (drift, night)) or not all(1e-4 < one < 1e12 for one in information):
        raise ValueError("scales out of range")
    return scales


def _column(table: pa.Table, name: str, kind: Any) -> NDArray[Any]:
    column = table.column(name).combine_chunks()
    if column.null_count or column.type != pa.from_numpy_dtype(kind):
        raise ValueError(f"{name}: values are missing or of another type")
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=kind)


def _rows(table: pa.Table, name: str) -> NDArray[np.float32]:
    column = table.column(name).combine_chunks()
    if column.null_count or not pa.types.is_fixed_size_list(column.type) or column.type.list_size != WEEK:
        raise ValueError(f"{name}: not {WEEK} values a row")
    values = column.flatten()
    if values.null_count or values.type != pa.float32() or len(values) != len(table) * WEEK:
        raise ValueError(f"{name}: values are missing or of another type")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(-1, WEEK)


def _read_tree(node: NDArray[np.uint64], depth: int) -> FullTree:
    """Returns the full tree of nodes, level by level. Raises ValueError unless it is one of this depth."""
    if node[0] != 1 or (node[1:] <= node[:-1]).any() or node[-1] >= _FINEST_NODE:
        raise ValueError("its nodes are not in order")
    level = node_levels(node)
    if level[-1] > depth:
        raise ValueError(f"its nodes are deeper than {depth}")
    parts = np.split(node_paths(node), np.searchsorted(level, np.arange(1, level[-1] + 1)))
    for above, here in itertools.pairwise(parts):
        families = here[::4] >> np.uint64(2)
        if len(here) % 4 or not np.array_equal(here, children_of(families)) or not np.isin(families, above).all():
            raise ValueError("its nodes are no tree")
    return FullTree(depth, tuple(parts))
