"""Measures the strength of the tests: plants faults in the product, one at a time, and lists what no test notices.

    python -m tests.planted_faults --jobs 2

Each fault is planted in a copy of the tree, which imports its own product. The tests of `make test` whose imports reach
the fault run until one fails: the nearest files first, and of those the ones that reach few modules. The fault counts
as caught if the same test passes without it. Where the time is up, it is caught only if one test has run for half of
it, which then hangs. Exit status: 0 if a share of `NEEDED` is caught, else 1.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("api", "pipelines", "transforms", "schemas")
SHOWN = ("inputs", "columns", "exports", "pages")  # subjects of what users give and get
NEEDED = 0.97
_BATCHES = (3, 12)  # test files of the first processes; a start takes seconds, and so do the imports of many files
_MODULE = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")
_EVENTS = "PLANTED_FAULTS_EVENTS"  # in the environment: the file of what happens in a run of tests


@dataclass(frozen=True)
class Fault:
    """A mistake that a maintainer may make.

    Attributes:
        subject: what it is about, in a word.
        name: what is wrong then, in at most 60 characters.
        old: one to three lines, or parts of them, that occur once in the product. Indentation does not count.
        new: what takes their place, in at most as many lines.
    """

    subject: str
    name: str
    old: str
    new: str

    def matches(self, text: str) -> list[re.Match[str]]:
        """Finds the snippet in a module's text."""
        return list(re.finditer(r"(\n\s*)".join(map(re.escape, self.old.split("\n"))), text))

    def planted(self, text: str) -> str:
        """Returns a module's text with the fault."""
        (found,) = self.matches(text)
        first, *lines = self.new.split("\n")
        new = first + "".join(ends + line for ends, line in zip(found.groups(), lines, strict=False))
        return text[: found.start()] + new + text[found.end() :]


