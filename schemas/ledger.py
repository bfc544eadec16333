"""What a privacy ledger says: limits on a dataset's budget, charges against them, publications.

Amounts are decimal numbers as they were written, and add up without rounding: ten releases at 0.1 cost 1. Everything
that is read from text is bounded, so that no sum, window or message of it can fail.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation

from sfumato.schemas.errors import RequestError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # of a dataset or a release
_LIMIT = re.compile(r"(?P<epsilon>[^:/]+)(:(?P<delta>[^:/]+))?/(?P<days>[0-9]{1,6})d(@(?P<adjacency>[a-z-]+))?")
_AMOUNT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_FILE = re.compile(r"[0-9a-f]{32}")
_DIGITS, _SMALLEST, _LARGEST = 28, Decimal("1e-100"), Decimal("1e6")
_YEARS = 1900, 2999
_MAX_DAYS = 36_525  # of a window or a period

UNIT = "user"  # the privacy unit of every charge: all records of one user
ADD_OR_REMOVE, ZERO_OUT, REPLACE = ADJACENCIES = "add-or-remove-one-user", "zero-out", "replace"
CENTRAL, SECAGG, LOCAL = TRUST_MODELS = "central", "secagg", "local"


def amount(name: str, value: float | str) -> Decimal:
    """An epsilon or delta as a decimal number: of a float the shortest that names it.

    Raises:
        RequestError: it is no number, or not 0 or one from 1e-100 to 1,000,000 of at most 28 digits.
    """
    try:
        text = str(value).strip()
        found = Decimal(text)
    except (InvalidOperation, ValueError):  # ValueError: an integer of thousands of digits
        raise RequestError(f"{name}: must be a number, got {_short(value)}") from None
    if not found.is_finite() or found < 0:
        raise RequestError(f"{name}: must be a finite number, 0 or more, got {_short(value)}")
    if not _AMOUNT.fullmatch(text) or len(found.as_tuple().digits) > _DIGITS:
        raise RequestError(f"{name}: must be a number of at most {_DIGITS} digits, got {_short(value)}")
    if found and not _SMALLEST <= found <= _LARGEST:
        raise RequestError(f"{name}: must be 0, or from {_SMALLEST} to {_LARGEST:f}, got {_short(value)}")
    return found.normalize()


def dataset_name(value: str) -> str:
    """The name of a dataset as a ledger writes it: `City` and `city` are one. Raises RequestError."""
    return _name("dataset", value).casefold()


def _name(field: str, value: str) -> str:
    if not (isinstance(value, str) and NAME.fullmatch(value)):
        raise RequestError(f"{field}: letters, digits, - and _ only, 100 at most; got {_short(value)}")
    return value


def _short(value: object) -> str:
    """A value for a message, which may be of any length."""
    try:
        text = repr(value)
    except ValueError:
        return "an integer of thousands of digits"
    return text if len(text) <= 120 else f"{text[:100]}..."


def plain(value: Decimal) -> str:
    """A decimal number as people write it: 10 and not 1E+1; tiny ones as 1e-08."""
    return f"{value:f}" if value == 0 or value >= Decimal("1e-4") else f"{value:e}"


@dataclass(frozen=True)
class Limit:
    """At most epsilon and delta, by composition, for the data of any `days` days in a row. Raises RequestError.

    adjacency: which logs it tells apart; only charges that can be converted to it count (see `windows.converted`).
    """

    epsilon: Decimal
    delta: Decimal
    days: int
    adjacency: str = ADD_OR_REMOVE

    def __post_init__(self) -> None:
        if not (self.epsilon > 0):
            raise RequestError(f"budget: epsilon must be above 0, got {self.epsilon}")
        if not (self.delta < 1):
            raise RequestError(f"budget: delta must be below 1, got {self.delta}")
        if not 1 <= self.days <= _MAX_DAYS:
            raise RequestError(f"budget: a window has 1 to {_MAX_DAYS} days, got {_short(self.days)}")
        if self.adjacency not in ADJACENCIES:
            raise RequestError(f"budget: adjacency: one of {', '.join(ADJACENCIES)}; got {_short(self.adjacency)}")

    @classmethod
    def of(cls, epsilon: float | str, delta: float | str, days: int, adjacency: str = ADD_OR_REMOVE) -> Limit:
        """From numbers as an option or a configuration file has them."""
        return cls(amount("budget: epsilon", epsilon), amount("budget: delta", delta), days, adjacency)

    @classmethod
    def parse(cls, text: str) -> Limit:
        """From `EPSILON/DAYSd` or `EPSILON:DELTA/DAYSd`, such as 10/365d; `@ADJACENCY` may follow."""
        found = _LIMIT.fullmatch(text.strip())
        if not found:
            raise RequestError(
                f"budget: write EPSILON/DAYSd or EPSILON:DELTA/DAYSd, such as 10/365d; got {_short(text)}"
            )
        adjacency = found["adjacency"] or ADD_OR_REMOVE
        return cls.of(found["epsilon"], found["delta"] or "0", int(found["days"]), adjacency)

    @classmethod
    def parse_all(cls, text: str) -> tuple[Limit, ...]:
        """Several, separated by commas, shortest window first; an empty text is refused."""
        return ordered([cls.parse(one) for one in text.split(",")])

    def __str__(self) -> str:
        delta = f":{plain(self.delta)}" if self.delta else ""
        adjacency = "" if self.adjacency == ADD_OR_REMOVE else f"@{self.adjacency}"
        return f"{plain(self.epsilon)}{delta}/{self.days}d{adjacency}"

    def words(self) -> str:
        """The limit in plain words."""
        delta = f" and delta {plain(self.delta)}" if self.delta else ""
        adjacency = "" if self.adjacency == ADD_OR_REMOVE else f" ({self.adjacency})"
        return f"epsilon {plain(self.epsilon)}{delta} in {self.days} day{'s'[: self.days != 1]}{adjacency}"


def ordered(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Limits by the length of their windows. Raises RequestError where two of one adjacency have the same length."""
    found = tuple(sorted(limits, key=lambda limit: (limit.days, ADJACENCIES.index(limit.adjacency))))
    if len({(limit.days, limit.adjacency) for limit in found}) < len(found):
        raise RequestError("budget: two limits have windows of the same length; give one")
    return found


