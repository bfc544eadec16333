"""A ledger's entries as bytes, and its state after all of them: limits, charges, publications.

Entries are canonical JSON, each with its own hash and the hash of the entry before it. A changed, removed or reordered
entry breaks the chain. A truncated or completely rewritten chain does not. To detect those, every release's manifest
holds its entry's hash (`ledger.hash`); `sfumato ledger verify --releases` compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

from sfumato.schemas.errors import FormatError, LedgerError, RequestError, check_format
from sfumato.schemas.ledger import (
    UNIT,
    Charge,
    Disclosure,
    Limit,
    Period,
    Recorded,
    Reservation,
    dataset_name,
    format_amount,
    parse_amount,
    parse_day,
)
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.ledger.windows import check_rho, find_overrun, is_bounded

FORMAT = "sfumato-ledger/4"
OLDEST = 2  # version of FORMAT that is read
KINDS = RESERVE, SETTLE, COMMIT, LIMITS, PRUNE, REMOVE, RECOVER, DISCLOSE = (
    "reserve", "settle", "commit", "limits", "prune", "remove", "recover", "disclose",
)  # fmt: skip
_SINCE = {RECOVER: 3, REMOVE: 3, DISCLOSE: 4}  # the first version of FORMAT that has the kind
FIRST = "0" * 64  # the hash before the first entry
_FIELDS = {"format", "index", "previous", "time", "nonce", "kind", "content"}


def entry_bytes(index: int, previous: str, time: str, nonce: str, kind: str, content: Mapping[str, Any]) -> bytes:
    """Returns an entry as it is stored. It states the oldest format that has its kind, for the sake of older readers.

    previous: hash of the entry before it, or FIRST. time: ISO 8601, UTC. nonce: a random text, so that two writers'
    entries always differ. kind: one of KINDS. content: the entry's own fields, in JSON's types.
    """
    stated = f"{FORMAT.partition('/')[0]}/{_SINCE.get(kind, OLDEST)}"
    chained = {"format": stated, "index": index, "previous": previous, "time": time, "nonce": nonce}
    body = {**chained, "kind": kind, "content": content}
    return _canonical({**body, "hash": _hash(body)})


def read_entries(entries: Sequence[bytes]) -> list[dict[str, Any]]:
    """Returns the entries as dictionaries with their `hash`. Raises FormatError, or LedgerError for a broken chain."""
    previous, found = FIRST, []
    for index, entry in enumerate(entries):
        try:
            body = json.loads(entry)
            complete = isinstance(body, dict) and set(body) == {*_FIELDS, "hash"} and isinstance(body["content"], dict)
            complete = complete and entry == _canonical(body)
            stated = body.pop("hash") if complete else None
            if isinstance(body, dict) and "format" in body and stated in (None, _hash(body)):
                # Where the hash is wrong, the entry was changed, and its format may have been.
                check_format(f"entry {index}", body["format"], FORMAT, OLDEST)
            if not complete or not all(isinstance(body[name], str) for name in ("time", "nonce", "kind")):
                raise ValueError("not in the format of this program")
            if type(body["index"]) is not int or body["index"] != index:
                raise ValueError(f"numbered {body['index']}")
            if body["previous"] != previous:
                raise ValueError("not the successor of the previous entry")
            if stated != _hash(body):
                raise ValueError("changed since it was written")
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise LedgerError(
                f"ledger: entry {index} is not a ledger entry; the ledger is damaged or has been tampered with; "
                "nothing was charged"
            ) from None
        except FormatError as error:
            raise FormatError(f"ledger: {error}; do not start a new ledger, which would lose what was spent") from None
        except (ValueError, RecursionError) as error:
            raise LedgerError(
                f"ledger: entry {index} is {error}; the ledger is damaged or has been tampered with; nothing was "
                "charged"
            ) from None
        previous = stated
        found.append({**body, "hash": stated})
    return found


def charge_content(charge: Charge) -> dict[str, Any]:
    """Returns a charge in JSON's types. Amounts are text, so that no reader rounds them."""
    return {
        **_named(charge),
        "epsilon": format_amount(charge.epsilon),
        "delta": format_amount(charge.delta),
        "starts_from": charge.starts_from,
        "unit": UNIT,
        "adjacency": charge.adjacency,
        "trust": charge.trust,
        "also_charged": [[dataset, str(period)] for dataset, period in charge.also_charged],
        # Other noise than Gaussian has none, and neither have charges of earlier versions.
        **({} if charge.rho is None else {"rho": format_amount(charge.rho)}),
        **({} if charge.rotation is None else {"rotation": asdict(charge.rotation)}),
        **({} if charge.rows_by is None else {"rows_by": charge.rows_by}),
        **({} if charge.bits is None else {"bits": charge.bits}),
    }


