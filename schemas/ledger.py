"""The records of a privacy ledger: limits of a dataset's budget, charges against them, reservations.

Amounts are decimal numbers, so sums have no rounding: ten releases at 0.1 cost 1. Everything that is read from text is
bounded, so that no sum, window or message can fail.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation

from sfumato.schemas.errors import RequestError, shown
from sfumato.schemas.guarantee import ADD_OR_REMOVE, ADJACENCIES, Trust
from sfumato.schemas.rotation import Rotation

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # of a dataset or a release
_LIMIT = re.compile(r"(?P<epsilon>[^:/]+)(:(?P<delta>[^:/]+))?/(?P<days>[0-9]{1,6})d(@(?P<adjacency>[a-z-]+))?")
_AMOUNT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_FILE = re.compile(r"[0-9a-f]{32}")
_DIGITS, _SMALLEST, _LARGEST = 28, Decimal("1e-100"), Decimal("1e6")
_YEARS = 1900, 2999
_MAX_DAYS = 36_525  # of a window or a period
_MAX_BITS = 1000  # that a user sends for one release

UNIT = "user"  # the privacy unit of every charge: all records of one user


def parse_amount(name: str, value: float | str | Decimal) -> Decimal:
    """Returns an epsilon or delta: 0, or a number in 1e-100..1e6 with at most 28 digits. Raises RequestError.

    A float becomes the shortest decimal number that identifies it. name: begins the messages.
    """
    try:
        text = str(value).strip()
        found = Decimal(text)
    except (InvalidOperation, ValueError):  # ValueError: an integer of thousands of digits
        raise RequestError(f"{name}: must be a number, got {shown(value)}") from None
    if not found.is_finite() or found < 0:
        raise RequestError(f"{name}: must be a finite number >= 0, got {shown(value)}")
    if not _AMOUNT.fullmatch(text) or len(found.as_tuple().digits) > _DIGITS:
        raise RequestError(f"{name}: must have at most {_DIGITS} digits, got {shown(value)}")
    if found and not _SMALLEST <= found <= _LARGEST:
        raise RequestError(f"{name}: must be 0, or between {_SMALLEST} and {_LARGEST:f}, got {shown(value)}")
    return found.normalize()


def dataset_name(value: str) -> str:
    """Returns a dataset's name as the ledger writes it: `City` and `city` are the same. Raises RequestError."""
    return _name("dataset", value).casefold()


def _check_bits(value: object) -> None:
    if not (type(value) is int and 1 <= value <= _MAX_BITS):
        raise RequestError(f"bits: must be between 1 and {_MAX_BITS}, got {shown(value)}")


def _name(field: str, value: str) -> str:
    if not (isinstance(value, str) and NAME.fullmatch(value)):
        raise RequestError(f"{field}: must consist of at most 100 letters, digits, - and _, got {shown(value)}")
    return value


def format_amount(value: Decimal) -> str:
    """Returns an amount as text: 10 instead of 1E+1, and tiny amounts as 1e-08."""
    return f"{value:f}" if value == 0 or value >= Decimal("1e-4") else f"{value:e}"


def rounded_up(amount: float) -> Decimal:
    """Returns an amount rounded up to six digits, as the ledger adds it up."""
    return Context(prec=6, rounding=ROUND_CEILING).create_decimal_from_float(amount)


def rounded_down(amount: float) -> str:
    """Returns an amount in text with four digits, never rounded up, so that it fits where the amount does."""
    return format_amount(Context(prec=4, rounding=ROUND_FLOOR).create_decimal_from_float(amount).normalize())


