"""The table of a comparison: means and standard errors over keys, ratios to the yardstick, in Markdown. Pure.

Rows have the same task if they have equal values of all options that every private method has. Bold marks the best
private method of a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.evaluation.density_metrics import HIGHER_IS_BETTER
from benchmarks.evaluation.outcomes import BY_TRUTH, YARDSTICK, Outcome, Setting, Value
from sfumato.transforms.observability.text_tables import markdown_table

RATIO_OF = "mse"
DASH = "-"


@dataclass(frozen=True)
class Mean:
    """A mean over keys and its standard error: NaN for a single key. Both are NaN if a run has no value."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """The mean of one value for each key."""
        array = np.array(values, float)
        if not np.isfinite(array).all():
            return cls(math.nan, math.nan)
        error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else math.nan
        return cls(float(array.mean()), float(error))

    @property
    def text(self) -> str:
        """The mean and its standard error, as `3.87e-11 (se 2e-13)`.

        The error has one digit. The mean ends at the same decimal place, and has 3 to 6 digits.
        """
        if not math.isfinite(self.value):
            return DASH
        if not math.isfinite(self.error):
            return f"{self.value:.3g}"
        if self.error <= 1e-9 * abs(self.value):  # equal runs leave a rounding error
            return f"{self.value:.3g} (se 0)"
        error = f"{self.error:.1g}"
        # The digits of a mean of 0, or one below its error, end where those of its error do.
        places = _exponent(self.value) - _exponent(float(error)) if self.value else 0
        return f"{_digits(self.value, min(max(places + 1, 3), 6))} (se {error})"


@dataclass(frozen=True)
class Row:
    """A setting's means over keys.

    Attributes:
        setting: the method and its options.
        keys: number of runs.
        metrics: by name.
        ratio: mean squared error over that of the yardstick on the same cohorts; None without a yardstick.
        entries: vector entries that a client sent in the runs that finished; NaN if none did.
        bits: bits that a client sent, likewise.
        shards_lost: share of all shards.
    """

    setting: Setting
    keys: int
    metrics: Mapping[str, Mean]
    ratio: Mean | None
    entries: float
    bits: float
    shards_lost: float

    @property
    def private(self) -> bool:
        """See `is_private`."""
        return is_private(self.setting.method)

    @property
    def options(self) -> dict[str, Value]:
        """The values of the options that were varied, by name."""
        return dict(self.setting.options)


def is_private(method: str) -> bool:
    """Whether a method is private: neither the yardstick nor one that chose by the exact data."""
    return method != YARDSTICK and not method.endswith(BY_TRUTH)


def summarise(outcomes: Iterable[Outcome], metrics: Sequence[str]) -> list[Row]:
    """One row for each setting: methods in the order in which they first appear, then by the values of their options.

    Raises ValueError if a setting has two outcomes of one key.
    """
    runs: dict[Setting, dict[int, Outcome]] = {}
    for outcome in outcomes:
        by_key = runs.setdefault(outcome.setting, {})
        if outcome.key in by_key:
            raise ValueError(f"outcomes: {outcome.setting.label} has two of key {outcome.key}")
        by_key[outcome.key] = outcome
    methods = list(dict.fromkeys(setting.method for setting in runs))
    yardsticks = {setting: by_key for setting, by_key in runs.items() if setting.method == YARDSTICK}
    rows = []

    def rank(setting: Setting) -> tuple[int, tuple[tuple[int, float, str], ...]]:
        return methods.index(setting.method), _rank(value for _, value in setting.options)

    for setting in sorted(runs, key=rank):
        repeats = [runs[setting][key] for key in sorted(runs[setting])]
        rows.append(
            Row(
                setting,
                len(repeats),
                {name: Mean.of([outcome.metrics.get(name, math.nan) for outcome in repeats]) for name in metrics},
                _ratio_to(yardsticks, repeats),
                _sent([outcome.entries for outcome in repeats]),
                _sent([outcome.bits for outcome in repeats]),
                float(np.mean([outcome.shards_lost for outcome in repeats])),
            )
        )
    return rows


def option_names(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """The names of the options that vary: those that every private method has, and those of some methods only."""
    options_by_method: dict[str, set[str]] = {}
    for row in [row for row in rows if row.private] or rows:
        options_by_method.setdefault(row.setting.method, set()).update(row.options)
    names = dict.fromkeys(name for row in rows for name in row.options)
    varied = [name for name in names if len({row.options[name] for row in rows if name in row.options}) > 1]
    shared = [name for name in varied if all(name in options for options in options_by_method.values())]
    return shared, [name for name in varied if name not in shared]


def in_groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each task, in ascending order of the shared options. A missing value comes first.

    Rows of a task keep their order.
    """
    shared, _ = option_names(rows)
    groups: dict[tuple[Value | None, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.options.get(name) for name in shared), []).append(row)
    return [groups[task] for task in sorted(groups, key=_rank)]


