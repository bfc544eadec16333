"""Numbers, shares, lengths, places and nights as pages and pictures write them. Pure."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.known_digits import Z, figures, not_negative, raised, with_interval
from sfumato.schemas.ledger import Period
from sfumato.schemas.region import Region
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.timeline import PlaceChange
from sfumato.schemas.views.view_parts import Table

_MOST_PLACES = 12
_MOST_GAPS = 4  # of missing nights that a sentence names one by one
CHANGES = (
    "Each place is compared with the number of users expected from earlier days. The intervals hold for all places "
    "at once: with 95% probability, every interval contains the users of its place."
)


def column_texts(values: Sequence[float]) -> list[str]:
    """Returns the numbers of a column as text, with one number of decimals.

    It is the most that any of them needs to show six digits.
    """
    exponents = (int(Decimal(f"{value:.6g}").as_tuple().exponent) for value in values)
    places = min(max((-power for power in exponents if power < 0), default=0), _MOST_PLACES)
    return [f"{value:,.{places}f}".replace("-", "−") for value in values]


def percent(share: float, digits: int = 3) -> str:
    """Returns a share of the whole, as in `2.31%`."""
    return f"{100 * share:.{digits}g}%" if not 0 < abs(share) < 1e-4 else "under 0.01%"


def tiny(value: float) -> str:
    """Returns a small number such as a delta: powers of ten below a thousandth."""
    if not 0 < value < 1e-3:
        return f"{value:g}"
    mantissa, power = f"{value:.2e}".split("e")
    lead = "" if float(mantissa) == 1 else f"{float(mantissa):g} × "
    return lead + raised(int(power))


def length(metres: float) -> str:
    """Returns a length on the ground, as in `120 m` or `1.5 km`, with three digits."""
    size, unit = (1000.0, "km") if metres >= 995 else (1.0, "m") if metres >= 1 else (0.01, "cm")
    return f"{float(f'{metres / size:.3g}'):,g} {unit}"


def coordinates(latitude: float, longitude: float, size: float) -> str:
    """Returns a place in degrees, with the digits that distinguish cells of a size: their shorter side, in degrees.

    >>> coordinates(37.78397, -122.45979, 0.0002)
    '37.7840, -122.4598'
    """
    digits = max(math.ceil(-math.log10(size)), 0)
    return f"{latitude:.{digits}f}, {longitude:.{digits}f}"


def middle(region: Region) -> str:
    """Returns the middle of a region in degrees, as in `52.5° N, 13.4° E`, with the digits that its size requires."""
    size = max(region.east - region.west, region.north - region.south)
    digits = max(math.ceil(-math.log10(size)), 0)
    places = ((region.south + region.north) / 2, "NS"), ((region.west + region.east) / 2, "EW")
    return ", ".join(f"{abs(value):.{digits}f}° {signs[value < 0]}" for value, signs in places)


def plural(number: int, one: str, many: str | None = None) -> str:
    """Returns a number of things, as in `1 cell` or `12 cells`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def shown_values(values: NDArray[np.float64] | NDArray[np.int64]) -> list[float | None]:
    """Returns a map's values as its page holds them, to seven digits; None where one is not finite."""
    distinct, places = np.unique(values, return_inverse=True)  # counts repeat
    kept = [float(f"{value:.7g}") if math.isfinite(value) else None for value in distinct.tolist()]
    return [kept[place] for place in places.tolist()]


def spoken(text: str) -> str:
    """Returns a date as people write it: 20 November 2026."""
    day = datetime.date.fromisoformat(text)
    return f"{day.day} {day:%B} {day.year}"


def times(number: int) -> str:
    """Returns a number of times, as in `once` or `3 times`."""
    return ("never", "once", "twice")[number] if number < 3 else f"{number:,} times"


def night_sentences(
    rotation: Rotation | None, rests_on: Sequence[str] | None, started_anew: str | None = None
) -> list[str]:
    """Returns the pages' sentences on a night: the cohort that was queried, and the nights its estimate is based on.

    There are none where all users were queried, or for an estimate from the night's own answers only. rests_on: periods
    as text. started_anew: a sentence on why earlier nights were ignored.
    """
    texts = []
    if rotation is not None and rotation.cohorts > 1:
        texts.append(
            f"Cohort {rotation.cohort} of {rotation.cohorts} was queried. The counts are scaled to all users, and "
            "their errors include the random choice of the cohort."
        )
    if rests_on:
        texts.append(rests_sentence(rests_on))
    if started_anew:
        texts.append(f"The series was restarted. {started_anew}")
    return texts


def rests_sentence(rests_on: Sequence[str]) -> str:
    """Returns a sentence on the nights an estimate is based on, with those missing between the first and the last."""
    periods = [Period.parse(text) for text in rests_on]
    first, last = periods[0].first, periods[-1].last
    nights = sum(period.length for period in periods)
    if nights == 1:
        return f"The estimate is based only on the answers of this day, {spoken(str(first))}."
    one_year = first.year == last.year
    start = f"{first.day} {first:%B}" if one_year else spoken(str(first))
    text = f"The estimate is based on the answers of {plural(nights, 'day')}, {start} to {spoken(str(last))}"
    missing = Period(first, last).length - nights
    if not missing:
        return f"{text}."
    if missing > _MOST_GAPS:
        return f"{text}, without {missing:,} days between them."
    there = {day for period in periods for day in period.days()}
    absent = [day for day in Period(first, last).days() if day not in there]
    names = [f"{day.day} {day:%B}" + ("" if one_year else f" {day.year}") for day in absent]
    return f"{text}, without {' and '.join([', '.join(names[:-1]), names[-1]] if len(names) > 1 else names)}."


def changes_table(changes: Sequence[PlaceChange]) -> Table:
    """Returns the places that changed, with their intervals; those that differ most come first."""
    rows = []
    for one in sorted(changes, key=lambda change: -abs(change.users - change.expected)):
        users, low, high = with_interval(*not_negative(one.users, one.low, one.high))
        # What earlier nights lead to expect is known better than the users of one night.
        expected = figures(max(one.expected, 0.0), (one.high - one.low) / (20 * Z))
        rows.append([" ".join(one.cell_ids), users, low, high, expected])
    heads = ["Cells", "Users", "At least", "At most", "Expected"]
    return Table(title="Places that changed", heads=heads, rows=rows, numeric=[False, True, True, True, True])