def _named(one: Recorded) -> dict[str, Any]:
    """Returns the fields shared by charges and disclosures, in JSON types."""
    return {
        "release_id": one.release_id,
        "job": one.job,
        "dataset": one.dataset,
        "first": str(one.period.first),
        "last": str(one.period.last),
        "request": one.request,
        "binding": one.binding,
        "files": list(one.files),
    }


def _named_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Reads what `_named` returned. Raises ValueError, KeyError or TypeError."""
    texts = {name: content[name] for name in ("release_id", "job", "dataset", "request", "binding")}
    if not all(isinstance(one, str) for one in texts.values()):
        raise ValueError("a name or digest is not text")
    period = Period(parse_day("first", content["first"]), parse_day("last", content["last"]))
    return {**texts, "period": period, "files": tuple(content["files"])}


def _rotation_of(rotation: Any) -> Rotation:
    if set(rotation) != {"cohort", "cohorts", "partition"} or not all(
        type(rotation[name]) is int for name in ("cohort", "cohorts")
    ):
        raise ValueError("a rotation must have a cohort, cohorts and a partition")
    return Rotation(**rotation)


def rho_of(content: Mapping[str, Any]) -> Decimal | None:
    """Reads the rho of a charge or a settlement, None without one. Raises RequestError."""
    return parse_amount("rho", content["rho"]) if "rho" in content else None


def charge_of(content: Mapping[str, Any]) -> Charge:
    """Reads what `charge_content` returned. Raises LedgerError."""
    try:
        if content["unit"] != UNIT:
            raise ValueError("another privacy unit")
        charge = Charge(
            **_named_of(content),
            epsilon=parse_amount("epsilon", content["epsilon"]),
            delta=parse_amount("delta", content["delta"]),
            starts_from=None if content["starts_from"] is None else str(content["starts_from"]),
            adjacency=content["adjacency"],
            trust=content["trust"],
            also_charged=tuple((str(dataset), Period.parse(days)) for dataset, days in content["also_charged"]),
            rho=rho_of(content),
            rotation=_rotation_of(content["rotation"]) if "rotation" in content else None,
            rows_by=None if "rows_by" not in content else str(content["rows_by"]),
            bits=content.get("bits"),
        )
        check_rho(charge)
        return charge
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise LedgerError(f"ledger: a charge cannot be read ({error})") from None


def disclosure_content(disclosure: Disclosure) -> dict[str, Any]:
    """Returns a disclosure in JSON's types."""
    return {**_named(disclosure), "bits": disclosure.bits}


def disclosure_of(content: Mapping[str, Any], index: int, time: str) -> Disclosure:
    """Reads what `disclosure_content` returned, of entry `index`. Raises LedgerError."""
    try:
        return Disclosure(**_named_of(content), bits=content["bits"], index=index, time=time)
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"ledger: entry {index} cannot be read ({error})") from None


def settle_content(
    release_id: str, epsilon: Decimal, delta: Decimal, reason: str, rho: Decimal | None = None
) -> dict[str, Any]:
    """Returns the spending of a refused run, in JSON types."""
    amounts = {"epsilon": epsilon, "delta": delta} | ({} if rho is None else {"rho": rho})
    return {"release_id": release_id, **{name: format_amount(one) for name, one in amounts.items()}, "reason": reason}


def limits_content(dataset: str, limits: Sequence[Limit]) -> dict[str, Any]:
    """Returns a dataset's limits in JSON's types."""
    return {"dataset": dataset_name(dataset), "limits": [str(limit) for limit in limits]}


def recover_content(charge: Charge, lost: str, manifest: str | None, refusal: str | None) -> dict[str, Any]:
    """Returns a charge whose entry was lost, as the manifest of its release or refusal states it, in JSON's types."""
    return {**charge_content(charge), "lost": lost, "manifest": manifest, "refusal": refusal}