FAULTS: tuple[Fault, ...] = (
    # Noise and sensitivity.
    Fault(
        "noise",
        "noise is scaled by 0.7",
        "np.asarray(pairs[:, :count] - pairs[:, count:], dtype=np.int64)",
        "np.asarray(0.7 * (pairs[:, :count] - pairs[:, count:]), dtype=np.int64)",
    ),
    Fault(
        "noise",
        "geometric noise ignores the sensitivity",
        "beta = (-Decimal(epsilon) / sensitivity).exp()",
        "beta = (-Decimal(epsilon)).exp()",
    ),
    Fault(
        "noise",
        "Gaussian noise has half its variance",
        "scale = -1 / (2 * Decimal(sigma) ** 2)",
        "scale = -1 / Decimal(sigma) ** 2",
    ),
    Fault(
        "noise",
        "colluders are counted on for shares of noise",
        "np.full(len(offsets), 1 / query.honest_survivors)",
        "np.full(len(offsets), 1 / query.required_survivors)",
    ),
    Fault(
        "noise",
        "the sensitivity counts one entry of several",
        "return gamma * entries + (length",
        "return gamma + (length",
    ),
    Fault(
        "noise",
        "the delta of Gaussian noise loses a root",
        "kept = (epsilon / mu + mu / 2) / math.sqrt(2)",
        "kept = (epsilon / mu + mu / 2) / 2",
    ),
    Fault(
        "noise",
        "noise is not bound to the cells that are asked",
        "parts = (self.index, self.encoding.fingerprint, ",
        "parts = (self.index, ",
    ),
    Fault(
        "noise",
        "truncated noise reaches twice as far",
        "np.flatnonzero(np.abs(noise) > self.limit)",
        "np.flatnonzero(np.abs(noise) > 2 * self.limit)",
    ),
    Fault(
        "noise",
        "every report of a user has the whole epsilon",
        "min(Decimal(self.epsilon) / self.reports, Decimal(100))",
        "min(Decimal(self.epsilon), Decimal(100))",
    ),
    Fault(
        "noise",
        "tallies have the noise of one report",
        "streams, 2 * slots, epsilon, reports)",
        "streams, 2 * slots, epsilon, 1)",
    ),
    Fault(
        "noise", "the noise on flows is that of one trip", "nodes, 1, epsilon, plan.max_trips)", "nodes, 1, epsilon, 1)"
    ),
    Fault(
        "noise",
        "each level of quantiles has the whole epsilon",
        "return self.epsilon / len(self.levels)",
        "return self.epsilon",
    ),
    Fault(
        "noise",
        "a drawn quantile has twice its epsilon",
        "rate = epsilon / (2 * max(share, 1 - share))",
        "rate = epsilon / max(share, 1 - share)",
    ),
    # Contribution bounds.
    Fault(
        "bounds",
        "users who rarely repeat are not bounded",
        "return any_repeated(users[np.isin(",
        "return False and any_repeated(users[np.isin(",
    ),
    Fault(
        "bounds",
        "a user counts in one slot more",
        "np.arange(len(order)) - begins < records_per_user",
        "np.arange(len(order)) - begins <= records_per_user",
    ),
    Fault("bounds", "a user makes one trip more", "chosen[rank < max_trips]", "chosen[rank <= max_trips]"),
    Fault("bounds", "a user has one item more", "order[rank < max_items]", "order[rank <= max_items]"),
    Fault(
        "bounds",
        "the records of an item are not bounded",
        "np.minimum(shorter.records.astype(np.int64), bound.max_records)",
        "shorter.records.astype(np.int64)",
    ),
    Fault(
        "bounds",
        "a long wait is not cut",
        "np.where(last, max_dwell, np.minimum(wait, max_dwell))",
        "np.where(last, max_dwell, wait)",
    ),
    Fault(
        "bounds",
        "a user's distribution adds up to one more",
        "upto = (gamma * (amounts.upto",
        "upto = ((gamma + 1) * (amounts.upto",
    ),
    Fault(
        "bounds",
        "all rounds draw the same users",
        "sum_by_item(items[drawn[:, number]])",
        "sum_by_item(items[drawn[:, 0]])",
    ),
    Fault(
        "bounds",
        "a user's first record is taken",
        "return records.starts + keyed_below(records.users, records.counts)",
        "return records.starts",
    ),
    # Budget and ledger.
    Fault(
        "budget",
        "a run is not charged",
        "refused = None if self.gate is None else self.gate.charge()",
        "refused = None",
    ),
    Fault(
        "budget",
        "a sub-query may overdraw the budget",
        "if not (0 < epsilon <= self.remaining) or",
        "if not epsilon > 0 or",
    ),
    Fault(
        "budget", "a refusal costs as much as a release", "self.gate.settle(self.rule.epsilon, str(refusal))", "pass"
    ),
    Fault(
        "budget",
        "the day at the edge of a window is left out",
        "if new.period.first <= one.period.last + days]",
        "if new.period.first < one.period.last + days]",
    ),
    Fault(
        "budget",
        "a replaced user costs as much as a removed one",
        "(ADD_OR_REMOVE, REPLACE): 2",
        "(ADD_OR_REMOVE, REPLACE): 1",
    ),
    Fault(
        "budget",
        "charges of other datasets are not counted",
        "return [self, *(replace(self, dataset=dataset, period=period)",
        "return [self, *(replace(self, period=period)",
    ),
    Fault(
        "budget",
        "an earlier refusal is forgotten",
        "refusals.append(reservations.pop(charge.release_id))",
        "reservations.pop(charge.release_id)",
    ),
    Fault(
        "budget",
        "one account within the limit is enough",
        "if not all(fits(account, limit) for account",
        "if not any(fits(account, limit) for account",
    ),
    Fault(
        "budget",
        "deltas are not limited",
        "if added_up[0] <= limit.epsilon and added_up[1] <= limit.delta:",
        "if added_up[0] <= limit.epsilon:",
    ),
    Fault(
        "budget",
        "entries of a ledger need not follow each other",
        'if body["previous"] != previous:',
        'if body["previous"] is None:',
    ),
    Fault(
        "budget",
        "a charged release takes other data",
        "if existing == charge:",
        "if existing.release_id == charge.release_id:",
    ),
    Fault(
        "budget",
        "a file may be charged to two datasets",
        "if elsewhere and not allow_reuse:",
        "if elsewhere and allow_reuse:",
    ),
    Fault("budget", "the ledger is not synced", "PRAGMA synchronous = FULL", "PRAGMA synchronous = OFF"),
    Fault(
        "budget",
        "two writers both append an entry",
        'content_type="application/json", if_generation_match=0,',
        'content_type="application/json",',
    ),
    # Keys and secrets.
    Fault("keys", "a new key may be read by all", "os.fchmod(descriptor, 0o600)", "os.fchmod(descriptor, 0o644)"),
    Fault("keys", "a new key is not synced", "os.fsync(descriptor)", "pass"),
    Fault(
        "keys",
        "a key of 8 bytes is taken",
        "if len(secret) < MIN_SECRET_BYTES:",
        "if len(secret) < MIN_SECRET_BYTES // 2:",
    ),
    Fault("keys", "a group may read the key", "if mode & (stat.S_IRWXG | stat.S_IRWXO):", "if mode & stat.S_IRWXO:"),
    Fault(
        "keys",
        "a secret that changes is not noticed",
        "if _check_value(secret) != self.secret_check:",
        "if not secret:",
    ),
    Fault(
        "keys",
        "the key does not depend on the files",
        '"files": fingerprint, **parameters}',
        '"files": [], **parameters}',
    ),
    Fault(
        "keys",
        "users 5 and -5 are one",
        ("keyed_hash(user_key, numbers.to_numpy())\nhashes[~are_integers]"),
        ("keyed_hash(user_key, np.abs(numbers.to_numpy()))\nhashes[~are_integers]"),
    ),
    # Sums and dropouts of secure aggregation.
    Fault(
        "secagg",
        "the window holds half of the noise",
        "return Window(users * gamma + 2 * bound + 1, bound)",
        "return Window(users * gamma + bound + 1, bound)",
    ),
    Fault(
        "secagg",
        "a shard with one survivor too few counts",
        "live = sizes[block] >= query.required_survivors",
        "live = sizes[block] >= query.required_survivors - 1",
    ),
    Fault(
        "secagg", "lost shards are not made up for", "scale = cohort.shards / live ", "scale = cohort.shards / queried "
    ),
    Fault(
        "secagg",
        "surplus clients add no noise",
        "surplus = np.maximum(clients / query.honest_survivors - 1, 0.0)",
        "surplus = 0 * np.maximum(clients / query.honest_survivors - 1, 0.0)",
    ),
    Fault("secagg", "shares are rounded down", "(share + draw.astype(np.int64)) >> bits", "share >> bits"),
    # Trees, levels and regions.
    Fault(
        "tree",
        "cells swap their axes",
        "return (_spread(x) << np.uint64(1)) | _spread(y)",
        "return (_spread(y) << np.uint64(1)) | _spread(x)",
    ),
    Fault(
        "tree",
        "rows of cells begin in the south",
        "y = (region.north - latitude) * (side /",
        "y = (latitude - region.south) * (side /",
    ),
    Fault(
        "tree",
        "areas ignore the latitude",
        "bands = np.sin(np.radians(north)) - np.sin(np.radians(south))",
        "bands = np.radians(north) - np.radians(south)",
    ),
    Fault(
        "tree",
        "levels are one too deep",
        "np.frexp(nodes.astype(np.float64))[1] - 1) // 2",
        "np.frexp(nodes.astype(np.float64))[1] + 1) // 2",
    ),
    Fault(
        "tree",
        "the eastern border is outside",
        "& (longitude >= self.west) & (longitude <= self.east)",
        "& (longitude >= self.west) & (longitude < self.east)",
    ),
    # Estimators and posteriors.
    Fault(
        "posterior",
        "children may have less than nobody",
        "np.maximum(children - excess[np.arange(len(children)), last][:, None], 0.0)",
        "children - excess[np.arange(len(children)), last][:, None]",
    ),
    Fault(
        "posterior",
        "parts of a cell have the variance of all",
        "variance = one.variance[entry] * share",
        "variance = one.variance[entry]",
    ),
    Fault(
        "posterior", "the slope to the south is turned round", "(near[2] - near[3]) / 32", "(near[3] - near[2]) / 32"
    ),
    Fault(
        "posterior",
        "an earlier map keeps its number of users",
        "scale = users / total if total > 0 else 0.0",
        "scale = 1.0 if total > 0 else 0.0",
    ),
    Fault(
        "posterior",
        "a split costs nothing",
        "4.0**level * (gain - cost), has_children",
        "4.0**level * gain, has_children",
    ),
    Fault("posterior", "shrinkage keeps what is noise", "kept[known] = t / (t + v)", "kept[known] = v / (t + v)"),
    # Intervals.
    Fault(
        "intervals",
        "heavy tails make intervals narrower",
        "(_Z + (_Z**3 - 3 * _Z) / 24 * kurtosis)",
        "(_Z - (_Z**3 - 3 * _Z) / 24 * kurtosis)",
    ),
    Fault(
        "intervals",
        "intervals at once are those of one item",
        "return self._spread(0.025 / items)",
        "return self._spread(0.025)",
    ),
    Fault(
        "intervals",
        "changes forget how many were tested",
        "scaled = p_value[order] * len(order) / np.arange(1, len(order) + 1)",
        "scaled = p_value[order]",
    ),
    Fault(
        "intervals",
        "bands of quantiles forget hidden users",
        "hidden = hidden_count(sampling) * (shown == 0).astype(float)",
        "hidden = 0 * (shown == 0).astype(float)",
    ),
    Fault(
        "intervals",
        "intervals of rates forget the sampling",
        "sampling = self.sampling_weight * users * p * q",
        "sampling = 0 * users * p * q",
    ),
    Fault(
        "intervals",
        "intervals of areas forget their skewness",
        "return user_intervals(self.users + (Z_95**2 - 1) / 6 * skewness * stddev, stddev)",
        "return user_intervals(self.users, stddev)",
    ),
    # The heatmap's schedule and nights.
    Fault(
        "nights",
        "what is known of a night does not fade",
        "precision.append(one / (1 + drift * one))",
        "precision.append(one)",
    ),
    Fault(
        "nights",
        "a night is taken for the next weekday",
        "infer_night(self.full, known, night.weekday(),",
        "infer_night(self.full, known, (night.weekday() + 1) % 7,",
    ),
    Fault(
        "nights",
        "sudden changes are never forgotten",
        "[event for event in events if (night - event.night).days < _WEEKS * WEEK]",
        "list(events)",
    ),
    Fault(
        "nights",
        "a missing night is not stated",
        "if periods and periods[-1].last + timedelta(days=1) == night:",
        "if periods and periods[-1].last + timedelta(days=1) <= night:",
    ),
    Fault(
        "nights",
        "a population that is too large is not noticed",
        "if abs(users - rule.population) > allowed:",
        "if users - rule.population > allowed:",
    ),
    # Zones.
    Fault(
        "zones",
        "a point on a border is in the later zone",
        "found[point[held][::-1]] = zone[held][::-1]",
        "found[point[held]] = zone[held]",
    ),
    Fault(
        "zones",
        "users outside of all zones are in the first",
        "np.where(found < 0, len(self), found)",
        "np.where(found < 0, 0, found)",
    ),
    Fault("zones", "zones may overlap by a tenth", "share > MAX_OVERLAP)", "share > 100 * MAX_OVERLAP)"),
    # Flows.
    Fault(
        "flows",
        "origin and destination are swapped",
        "digit = ((origins >> at) & _TWO_BITS) << np.uint64(2) | ((destinations >> at) & _TWO_BITS)",
        "digit = ((destinations >> at) & _TWO_BITS) << np.uint64(2) | ((origins >> at) & _TWO_BITS)",
    ),
    Fault(
        "flows",
        "a trip leads from one user to the next",
        "is_trip = (users[1:] == users[:-1]) & (np.diff",
        "is_trip = (np.diff",
    ),
    Fault(
        "flows",
        "the last decision to split is not charged",
        "self.split_epsilon * (splits + (not is_last))",
        "self.split_epsilon * splits",
    ),
    # Histograms.
    Fault(
        "histogram",
        "items one below the threshold are shown",
        "shown = counts.at_least(sampling.threshold)",
        "shown = counts.at_least(sampling.threshold - 1)",
    ),
    Fault(
        "histogram",
        "a threshold forgets a user's own records",
        "spent(shown), bound, threshold=shift + at)",
        "spent(shown), bound, threshold=at)",
    ),
    Fault(
        "histogram",
        "every round of a trie has the whole epsilon",
        "rounds * delta(epsilon / rounds, rate, threshold)",
        "rounds * delta(epsilon, rate, threshold)",
    ),
    Fault(
        "histogram",
        "exact counts decide what is shown",
        "else noisy >= noise.threshold",
        "else counts.counts >= noise.threshold",
    ),
    # Quantiles.
    Fault(
        "quantiles",
        "a quantile is the lower end of its bin",
        "value = low + (at + size / 2) * scale",
        "value = low + at * scale",
    ),
    Fault(
        "quantiles",
        "a search walks to the wrong half",
        "np.where(below[0][split_of] < np.asarray(shares), first + width, first)",
        "np.where(below[0][split_of] > np.asarray(shares), first + width, first)",
    ),
    # Moments.
    Fault(
        "moments",
        "randomised answers stay biased",
        "np.asarray((reported - (1 - self.truth_probability)) / self.gain)",
        "np.asarray(reported - (1 - self.truth_probability))",
    ),
    Fault(
        "moments",
        "small groups are shown",
        "large = np.flatnonzero(clients[:-1] >= min_clients)",
        "large = np.flatnonzero(clients[:-1] >= 1)",
    ),
    Fault(
        "moments",
        "a user may be asked twice",
        "if any(before[1] > after[0] for before",
        "if any(before[1] > after[1] for before",
    ),
    Fault(
        "moments",
        "cells of values swap their axes",
        "self.grid.codes(east[inside], north[inside])",
        "self.grid.codes(north[inside], east[inside])",
    ),
    Fault(
        "moments",
        "the automatic range sees exact counts",
        'noisy = counts + discrete_laplace(key, "range"',
        'noisy = counts + 0 * discrete_laplace(key, "range"',
    ),
    # Range queries.
    Fault(
        "ranges",
        "a rectangle's corner is taken away twice",
        "self._corner(top, right) + self._corner(top, left)",
        "self._corner(top, right) - self._corner(top, left)",
    ),
    Fault(
        "ranges",
        "counts of a grid swap their axes",
        "np.add.at(counts, rows[y] * (len(x_edges) - 1) + columns[x], block.users)",
        "np.add.at(counts, rows[x] * (len(x_edges) - 1) + columns[y], block.users)",
    ),
    Fault(
        "ranges",
        "a query without a number is answered",
        "bad |= ~((values >= low) & (values <= high))",
        "bad |= (values < low) | (values > high)",
    ),
    # Readers of CSV, JSON, Parquet and tables; time zones.
    Fault(
        "inputs",
        "a CSV file without a header is read",
        "if any(not name or _is_number(name) for name in names):",
        "if not all(names):",
    ),
    Fault("inputs", "CSV lines without all values are forgotten", "without_values.append(1)", "without_values.clear()"),
    Fault(
        "inputs",
        "a line end within quotes cuts a record",
        "whole = ends[np.searchsorted(quotes, ends) % 2 == 0]",
        "whole = ends",
    ),
    Fault("inputs", "Namibia's code NA is missing", "strings_can_be_null=False,", "strings_can_be_null=True,"),
    Fault(
        "inputs",
        "large ids in JSON are rounded",
        "if type(value) is float and abs(value) >= _MAX_INTEGER",
        "if type(value) is float and abs(value) < 0",
    ),
    Fault("inputs", "local times are those of UTC", 'pa.timestamp("s", time_zone))', 'pa.timestamp("s", "UTC"))'),
    Fault(
        "inputs",
        "the last day of a period is left out",
        "known & (date < first), known & (date > last)",
        "known & (date < first), known & (date >= last)",
    ),
    Fault("inputs", "degrees times 10^7 are divided by 10^6", "safe=False), 1e7)", "safe=False), 1e6)"),
    Fault("inputs", "a row group between slices is left out", "first, rows = number, 0", "first, rows = number + 1, 0"),
    Fault(
        "inputs",
        "points swap their axes",
        ('for axis in ("x", "y"))\nreturn y, x'),
        ('for axis in ("x", "y"))\nreturn x, y'),
    ),
    Fault("inputs", "quadkeys swap their axes", "sides[-1] / 2 for bit in (0, 1))", "sides[-1] / 2 for bit in (1, 0))"),
    Fault(
        "inputs",
        "files of hidden folders are read",
        'return any(part.startswith(("_", ".")) for part in path.split("/"))',
        'return path.split("/")[-1].startswith(("_", "."))',
    ),
    Fault(
        "inputs",
        "a file that changes during a run is not noticed",
        "if log.version is not None and log_version(log.path) != log.version:",
        'if log.version == "":',
    ),
    Fault(
        "inputs",
        "a data frame's times lose their zone",
        "else value.astimezone(UTC).replace(tzinfo=None)",
        "else value.replace(tzinfo=None)",
    ),
    Fault("inputs", "deleted rows of a Delta table are read", "if deleted:", "if deleted < 0:"),
    Fault(
        "inputs",
        "an unknown word is false",
        "return pc.if_else(pc.or_(is_true, is_false), is_true, None)",
        "return is_true",
    ),
    # Columns.
    Fault(
        "columns",
        "weekdays begin on another day",
        "weekday = (day + _EPOCH_WEEKDAY) % 7",
        "weekday = (day + _EPOCH_WEEKDAY + 1) % 7",
    ),
    Fault(
        "columns",
        "a full hour is in the slot before",
        'np.searchsorted(slots.edge_seconds, second, side="right") - 1',
        'np.maximum(np.searchsorted(slots.edge_seconds, second, side="left") - 1, 0)',
    ),
    Fault(
        "columns",
        "several slots a user have no bound",
        "if self.slots is None or self.records_per_user > len(self.slots):",
        "if self.slots is None:",
    ),
    # Exports.
    Fault(
        "exports",
        "a GeoTIFF is upside down",
        "Affine(width, 0, region.west, 0, -height, region.north)",
        "Affine(width, 0, region.west, 0, height, region.south)",
    ),
    Fault(
        "exports",
        "GeoJSON does not state the guarantee",
        '"sfumato": {**source.statement, "columns": layer.columns},',
        '"sfumato": {"columns": layer.columns},',
    ),
    Fault("exports", "CSV has three digits of a number", 'np.format_float_positional(one, trim="0")', 'f"{one:.3g}"'),
    Fault(
        "exports",
        "latitudes of a raster begin in the south",
        "return self.region.north - (np.arange(rows) + 0.5)",
        "return self.region.south + (np.arange(rows) + 0.5)",
    ),
    Fault("exports", "cells within cells are painted too", 'return table.filter(table["leaf"])', "return table"),
    Fault(
        "exports",
        "tiles begin three zooms too early",
        "return min(max(zoom, 0), _LAST_ZOOM)",
        "return min(max(zoom - 3, 0), _LAST_ZOOM)",
    ),
    Fault(
        "exports",
        "a GeoPackage holds the time of its making",
        'set_gdal_config_options({_TIME: source.statement["published"][:19] + "Z"})',
        "set_gdal_config_options({_TIME: None})",
    ),
    Fault(
        "exports",
        "an export replaces a file",
        'raise RequestError(f"output: {output} exists already; name another, or give --overwrite")',
        "return",
    ),
    # Pages and views.
    Fault(
        "pages",
        "a picture of a map is upside down",
        "np.asarray((high - mercator(latitude)) * (self.height",
        "np.asarray((mercator(latitude) - low) * (self.height",
    ),
    Fault(
        "pages",
        "a scale bar ignores the latitude",
        "math.radians(degrees) * max(math.cos(math.radians(middle)), 0.01)",
        "math.radians(degrees)",
    ),
    Fault("pages", "no cell is hatched", "position(scale, low) <= WIDE)", "position(scale, low) <= 2 * WIDE)"),
    Fault("pages", "percentages are shares", 'return f"{100 * share:.{digits}g}%"', 'return f"{share:.{digits}g}%"'),
    Fault(
        "pages",
        "a demonstration seed raises no alarm",
        'return get(manifest, "privacy.randomness.safe", True) is not False',
        "return True",
    ),
    Fault("pages", "degrees in the east are in the west", "signs[int(tick < 0)]", "signs[int(tick > 0)]"),
    Fault(
        "pages",
        "a page runs any script",
        "script-src '{_digest(script)}'{others}",
        "script-src 'unsafe-inline'{others}",
    ),
    Fault(
        "pages",
        "a series shows the cost of one night",
        "epsilon += max(sum(night.epsilon for night in several)",
        "epsilon += max(max(night.epsilon for night in several)",
    ),
    Fault("pages", "unknown randomness is called safe", '.get("safe") is not True:', '.get("safe") is False:'),
    Fault(
        "pages",
        "a notice runs what its reason holds",
        "{name: html.escape(value) for name, value in fields.items()}",
        "dict(fields)",
    ),
    # Release folders, publishing and syncing.
    Fault("publishing", "the manifest is written first", "key=MANIFEST_FILE.__eq__", "key=MANIFEST_FILE.__ne__"),
    Fault(
        "publishing",
        "a release's file is not synced",
        ("file.write(files[name])\nfile.flush()\nos.fsync(file.fileno())"),
        "file.write(files[name])",
    ),
    Fault(
        "publishing",
        "a release's folders are not synced",
        "for one in (folder, *folder.parents[:3]):",
        "for one in ():",
    ),
    Fault("publishing", "a release is called published before it is synced", "sync_release(output)  #", "pass  #"),
    Fault(
        "publishing",
        "another result replaces a published one",
        "if metadata.published_manifest_digest not in (None, hashlib.sha256(files[MANIFEST_FILE]).hexdigest()):",
        'if metadata.published_manifest_digest == "":',
    ),
    Fault(
        "publishing",
        "a damaged file is read",
        "if listed is not None and listed[name] != hashlib.sha256(content).hexdigest():",
        "if listed is not None and not content:",
    ),
    Fault(
        "publishing",
        "a folder of other files is replaced",
        "return not names or (names <= known and",
        "return not names or (bool(names & known) and",
    ),
    Fault(
        "publishing",
        "a release may state a smaller cost",
        "if cost != [charge.epsilon, charge.delta, charge.rho]:",
        "if cost[0] > charge.epsilon:",
    ),
    Fault(
        "publishing",
        "a release that another starts from is pruned",
        "and release_id not in needed and is_committed:",
        "and is_committed:",
    ),
    # Failures and exit statuses.
    Fault("failures", "a spent budget exits with 1", "exit_code = 3", "exit_code = 1"),
    Fault(
        "failures",
        "a signal's exit status is its number",
        "return None if _received is None else 128 + _received",
        "return None if _received is None else _received",
    ),
    Fault("failures", "every failure exits with 1", "return error.exit_code", "return 1"),
    Fault(
        "failures",
        "a full disk is no passing failure",
        "_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG",
        "_PASSING = frozenset({errno.EDQUOT, errno.EFBIG",
    ),
    Fault(
        "failures",
        "a failed runner passes for done",
        ("log_metrics(root.result)\nif root.result.state != PipelineState.DONE:"),
        ("log_metrics(root.result)\nif root.result.state is None:"),
    ),
    Fault(
        "failures",
        "a refused run leaves no notice",
        "_publish_refusal(job, with_charge(metadata), rule, refusal)",
        "pass",
    ),
    # Requests and checks of options.
    Fault(
        "requests",
        "a region beyond the poles is taken",
        "self.east <= 180 and self.south >= -90 and self.north <= 90):",
        "self.east <= 180):",
    ),
    Fault(
        "requests",
        "a seed is taken with a ledger",
        "if self.seed is not None:",
        "if self.seed is not None and self.seed < 0:",
    ),
    Fault("requests", "a ledger needs no kept key", "if not self.key_options:", "if self.key_options is None:"),
    Fault(
        "requests",
        "a dry run runs",
        "if isinstance(request, ReleaseRequest) and request.dry_run:",
        "if isinstance(request, ReleaseRequest) and request.dry_run and request.overwrite:",
    ),
    # Refreshes.
    Fault(
        "refresh", "the days around a night are not read", "for offset in self.config.folders]", "for offset in (0,)]"
    ),
    Fault("refresh", "today is published", "- timedelta(days=1 + after)", "- timedelta(days=after)"),
    Fault(
        "refresh",
        "a correction is corrected again",
        'if existing.manifest.get("corrects") is not None or is_pruned(existing, history):',
        "if is_pruned(existing, history):",
    ),
    Fault(
        "refresh",
        "a night that was taken down is published anew",
        "if self.attempt == 1 and newest is not None and newest.removal is not None:",
        "if self.attempt == 1 and newest is not None and newest.removal == '':",
    ),
)