@dataclass(frozen=True)
class Limit:
    """At most epsilon and delta, by composition, for the data of any `days` consecutive days. Raises RequestError.

    Only charges that convert to its adjacency count (see `windows.convert_adjacency`).
    """

    epsilon: Decimal
    delta: Decimal
    days: int
    adjacency: str = ADD_OR_REMOVE

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and self.epsilon.is_finite()):
            raise RequestError(f"budget: epsilon must be a finite number > 0, got {self.epsilon}")
        if not (self.delta < 1):
            raise RequestError(f"budget: delta must be < 1, got {self.delta}")
        if not 1 <= self.days <= _MAX_DAYS:
            raise RequestError(f"budget: days must be between 1 and {_MAX_DAYS}, got {shown(self.days)}")
        if self.adjacency not in ADJACENCIES:
            raise RequestError(
                f"budget: adjacency must be one of {', '.join(ADJACENCIES)}, got {shown(self.adjacency)}"
            )

    @classmethod
    def from_numbers(cls, epsilon: float | str, delta: float | str, days: int, adjacency: str = ADD_OR_REMOVE) -> Limit:
        """Returns a limit from numbers of an option or a configuration file. Raises RequestError."""
        return cls(parse_amount("budget: epsilon", epsilon), parse_amount("budget: delta", delta), days, adjacency)

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Returns the limit of `EPSILON/DAYSd` or `EPSILON:DELTA/DAYSd`, such as 10/365d, and maybe `@ADJACENCY`."""
        found = _LIMIT.fullmatch(text.strip())
        if not found:
            raise RequestError(
                f"budget: must be EPSILON/DAYSd or EPSILON:DELTA/DAYSd, such as 10/365d, got {shown(text)}"
            )
        adjacency = found["adjacency"] or ADD_OR_REMOVE
        return cls.from_numbers(found["epsilon"], found["delta"] or "0", int(found["days"]), adjacency)

    @classmethod
    def parse_all(cls, text: str) -> tuple[Limit, ...]:
        """Returns several limits, separated by commas, with the shortest window first."""
        return ordered([cls.parse(one) for one in text.split(",")])

    def __str__(self) -> str:
        delta = f":{format_amount(self.delta)}" if self.delta else ""
        adjacency = "" if self.adjacency == ADD_OR_REMOVE else f"@{self.adjacency}"
        return f"{format_amount(self.epsilon)}{delta}/{self.days}d{adjacency}"

    def describe(self) -> str:
        """Returns the limit in words."""
        delta = f" and delta {format_amount(self.delta)}" if self.delta else ""
        adjacency = "" if self.adjacency == ADD_OR_REMOVE else f" ({self.adjacency})"
        return f"epsilon {format_amount(self.epsilon)}{delta} in {self.days} day{'s'[: self.days != 1]}{adjacency}"


def ordered(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Returns limits, shortest window first. Raises RequestError if two have the same length and adjacency."""
    found = tuple(sorted(limits, key=lambda limit: (limit.days, ADJACENCIES.index(limit.adjacency))))
    if len({(limit.days, limit.adjacency) for limit in found}) < len(found):
        raise RequestError("budget: two limits have the same number of days; give one of them")
    return found


def parse_day(name: str, text: str, more: str = "") -> date:
    """Returns a date YYYY-MM-DD of the years 1900 to 2999. Raises RequestError. more: that its text may be, too."""
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        found = date.fromisoformat(text)
    except ValueError:
        why = "; there is no such day" if _DAY.fullmatch(text) else _iso_dates(text)
        raise RequestError(f"{name}: must be a date YYYY-MM-DD{more}, got {shown(text)}{why}") from None
    if not _YEARS[0] <= found.year <= _YEARS[1]:
        raise RequestError(f"{name}: must be in a year between {_YEARS[0]} and {_YEARS[1]}, got {text}")
    return found


def _iso_dates(text: str) -> str:
    """Returns `; write 2026-11-16` for 16/11/2026, or both dates that 6.10.2026 may be; nothing for other text."""
    written = list[str]()
    for order in ("%d %m %Y", "%m %d %Y"):
        with suppress(ValueError):
            written.append(str(datetime.strptime(re.sub(r"[./-]", " ", text), order).date()))
    return f"; write {' or '.join(dict.fromkeys(written))}" if written else ""


@dataclass(frozen=True)
class Period:
    """The days that a release's data cover, first to last. Raises RequestError unless it has 1 to 36,525 days."""

    first: date
    last: date

    def __post_init__(self) -> None:
        if type(self.first) is not date or type(self.last) is not date:
            raise RequestError(f"period: must be dates, got {self.first!r} to {self.last!r}")
        if self.last < self.first:
            raise RequestError(
                f"period: must not end before it begins, got {self.first}:{self.last}; write {self.last}:{self.first}"
            )
        if self.length > _MAX_DAYS:
            raise RequestError(f"period: must have at most {_MAX_DAYS} days, got {self.length}")

    @classmethod
    def parse(cls, text: str, name: str = "period") -> Period:
        """Returns the period of a date, or of two dates with a colon between them. Raises RequestError."""
        first, _, last = text.partition(":")
        two, more = _DAY.findall(text), " or two, FIRST:LAST"
        if len(two) == 2 and text != ":".join(two):
            raise RequestError(f"{name}: two dates must be FIRST:LAST, got {shown(text)}; write {':'.join(two)}")
        return cls(parse_day(name, first, more), parse_day(name, last if _ else first, more))

    @property
    def length(self) -> int:
        return (self.last - self.first).days + 1

    def days(self) -> list[date]:
        return [self.first + timedelta(days=number) for number in range(self.length)]

    def overlaps(self, other: Period) -> bool:
        """Returns whether the two periods share a day."""
        return self.first <= other.last and other.first <= self.last

    def moved_to(self, first: date) -> Period:
        """Returns a period of the same length that begins on another day."""
        return Period(first, first + (self.last - self.first))

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}:{self.last}"


@dataclass(frozen=True)
class Cost:
    """The cost of a whole release. The privacy unit is the user."""

    epsilon: float  # of everything published; with local privacy, of all that a user's reports disclose together
    delta: float = 0.0  # of the same
    adjacency: str = ADD_OR_REMOVE  # one of ADJACENCIES
    trust: Trust = Trust.CENTRAL  # the party that sees unprotected data
    rho: float | None = None  # of Gaussian noise (see `privacy.mechanism`). Epsilon and delta follow from it
    rotation: Rotation | None = None  # the rotating cohort whose users it costs; None for all users
    bits: int | None = None  # see Recorded


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The ledger's record of a release: its id, its job and its data. Raises RequestError."""

    release_id: str
    job: str  # the command that makes it
    dataset: str  # name of the logs
    period: Period  # days that the logs cover
    request: str  # SHA-256 of the job's parameters
    binding: str  # keyed digest of request, input and key; without the key it reveals nothing about the input
    files: tuple[str, ...] = ()  # keyed digest of each input file's content (see `ledger.charge_rules`)
    bits: int | None = None  # of their value that each user sends, if they send nothing else; None otherwise

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", dataset_name(self.dataset))
        _name("release_id", self.release_id)
        if not all(_FILE.fullmatch(one) for one in self.files):
            raise RequestError("files: must be digests of 32 hexadecimal digits")
        if self.bits is not None:
            _check_bits(self.bits)


