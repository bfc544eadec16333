"""A ledger's entries as bytes: canonical JSON, each with its own hash and the hash of the entry before it.

A changed, removed or reordered entry breaks the chain. A truncated or completely rewritten chain does not. To detect
those, every release's manifest holds its entry's hash (`ledger.hash`); `sfumato ledger verify --releases` compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from sfumato.schemas.errors import FormatError, LedgerError, RequestError
from sfumato.schemas.file_formats import check_format
from sfumato.schemas.ledger import (
    UNIT,
    Charge,
    Disclosure,
    Limit,
    Period,
    dataset_name,
    format_amount,
    parse_amount,
    parse_day,
)
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.ledger.windows import check_rho

FORMAT = "sfumato-ledger/4"
OLDEST = 2  # version of FORMAT that is read
KINDS = RESERVE, SETTLE, COMMIT, LIMITS, PRUNE, REMOVE, APPROVER, RECOVER, DISCLOSE = (
    "reserve", "settle", "commit", "limits", "prune", "remove", "approver", "recover", "disclose",
)  # fmt: skip
_SINCE = {APPROVER: 3, RECOVER: 3, REMOVE: 3, DISCLOSE: 4}  # the first version of FORMAT that has the kind
FIRST = "0" * 64  # the hash before the first entry
_ROTATION_FIELDS = {"cohort", "cohorts", "partition"}
_FIELDS = {"format", "index", "previous", "time", "nonce", "kind", "content"}


def entry_bytes(index: int, previous: str, time: str, nonce: str, kind: str, content: Mapping[str, Any]) -> bytes:
    """Returns an entry as it is stored. It states the oldest format that has its kind, for the sake of older readers.

    Args:
        index: the entry's number, 0 for the first.
        previous: hash of the entry before it, or FIRST.
        time: ISO 8601, UTC.
        nonce: a random text, so that two writers' entries always differ.
        kind: one of KINDS.
        content: the entry's own fields, in JSON's types.
    """
    body = {
        "format": f"{FORMAT.partition('/')[0]}/{_SINCE.get(kind, OLDEST)}",
        "index": index,
        "previous": previous,
        "time": time,
        "nonce": nonce,
        "kind": kind,
        "content": content,
    }
    return _canonical({**body, "hash": _hash(body)})


def read_entries(entries: Sequence[bytes]) -> list[dict[str, Any]]:
    """Returns the entries as dictionaries with their `hash`.

    Raises:
        FormatError: another version of sfumato wrote an entry.
        LedgerError: the chain is broken.
    """
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
                raise ValueError("not in this program's form")
            if type(body["index"]) is not int or body["index"] != index:
                raise ValueError(f"numbered {body['index']}")
            if body["previous"] != previous:
                raise ValueError("not the one that followed the entry before it")
            if stated != _hash(body):
                raise ValueError("not what was written")
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise LedgerError(
                f"ledger: entry {index} is no text of an entry; the ledger is damaged or has been tampered with, "
                "nothing is charged"
            ) from None
        except FormatError as error:
            raise FormatError(f"ledger: {error}. A new ledger would forget what was spent") from None
        except (ValueError, RecursionError) as error:
            raise LedgerError(
                f"ledger: entry {index} is {error}; the ledger is damaged or has been tampered with, nothing is charged"
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
        **_rho_content(charge.rho),
        **({} if charge.rotation is None else {"rotation": asdict(charge.rotation)}),
        **({} if charge.rows_by is None else {"rows_by": charge.rows_by}),
        **({} if charge.bits is None else {"bits": charge.bits}),
    }


def _named(one: Charge | Disclosure) -> dict[str, Any]:
    """What charges and disclosures state of their release alike, in JSON's types."""
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
        raise ValueError("a name or digest is no text")
    period = Period(parse_day("first", content["first"]), parse_day("last", content["last"]))
    return {**texts, "period": period, "files": tuple(content["files"])}


def _rho_content(rho: Decimal | None) -> dict[str, str]:
    """The rho of Gaussian noise. Other charges have none, and neither have those of earlier versions."""
    return {} if rho is None else {"rho": format_amount(rho)}


def _rotation_of(content: Mapping[str, Any]) -> Rotation | None:
    if "rotation" not in content:
        return None
    rotation = content["rotation"]
    if set(rotation) != _ROTATION_FIELDS or not all(type(rotation[name]) is int for name in ("cohort", "cohorts")):
        raise ValueError("a rotation is a cohort, cohorts and a partition")
    return Rotation(**rotation)


def rho_of(content: Mapping[str, Any]) -> Decimal | None:
    """Reads the rho of a charge or a settlement, None without one. Raises RequestError."""
    return parse_amount("rho", content["rho"]) if "rho" in content else None


def charge_of(content: Mapping[str, Any]) -> Charge:
    """Reads what `charge_content` returned. Raises LedgerError."""
    try:
        if content["unit"] != UNIT:
            raise ValueError("of another privacy unit")
        charge = Charge(
            **_named_of(content),
            epsilon=parse_amount("epsilon", content["epsilon"]),
            delta=parse_amount("delta", content["delta"]),
            starts_from=None if content["starts_from"] is None else str(content["starts_from"]),
            adjacency=content["adjacency"],
            trust=content["trust"],
            also_charged=tuple((str(dataset), Period.parse(days)) for dataset, days in content["also_charged"]),
            rho=rho_of(content),
            rotation=_rotation_of(content),
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
    """Returns what a refused run spent, in JSON's types."""
    amounts = {"epsilon": format_amount(epsilon), "delta": format_amount(delta), **_rho_content(rho)}
    return {"release_id": release_id, **amounts, "reason": reason}


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
        raise LedgerError("ledger: a charge that was made again does not say for what")
    return charge_of(content), lost, manifest, refusal


def limits_of(content: Mapping[str, Any]) -> tuple[str, tuple[Limit, ...]]:
    """Reads what `limits_content` returned. Raises LedgerError."""
    try:
        found = dataset_name(content["dataset"]), tuple(Limit.parse(text) for text in content["limits"])
        if not found[1]:
            raise RequestError("there are none")
        return found
    except (KeyError, TypeError, AttributeError, RequestError) as error:
        raise LedgerError(f"ledger: limits cannot be read ({error})") from None


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