@functools.cache
def product() -> dict[str, str]:
    """Returns the text of each of the product's modules, by its path in the tree."""
    return {path: (ROOT / path).read_text() for path in _tracked(PRODUCT)}


def module_with(fault: Fault) -> str:
    """Returns the path of the module in which a fault is planted.

    Raises:
        ValueError: no module or several ones hold the snippet, or the changed module is no Python.
    """
    found = [path for path, text in product().items() for _ in fault.matches(text)]
    if len(found) != 1:
        raise ValueError(f"{fault.name}: the snippet occurs {len(found)} times ({', '.join(found) or 'nowhere'})")
    try:
        compile(fault.planted(product()[found[0]]), found[0], "exec")
    except SyntaxError as error:
        raise ValueError(f"{fault.name}: {found[0]} does not compile ({error})") from None
    return found[0]


def _tracked(folders: Sequence[str] = ()) -> list[str]:
    """Lists the tree's files: all, or the Python of some folders."""
    command = ["git", "ls-files", "-z", *(f"{folder}/*.py" for folder in folders)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).is_file()]


class Imports:
    """Knows which modules tests import, directly or not: lazily, by names in registries, and in code that is text."""

    def __init__(self) -> None:
        self._paths = {_name_of(path): path for path in _tracked((*PRODUCT, "tests", "benchmarks"))}
        self._edges = {name: set(self._imported(ROOT / path)) - {name} for name, path in self._paths.items()}
        self._reached: dict[str, dict[str, int]] = {}

    def tests_of(self, path: str) -> list[str]:
        """Returns the test files that reach a module, those of its own room a step nearer than others."""
        ranked = []
        for test in filter(re.compile(r"tests/(.*/)?test_\w+\.py").fullmatch, self._paths.values()):
            distances = self._distances(test)
            if (distance := distances.get(_name_of(path))) is not None:
                is_near = test.removeprefix("tests/").rpartition("/")[0] == path.rpartition("/")[0]
                ranked.append((distance - is_near, len(distances), test))
        return [test for *_, test in sorted(ranked)]

    def _distances(self, test: str) -> dict[str, int]:
        """Counts the steps to each module from a test file and its fixtures, but those of all tests."""
        if test not in self._reached:
            fixtures = [f"{folder}/conftest.py" for folder in Path(test).parents[:-2]]
            found = dict.fromkeys((name for name in map(_name_of, (test, *fixtures)) if name in self._paths), 0)
            queue = deque(found)
            while queue:
                name = queue.popleft()
                for other in self._edges[name] - found.keys():
                    found[other] = found[name] + 1
                    queue.append(other)
            self._reached[test] = found
        return self._reached[test]

    def _imported(self, path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [self._module(one.name) for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [self._module(f"{node.module}.{one.name}") for one in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = [name for one in _MODULE.findall(node.value) for name in (one, f"sfumato.{one}")]
                modules = [module for module in map(self._module, names) if "." in module]
            else:
                continue
            for module in filter(None, modules):
                yield module
                while "." in (module := module.rpartition(".")[0]):  # the outermost package imports all, when asked
                    yield from (module for _ in range(module in self._paths))

    def _module(self, name: str) -> str:
        """Returns the module that a dotted name begins with, or nothing."""
        while name and name not in self._paths:
            name = name.rpartition(".")[0]
        return name


def _name_of(path: str) -> str:
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    folder, dot, rest = name.partition(".")
    if folder == "api":
        return f"sfumato{dot}{rest}"
    return f"sfumato.{name}" if folder in PRODUCT else name


@dataclass(frozen=True)
class Verdict:
    """Says which test caught a fault, if any, and after how many seconds."""

    fault: Fault
    test: str | None
    seconds: float
    remark: str = ""

    def __str__(self) -> str:
        found = "SURVIVED" if self.test is None else f"caught by {self.test}"
        return f"{self.fault.name:60}  {found} in {self.seconds:.0f} s{self.remark}"


@dataclass(frozen=True)
class _Run:
    """Says which test failed first; and where the time was up, which one was running, and for how long."""

    failed: str | None = None
    running: str | None = None
    quiet: float = 0.0
    is_complete: bool = True


@dataclass
class Copy:
    """Tries faults in a copy of the tree, in a folder of its own."""

    folder: Path
    sound: dict[str, bool] = field(default_factory=dict)  # tests that failed: whether they pass without a fault
    writes: int = 0

    def __post_init__(self) -> None:
        for path in _tracked():
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, self.tree / path)
        package = self.folder / "links" / "sfumato"  # it comes before the installed one in all processes
        package.mkdir(parents=True)
        others = (self.tree / name for name in (*PRODUCT[1:], "runner_configs"))
        for one in (*(self.tree / PRODUCT[0]).iterdir(), *others):
            (package / one.name).symlink_to(one)
        (self.folder / "tmp").mkdir()

    @property
    def tree(self) -> Path:
        """Returns the copy's root."""
        return self.folder / "tree"

    def try_fault(self, fault: Fault, tests: Sequence[str], limit: float) -> Verdict:
        """Plants a fault, runs tests until one fails, and takes the fault out again."""
        start, path = time.monotonic(), module_with(fault)
        ends = [sum(_BATCHES[:number]) for number in range(len(_BATCHES) + 1)]
        batches = [tests[begin:end] for begin, end in zip(ends, [*ends[1:], None], strict=True)]
        while batches := list(filter(None, batches)):
            self._write(path, fault.planted(product()[path]))
            ran = self._run(batches[0], start + limit - time.monotonic())
            self._write(path, product()[path])
            seconds = time.monotonic() - start
            if not ran.is_complete and ran.quiet > limit / 2:
                return Verdict(fault, ran.running, seconds, ", because it hangs")
            if not ran.is_complete:
                return Verdict(fault, None, seconds, ", when time was up")
            if ran.failed is None:
                del batches[0]
            elif self._is_sound(ran.failed, limit):
                return Verdict(fault, ran.failed, seconds)
        return Verdict(fault, None, time.monotonic() - start)

    def _is_sound(self, test: str, limit: float) -> bool:
        if test not in self.sound:
            of_a_file = ["--collect-only"] if "::" not in test else []
            self.sound[test] = self._run([test, *of_a_file], limit) == _Run()
        return self.sound[test]

    def _write(self, path: str, text: str) -> None:
        place = self.tree / path
        place.write_text(text)
        self.writes += 1
        os.utime(place, (self.writes, self.writes))  # Python knows bytecode by the second and the size of its source

    def _run(self, arguments: Sequence[str], limit: float) -> _Run:
        unsound = [test for test, is_sound in self.sound.items() if not is_sound]
        left_out = [f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in unsound]
        options = ["-x", "-p", "no:cacheprovider", "-p", "tests.planted_faults", *left_out]
        events, before = self.folder / "events", os.environ.get("PYTHONPATH")
        events.write_text("")
        own = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder / "links"), before])),
            "PYTHONDONTWRITEBYTECODE": "",
            "TMPDIR": str(self.folder / "tmp"),
            _EVENTS: str(events),
        }
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *arguments], cwd=self.tree, env={**os.environ, **own},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            status = None
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(max(limit, 1.0))
            quiet = time.time() - events.stat().st_mtime
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what a test left behind too
            process.wait()
        happened = [line.split(" ", 1) for line in events.read_text().splitlines()]
        failed = next((test for kind, test in happened if kind == "failed"), None)
        running = happened[-1][1] if happened else arguments[0]
        if status is None and failed is None:
            return _Run(None, running, quiet, is_complete=False)
        return _Run() if status in (0, 5) else _Run(failed or running)  # 5: no test is left; no test failed: a crash