@dataclass(frozen=True, kw_only=True)
class Charge(Recorded):
    """The cost of a release, with the data that it is charged for. Raises RequestError.

    Attributes:
        epsilon, delta: above 0, and in [0, 1).
        starts_from: ids of the earlier releases from which this one starts, separated by commas; None without any.
        adjacency, trust: see Cost.
        also_charged: other datasets and days to which some of these files were charged before. This charge also
            counts for them.
        rho: see Cost. Charges with a rho are composed by their rhos.
        rotation: the cohort of users that the release queries, with its partition. The charge counts only for these
            users. None if it counts for all users.
        rows_by: `COLUMN ZONE` if only rows of the period were read, by that column and time zone. Two such charges
            of one dataset for different days share no row of a file. None if all rows were read.
    """

    epsilon: Decimal
    delta: Decimal
    starts_from: str | None = None
    adjacency: str = ADD_OR_REMOVE
    trust: Trust = Trust.CENTRAL
    also_charged: tuple[tuple[str, Period], ...] = ()
    rho: Decimal | None = None
    rotation: Rotation | None = None
    rows_by: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adjacency not in ADJACENCIES:
            raise RequestError(f"adjacency: must be one of {', '.join(ADJACENCIES)}, got {shown(self.adjacency)}")
        if self.trust not in tuple(Trust):
            raise RequestError(f"trust: must be one of {', '.join(Trust)}, got {shown(self.trust)}")
        if not (self.epsilon.is_finite() and self.epsilon > 0):
            raise RequestError(f"epsilon: must be a finite number > 0, got {self.epsilon}")
        if not (self.delta.is_finite() and 0 <= self.delta < 1):
            raise RequestError(f"delta: must be a number >= 0 and < 1, got {self.delta}")
        if self.rho is not None and not (self.rho.is_finite() and self.rho > 0 and self.delta > 0):
            raise RequestError(f"rho: must be > 0, with a delta > 0, got {self.rho}")
        if self.rotation is not None and not self.rotation.partition:
            raise RequestError("rotation: requires a partition, which identifies the users of the cohort")

    def counted(self) -> list[Charge]:
        """Returns the charge for its own dataset and days, and for each other dataset and days that it counts for."""
        return [self, *(replace(self, dataset=dataset, period=period) for dataset, period in self.also_charged)]


@dataclass(frozen=True, kw_only=True)
class Disclosure(Recorded):
    """Bits that users send without differential privacy. Raises RequestError.

    A dataset with limits has no disclosures: no epsilon bounds them. index, time: see Reservation; time is empty before
    the entry is written.
    """

    bits: int = field()  # required, unlike a charge's
    index: int = 0
    time: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_bits(self.bits)


@dataclass(frozen=True)
class Reservation:
    """A charge in the ledger.

    lost: hash of the first entry of the release, which was lost when the ledger was restored from an old copy. This
    entry charges the release again, by its manifest. None for an entry that was not lost.
    """

    charge: Charge  # the amount that counts as spent
    index: int  # number of the ledger's entry
    hash: str  # of the entry
    time: str  # when it was charged, ISO 8601 in UTC
    manifest: str | None = None  # SHA-256 of the manifest published under it; None until a publication is known
    refusal: str | None = None  # why the run refused to publish a result; None if it did not refuse
    reserved_charge: Charge | None = None  # of a refused run, before `charge` was lowered to what was spent
    pruned: str | None = None  # when the removal of the release's files was recorded, all but the manifest
    removal: str | None = None  # why the release was taken down, its manifest too; None if it was not
    lost: str | None = None

    @property
    def hashes(self) -> set[str]:
        """Returns the hashes that a manifest of the release may state: of the entry, and of the lost entry."""
        return {self.hash} | ({self.lost} if self.lost else set())

    def settled(self, epsilon: Decimal, delta: Decimal, reason: str, rho: Decimal | None = None) -> Reservation:
        """Returns the reservation of a refused run that spent only this. Raises RequestError for larger amounts."""
        reserved = self.charge
        if epsilon > reserved.epsilon or delta > reserved.delta or (rho or 0) > (reserved.rho or 0):
            raise RequestError(f"settle: release {self.charge.release_id} cannot cost more than its reservation")
        spent = replace(reserved, epsilon=epsilon, delta=delta, rho=rho, bits=None)  # users had sent nothing yet
        return replace(self, charge=spent, refusal=reason, reserved_charge=reserved)
