"""What a privacy ledger says: limits on a dataset's budget, charges against them, publications.

Amounts are decimal numbers as they were written, and add up without rounding: ten releases at 0.1 cost 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation

from sfumato.schemas.errors import RequestError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # of a dataset or a release
_LIMIT = re.compile(r"(?P<epsilon>[^:/]+)(:(?P<delta>[^:/]+))?/(?P<days>\d+)d")


def amount(name: str, value: float | str) -> Decimal:
    """An epsilon or delta as a decimal number: of a float the shortest that names it. Raises RequestError."""
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        raise RequestError(f"{name}: must be a number, got {value!r}") from None
    if not found.is_finite() or found < 0:
        raise RequestError(f"{name}: must be a finite number, 0 or more, got {value!r}")
    return found.normalize()


def plain(value: Decimal) -> str:
    """A decimal number as people write it: 10 and not 1E+1; tiny ones as 1e-08."""
    return f"{value:f}" if value == 0 or value >= Decimal("1e-4") else f"{value:e}"


@dataclass(frozen=True)
class Limit:
    """At most epsilon and delta, by composition, for the data of any `days` days in a row. Raises RequestError."""

    epsilon: Decimal
    delta: Decimal
    days: int

    def __post_init__(self) -> None:
        if not (self.epsilon > 0):
            raise RequestError(f"budget: epsilon must be above 0, got {self.epsilon}")
        if not (self.delta < 1):
            raise RequestError(f"budget: delta must be below 1, got {self.delta}")
        if not 1 <= self.days <= 36_525:
            raise RequestError(f"budget: a window has 1 to 36525 days, got {self.days}")

    @classmethod
    def of(cls, epsilon: float | str, delta: float | str, days: int) -> Limit:
        """From numbers as an option or a configuration file has them."""
        return cls(amount("budget: epsilon", epsilon), amount("budget: delta", delta), days)

    @classmethod
    def parse(cls, text: str) -> Limit:
        """From `EPSILON/DAYSd` or `EPSILON:DELTA/DAYSd`, such as 10/365d."""
        found = _LIMIT.fullmatch(text.strip())
        if not found:
            raise RequestError(f"budget: write EPSILON/DAYSd or EPSILON:DELTA/DAYSd, such as 10/365d; got {text!r}")
        return cls.of(found["epsilon"], found["delta"] or "0", int(found["days"]))

    @classmethod
    def parse_all(cls, text: str) -> tuple[Limit, ...]:
        """Several, separated by commas, shortest window first; an empty text is refused."""
        return ordered([cls.parse(one) for one in text.split(",")])

    def __str__(self) -> str:
        delta = f":{plain(self.delta)}" if self.delta else ""
        return f"{plain(self.epsilon)}{delta}/{self.days}d"

    def words(self) -> str:
        """The limit in plain words."""
        delta = f" and delta {plain(self.delta)}" if self.delta else ""
        return f"epsilon {plain(self.epsilon)}{delta} in {self.days} day{'s'[: self.days != 1]}"


def ordered(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Limits by the length of their windows. Raises RequestError where two have windows of the same length."""
    found = tuple(sorted(limits, key=lambda limit: limit.days))
    if len({limit.days for limit in found}) < len(found):
        raise RequestError("budget: two limits have windows of the same length; give one")
    return found


def parse_day(name: str, text: str) -> date:
    """A date written as YYYY-MM-DD. Raises RequestError."""
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise RequestError(f"{name}: write a date as YYYY-MM-DD, got {text!r}") from None


@dataclass(frozen=True)
class Period:
    """The days, first to last, from which a release's data are. Raises RequestError where last comes before first."""

    first: date
    last: date

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise RequestError(f"period: ends on {self.last}, before it begins on {self.first}")

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

    def starting(self, first: date) -> Period:
        """A period of the same length that begins on another day."""
        return Period(first, first + (self.last - self.first))

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}:{self.last}"


@dataclass(frozen=True)
class Charge:
    """What a release costs, and for what.

    request: digest of all that the manifest states of the request. binding: a keyed digest of request, input and key,
    which only who holds the key can make and which says nothing of the input to anybody else. starts_from: the id of
    the earlier release from which this one starts, if any.
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

    def __post_init__(self) -> None:
        for name, value in (("dataset", self.dataset), ("release_id", self.release_id)):
            if not NAME.fullmatch(value):
                raise RequestError(f"{name}: letters, digits, - and _ only, 100 at most; got {value!r}")
        if not (self.epsilon.is_finite() and self.epsilon > 0):
            raise RequestError(f"epsilon: a charge is a finite number above 0, got {self.epsilon}")
        if not (self.delta.is_finite() and 0 <= self.delta < 1):
            raise RequestError(f"delta: a charge is a number from 0 to below 1, got {self.delta}")


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