def pytest_runtest_logstart(nodeid: str) -> None:
    """Notes that a test begins. This module is the plugin of its own runs of pytest."""
    _note("began", nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Notes that a test failed."""
    if report.failed:
        _note("failed", report.nodeid)


def pytest_collectreport(report: Any) -> None:
    """Notes that a test file cannot be imported."""
    if report.failed:
        _note("failed", report.nodeid)


def _note(kind: str, test: str) -> None:
    with open(os.environ[_EVENTS], "a") as events:
        events.write(f"{kind} {test}\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _listed(faults: Sequence[Fault]) -> int:
    problems = 0
    for fault in faults:
        try:
            _say(f"{fault.subject:10}  {fault.name:60}  {module_with(fault)}")
        except ValueError as error:
            problems += 1
            _say(f"{fault.subject:10}  {error}")
    _say(f"{len(faults)} faults, {problems} of which cannot be planted")
    return 1 if problems else 0


def _tried(faults: Sequence[Fault], jobs: int, limit: float) -> int:
    imports, caught, survivors = Imports(), 0, list[Verdict]()
    tests = {fault: imports.tests_of(module_with(fault)) for fault in faults}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(jobs) as workers:
        copies = SimpleQueue[Copy]()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number)))

        def attempt(fault: Fault) -> Verdict:
            copy = copies.get()
            try:
                return copy.try_fault(fault, tests[fault], limit)
            finally:
                copies.put(copy)

        for done in as_completed([workers.submit(attempt, fault) for fault in faults]):
            _say(str(verdict := done.result()))
            caught += verdict.test is not None
            survivors += [verdict] if verdict.test is None else []
    for verdict in survivors:
        _say(f"survivor: {verdict.fault.name} ({module_with(verdict.fault)})")
    share = caught / max(len(faults), 1)
    _say(f"caught {caught} of {len(faults)} ({share:.1%})")
    return 0 if share >= NEEDED else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script, and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted_faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name or subject holds this")
    parser.add_argument("--first", type=int, metavar="N", help="the first N of these")
    parser.add_argument("--list", action="store_true", help="show the faults and their modules, and plant nothing")
    parser.add_argument("--jobs", type=int, default=2, help="faults at once, each in a copy of the tree (default: 2)")
    parser.add_argument("--seconds", type=float, default=600.0, help="most that a fault may take (default: 600)")
    given = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if given.only in f"{fault.subject} {fault.name}"][: given.first]
    return _listed(faults) if given.list else _tried(faults, given.jobs, given.seconds)


if __name__ == "__main__":
    sys.exit(main())