def best_rows(rows: Sequence[Row], metrics: Sequence[str]) -> set[tuple[Setting, str]]:
    """(setting, metric) of the best private means of each task with several private rows."""
    best = set()
    for group in in_groups(rows):
        private = [row for row in group if row.private]
        for name in metrics if len(private) > 1 else ():
            sign = -1 if name in HIGHER_IS_BETTER else 1
            values = [sign * row.metrics[name].value for row in private]
            least = min((value for value in values if math.isfinite(value)), default=math.nan)
            best |= {(row.setting, name) for row, value in zip(private, values, strict=True) if value == least}
    return best


def text_table(rows: Sequence[Row], metrics: Sequence[str]) -> str:
    """The rows as a Markdown table, aligned for the terminal, under a line on how to read it."""
    shared, other_options = option_names(rows)
    best = best_rows(rows, metrics)
    ratio, lost = any(row.ratio for row in rows), any(row.shards_lost > 0 for row in rows)
    figures = [*metrics, *([f"{RATIO_OF} / {YARDSTICK}"] if ratio else []), "entries", "bits"]
    lines = [[*shared, "method", *other_options, *figures, *(["shards lost"] if lost else [])]]
    for row in (row for group in in_groups(rows) for row in group):
        texts = {name: row.metrics[name].text for name in metrics}
        cells = [f"**{text}**" if (row.setting, name) in best else text for name, text in texts.items()]
        cells += [row.ratio.text if row.ratio else DASH] if ratio else []
        cells += [amount_text(row.entries), amount_text(row.bits)]
        cells += [share_text(row.shards_lost)] if lost else []
        before, after = ([value_text(row.options.get(name)) for name in names] for names in (shared, other_options))
        lines.append([*before, row.setting.method, *after, *cells])
    caption = f"Evaluation on exact data, no release. {_reading(rows, bool(best))}"
    return f"{caption}\n\n{markdown_table(lines, left=(len(shared),))}"


def _reading(rows: Sequence[Row], bold: bool) -> str:
    """One line on how to read a table of these rows."""
    keys = sorted({row.keys for row in rows})
    number = f"{keys[0]}" if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
    text = "One key" if keys == [1] else f"Mean (se: standard error) over {number} keys"
    return f"{text}; bold: the best private method of its group." if bold else f"{text}."


def amount_text(amount: float) -> str:
    """Entries or bits: `1,234`, with one decimal if the mean is small and no integer."""
    if not math.isfinite(amount):
        return DASH
    return f"{amount:,.0f}" if amount == round(amount) or amount >= 1000 else f"{amount:,.1f}"


def share_text(share: float) -> str:
    """A share as a percentage: `2.5%`."""
    return f"{100 * share:.3g}%"


def value_text(value: Value | None) -> str:
    """An option's value: `10,000`, `0.05`; empty if a method does not have the option."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _ratio_to(yardsticks: Mapping[Setting, Mapping[int, Outcome]], outcomes: Sequence[Outcome]) -> Mean | None:
    """The ratio R of mean x to the yardstick's mean y over common keys; None without exactly one fitting yardstick.

    The standard error is by the delta method: that of the mean of x - R y, over the mean of y. The yardstick has fewer
    options than a method (it has no epsilon); options of both must be equal.
    """
    options = dict(outcomes[0].setting.options)
    fitting = [runs for setting, runs in yardsticks.items() if all(options.get(n, v) == v for n, v in setting.options)]
    if len(fitting) != 1:
        return None
    common = [outcome for outcome in outcomes if outcome.key in fitting[0]]
    x = np.array([outcome.metrics.get(RATIO_OF, math.nan) for outcome in common], float)
    y = np.array([fitting[0][outcome.key].metrics.get(RATIO_OF, math.nan) for outcome in common], float)
    if not len(common) or not (math.isfinite(x.sum()) and y.sum() > 0):
        return None
    ratio = x.mean() / y.mean()
    residual = x - ratio * y  # sums to 0
    error = math.sqrt(float(residual @ residual) / (len(x) * (len(x) - 1))) / y.mean() if len(x) > 1 else math.nan
    return Mean(float(ratio), float(error))


def _sent(amounts: Sequence[int]) -> float:
    """The mean over the runs that finished. A run whose shards were all lost has amount 0."""
    finished = [amount for amount in amounts if amount > 0]
    return float(np.mean(finished)) if finished else math.nan


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _digits(value: float, digits: int) -> str:
    """The value with this many significant digits, trailing zeros included: 0.9880, 127, 3.870e-11."""
    return f"{value:#.{digits}g}".removesuffix(".")


def _rank(values: Iterable[Value | None]) -> tuple[tuple[int, float, str], ...]:
    """A sort key of options' values: missing values, then numbers, then text."""
    return tuple(
        (0, 0.0, "") if v is None else (2, 0.0, v) if isinstance(v, str) else (1, float(v), "") for v in values
    )