def recovered_of(content: Mapping[str, Any]) -> tuple[Charge, str, str | None, str | None]:
    """Reads what `recover_content` returned: charge, hash of the lost entry, manifest, refusal. Raises LedgerError."""
    texts = [content.get(name) for name in ("lost", "manifest", "refusal")]
    lost, manifest, refusal = (one if isinstance(one, str) and one else None for one in texts)
    if lost is None or (manifest is None) == (refusal is None):
        raise LedgerError("ledger: a restored charge does not state its release")
    return charge_of(content), lost, manifest, refusal


def limits_of(content: Mapping[str, Any]) -> tuple[str, tuple[Limit, ...]]:
    """Reads what `limits_content` returned. Raises LedgerError."""
    try:
        found = dataset_name(content["dataset"]), tuple(Limit.parse(text) for text in content["limits"])
        if not found[1]:
            raise RequestError("limits: must not be empty")
        return found
    except (KeyError, TypeError, AttributeError, RequestError) as error:
        raise LedgerError(f"ledger: limits cannot be read ({error})") from None


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class LimitChange:
    """A dataset's limits before and after entry `index`. `before` is empty for the first limits."""

    index: int
    time: str
    dataset: str
    before: tuple[Limit, ...]
    after: tuple[Limit, ...]


@dataclass(frozen=True)
class History:
    """The state of a ledger."""

    entries: int  # how many there are
    head: str  # hash of the newest entry
    reservations: dict[str, Reservation]  # by release id
    limits: dict[str, tuple[Limit, ...]]  # in force, by dataset
    changes: tuple[LimitChange, ...] = ()  # of limits, oldest first
    refusals: tuple[Reservation, ...] = ()  # settled, and the release id was charged again, for corrected input
    disclosures: dict[str, Disclosure] = field(default_factory=dict)  # by release id

    @property
    def datasets(self) -> list[str]:
        """Returns all datasets, in alphabetic order: with limits, or with disclosures."""
        return sorted({*self.limits, *(one.dataset for one in self.disclosures.values())})

    @property
    def charges(self) -> list[Charge]:
        """Returns all charges that count. The whole reservation of a crashed run counts as spent."""
        return _counted_charges((*self.refusals, *self.reservations.values()))


def replay(entries: Sequence[bytes], *, with_limits: bool = False) -> History:
    """Reads all entries of a ledger, from first to newest.

    with_limits: also check every charge against the limits in force when it was made.

    Raises FormatError if another version of sfumato wrote an entry; LedgerError if the chain is broken, entries
    contradict each other, or a charge exceeded its limits.
    """
    reservations: dict[str, Reservation] = {}
    limits: dict[str, tuple[Limit, ...]] = {}
    changes: list[LimitChange] = []
    refusals: list[Reservation] = []
    disclosures: dict[str, Disclosure] = {}
    cohorts: dict[str, int] = {}  # their number, by partition
    head = FIRST
    for entry in read_entries(entries):
        index, kind, content = entry["index"], entry["kind"], entry["content"]
        head = entry["hash"]
        if kind == LIMITS:
            dataset, found = limits_of(content)
            if any(one.dataset == dataset for one in disclosures.values()):
                raise LedgerError(f"ledger: entry {index} sets limits for {dataset}, whose users sent bits unchanged")
            changes.append(LimitChange(index, entry["time"], dataset, limits.get(dataset, ()), found))
            limits[dataset] = found
        elif kind == DISCLOSE:
            disclosure = disclosure_of(content, index, entry["time"])
            if disclosure.dataset in limits or disclosure.release_id in (reservations.keys() | disclosures.keys()):
                raise LedgerError(
                    f"ledger: entry {index} records bits of a dataset with limits, or of an existing release"
                )
            disclosures[disclosure.release_id] = disclosure
        elif kind == RECOVER:
            charge, lost, manifest, refusal = recovered_of(content)
            if charge.release_id in (reservations.keys() | disclosures.keys()) or charge.dataset not in limits:
                raise LedgerError(f"ledger: entry {index} charges release {charge.release_id} again, or has no limits")
            _check_partition(index, charge, cohorts)
            reservations[charge.release_id] = Reservation(
                charge, index, entry["hash"], entry["time"], manifest, refusal, lost=lost
            )
        elif kind == RESERVE:
            charge = charge_of(content)
            existing = reservations.get(charge.release_id)
            if existing is not None or charge.release_id in disclosures:
                if existing is None or existing.refusal is None:
                    raise LedgerError(f"ledger: entry {index} charges release {charge.release_id} again")
                refusals.append(reservations.pop(charge.release_id))
            _check_partition(index, charge, cohorts)
            if charge.dataset not in limits:
                raise LedgerError(f"ledger: entry {index} charges a dataset that has no limits, {charge.dataset}")
            if with_limits:
                _check_limits(index, _counted_charges((*refusals, *reservations.values())), charge, limits)
            reservations[charge.release_id] = Reservation(charge, index, entry["hash"], entry["time"])
        elif kind in _UNFIT:
            changed = _changed(reservations.get(str(content.get("release_id"))), entry)
            reservations[changed.charge.release_id] = changed
        else:
            raise LedgerError(f"ledger: entry {index} has the unknown kind {kind!r:.120}")
    return History(len(entries), head, reservations, limits, tuple(changes), tuple(refusals), disclosures)