def parse_day(name: str, text: str) -> date:
    """A date written as YYYY-MM-DD, of the years 1900 to 2999. Raises RequestError."""
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        found = date.fromisoformat(text)
    except ValueError:
        raise RequestError(f"{name}: write a date as YYYY-MM-DD, got {_short(text)}") from None
    if not _YEARS[0] <= found.year <= _YEARS[1]:
        raise RequestError(f"{name}: must be a day of the years {_YEARS[0]} to {_YEARS[1]}, got {text}")
    return found


@dataclass(frozen=True)
class Period:
    """The days, first to last, from which a release's data are.

    Raises RequestError where last comes before first, or where there are more than 36,525 days.
    """

    first: date
    last: date

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise RequestError(f"period: ends on {self.last}, before it begins on {self.first}")
        if self.length > _MAX_DAYS:
            raise RequestError(f"period: at most {_MAX_DAYS} days, got {self.length}")

    @classmethod
    def parse(cls, text: str, name: str = "period") -> Period:
        """From a date, or two with a colon between them."""
        first, _, last = text.partition(":")
        return cls(parse_day(name, first), parse_day(name, last if _ else first))

    @property
    def length(self) -> int:
        """Its number of days."""
        return (self.last - self.first).days + 1

    def days(self) -> list[date]:
        """Every day of it."""
        return [self.first + timedelta(days=number) for number in range(self.length)]

    def meets(self, other: Period) -> bool:
        """Whether the two share a day."""
        return self.first <= other.last and other.first <= self.last

    def starting(self, first: date) -> Period:
        """A period of the same length that begins on another day."""
        return Period(first, first + (self.last - self.first))

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}:{self.last}"


@dataclass(frozen=True)
class Cost:
    """What a release costs in all. Its privacy unit is the user.

    epsilon, delta: of everything that the release shows, and local reports as all that a user's reports disclose
    together. adjacency: of ADJACENCIES, which logs they tell apart. trust: of TRUST_MODELS, whom a user must trust.
    """

    epsilon: float
    delta: float = 0.0
    adjacency: str = ADD_OR_REMOVE
    trust: str = CENTRAL


@dataclass(frozen=True)
class Charge:
    """What a release costs, and for what. Raises RequestError.

    request: digest of all that the manifest states of the request. binding: a keyed digest of request, input and key,
    which only who holds the key can make and which says nothing of the input to anybody else. starts_from: the id of
    the earlier release from which this one starts, if any. adjacency, trust: as of Cost. files: a keyed digest of the
    content of every input file (see `ledger.files`). also: other datasets and days to which some of these files were
    charged before, for which this charge counts too.
    """

    release_id: str
    job: str
    dataset: str
    period: Period
    epsilon: Decimal
    delta: Decimal
    request: str
    binding: str
    starts_from: str | None = None
    adjacency: str = ADD_OR_REMOVE
    trust: str = CENTRAL
    files: tuple[str, ...] = ()
    also: tuple[tuple[str, Period], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", dataset_name(self.dataset))
        _name("release_id", self.release_id)
        if self.adjacency not in ADJACENCIES:
            raise RequestError(f"adjacency: one of {', '.join(ADJACENCIES)}; got {_short(self.adjacency)}")
        if self.trust not in TRUST_MODELS:
            raise RequestError(f"trust: one of {', '.join(TRUST_MODELS)}; got {_short(self.trust)}")
        if not all(_FILE.fullmatch(one) for one in self.files):
            raise RequestError("files: digests of 32 hexadecimal digits")
        if not (self.epsilon.is_finite() and self.epsilon > 0):
            raise RequestError(f"epsilon: a charge is a finite number above 0, got {self.epsilon}")
        if not (self.delta.is_finite() and 0 <= self.delta < 1):
            raise RequestError(f"delta: a charge is a number from 0 to below 1, got {self.delta}")

    def each(self) -> list[Charge]:
        """The charge for its own dataset and days, and for every other for which it counts."""
        return [self, *(replace(self, dataset=dataset, period=period) for dataset, period in self.also)]


@dataclass(frozen=True)
class Reservation:
    """A charge that stands in the ledger: entry number, its hash, when it was made (ISO 8601, UTC).

    charge: what counts as spent. manifest: the SHA-256 of the manifest that was published under it; None while nothing
    is known to be. refused: why the run refused to publish a result; None where it did not. reserved: where it refused,
    the charge as it was reserved, of which `charge` is the part that was spent.
    """

    charge: Charge
    index: int
    hash: str
    time: str
    manifest: str | None = None
    refused: str | None = None
    reserved: Charge | None = None

    def settled(self, epsilon: Decimal, delta: Decimal, reason: str) -> Reservation:
        """The reservation of a run that refused, and so spent only this much of it.

        Raises RequestError where that is nothing, or more than was reserved.
        """
        if epsilon > self.charge.epsilon or delta > self.charge.delta:
            raise RequestError(f"settle: release {self.charge.release_id} cannot cost more than what was reserved")
        spent = replace(self.charge, epsilon=epsilon, delta=delta)
        return replace(self, charge=spent, refused=reason, reserved=self.charge)