def _counted_charges(reservations: Sequence[Reservation]) -> list[Charge]:
    return [charge for one in reservations for charge in one.charge.counted()]


def _check_partition(index: int, charge: Charge, cohorts: dict[str, int]) -> None:
    """Adds a charge's partition to the number of cohorts by partition. Raises LedgerError if it had another number."""
    rotation = charge.rotation
    if rotation is not None and cohorts.setdefault(rotation.partition, rotation.cohorts) != rotation.cohorts:
        raise LedgerError(f"ledger: entry {index} changes the number of cohorts of a partition")


def _check_limits(index: int, earlier: list[Charge], new: Charge, limits: Mapping[str, tuple[Limit, ...]]) -> None:
    """Raises LedgerError if a charge exceeded the limits in force."""
    for charge in new.counted():
        in_force = limits.get(charge.dataset, ())
        if not is_bounded(charge, in_force):
            raise LedgerError(
                f"ledger: entry {index} charges {charge.dataset}, but none of its limits bounds the charge"
            )
        if (over := find_overrun(earlier, charge, in_force)) is not None:
            raise LedgerError(f"ledger: entry {index} exceeds the limit of {over.limit.describe()}")
        earlier = [*earlier, charge]


# What an entry does to a release whose reservation does not fit it.
_UNFIT = {
    SETTLE: "settles {}, which is not reserved",
    COMMIT: "publishes {}, which is not reserved",
    PRUNE: "removes the files of {}, which is not published",
    REMOVE: "takes down {}, which is not published",
}


def _changed(existing: Reservation | None, entry: Mapping[str, Any]) -> Reservation:
    """Returns the reservation of a release after an entry about it, of a kind in `_UNFIT`. Raises LedgerError."""
    index, kind, content = entry["index"], entry["kind"], entry["content"]
    unfit = f"ledger: entry {index} " + _UNFIT[kind].format(f"{content.get('release_id')!r:.120}")
    if existing is None or (existing.manifest is None) != (kind in (SETTLE, COMMIT)):
        raise LedgerError(unfit)
    if kind == SETTLE:
        if existing.refusal is not None:
            raise LedgerError(unfit)
        try:
            epsilon, delta = (parse_amount(name, content[name]) for name in ("epsilon", "delta"))
            settled = existing.settled(epsilon, delta, str(content["reason"]), rho_of(content))
            check_rho(settled.charge)
            return settled
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:  # RequestError is a ValueError
            raise LedgerError(f"ledger: entry {index} cannot be read ({error})") from None
    if kind == COMMIT:
        if existing.refusal is not None:
            raise LedgerError(f"ledger: entry {index} publishes {existing.charge.release_id!r}, which was refused")
        if not (isinstance(manifest := content.get("manifest"), str) and manifest):
            raise LedgerError(f"ledger: entry {index} does not state the published manifest")
        return replace(existing, manifest=manifest)
    if (existing.pruned if kind == PRUNE else existing.removal) is not None:
        raise LedgerError(unfit)
    if kind == PRUNE:
        return replace(existing, pruned=entry["time"])
    if not (isinstance(reason := content.get("reason"), str) and reason):
        raise LedgerError(f"ledger: entry {index} does not state why a release was taken down")
    return replace(existing, pruned=entry["time"], removal=reason)
