"""A ledger's entries as bytes: canonical JSON, each with the hash of the one before it and of itself.

A change of an entry, its removal, or a new order breaks the chain. Cutting off the newest entries, or writing the whole
chain anew, does not: against that every release carries its entry's hash (`ledger.hash` in its manifest), and `sfumato
ledger verify --releases` compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sfumato.schemas.errors import LedgerError, RequestError
from sfumato.schemas.ledger import (
    ADD_OR_REMOVE,
    CENTRAL,
    UNIT,
    Charge,
    Limit,
    Period,
    amount,
    dataset_name,
    parse_day,
    plain,
)

FORMAT = "sfumato-ledger/1"
KINDS = RESERVE, SETTLE, COMMIT, LIMITS = "reserve", "settle", "commit", "limits"
FIRST = "0" * 64  # what comes before the first entry
_FIELDS = {"format", "index", "previous", "time", "mark", "kind", "content"}


def entry_bytes(index: int, previous: str, time: str, mark: str, kind: str, content: Mapping[str, Any]) -> bytes:
    """An entry. previous: hash of the entry before it, or FIRST. mark: makes it unlike any other writer's."""
    body = {
        "format": FORMAT,
        "index": index,
        "previous": previous,
        "time": time,
        "mark": mark,
        "kind": kind,
        "content": content,
    }
    return _canonical({**body, "hash": _hash(body)})


def read_entries(entries: Sequence[bytes]) -> list[dict[str, Any]]:
    """The entries as dictionaries, `hash` among their keys. Raises LedgerError where the chain is broken."""
    previous, found = FIRST, []
    for index, entry in enumerate(entries):
        try:
            body = json.loads(entry)
            whole = isinstance(body, dict) and set(body) == {*_FIELDS, "hash"} and isinstance(body["content"], dict)
            if (
                not whole
                or not all(isinstance(body[name], str) for name in ("time", "mark", "kind"))
                or entry != _canonical(body)
            ):
                raise ValueError("not as this program writes them")
            stated = body.pop("hash")
            if body["format"] != FORMAT:
                raise ValueError(f"of format {body['format']!r}, not {FORMAT!r}")
            if type(body["index"]) is not int or body["index"] != index:
                raise ValueError(f"numbered {body['index']}")
            if body["previous"] != previous:
                raise ValueError("not the one that followed the entry before it")
            if stated != _hash(body):
                raise ValueError("not what it was when it was written")
        except (ValueError, RecursionError) as error:
            raise LedgerError(
                f"ledger: entry {index} is {error}; the ledger is damaged or has been tampered with, nothing is charged"
            ) from None
        previous = stated
        found.append({**body, "hash": stated})
    return found


def charge_content(charge: Charge) -> dict[str, Any]:
    """A charge in JSON's types; amounts are text, so that no reader rounds them."""
    return {
        "release_id": charge.release_id,
        "job": charge.job,
        "dataset": charge.dataset,
        "first": str(charge.period.first),
        "last": str(charge.period.last),
        "epsilon": plain(charge.epsilon),
        "delta": plain(charge.delta),
        "request": charge.request,
        "binding": charge.binding,
        "starts_from": charge.starts_from,
        "unit": UNIT,
        "adjacency": charge.adjacency,
        "trust": charge.trust,
        "files": list(charge.files),
        "also": [[dataset, str(period)] for dataset, period in charge.also],
    }


def charge_of(content: Mapping[str, Any]) -> Charge:
    """What `charge_content` wrote, or an earlier version, which left out what stands after `starts_from`.

    Raises LedgerError.
    """
    try:
        if content.get("unit", UNIT) != UNIT:
            raise ValueError("of another privacy unit")
        texts = [content[name] for name in ("release_id", "job", "dataset", "request", "binding")]
        if not all(isinstance(one, str) for one in texts):
            raise ValueError("a name or digest is no text")
        return Charge(
            release_id=content["release_id"],
            job=content["job"],
            dataset=content["dataset"],
            period=Period(parse_day("first", content["first"]), parse_day("last", content["last"])),
            epsilon=amount("epsilon", content["epsilon"]),
            delta=amount("delta", content["delta"]),
            request=content["request"],
            binding=content["binding"],
            starts_from=None if content["starts_from"] is None else str(content["starts_from"]),
            adjacency=content.get("adjacency", ADD_OR_REMOVE),
            trust=content.get("trust", CENTRAL),
            files=tuple(content.get("files", ())),
            also=tuple((str(dataset), Period.parse(days)) for dataset, days in content.get("also", ())),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise LedgerError(f"ledger: a charge cannot be read ({error})") from None


def settle_content(release_id: str, epsilon: Decimal, delta: Decimal, reason: str) -> dict[str, Any]:
    """What a refused run spent, in JSON's types."""
    return {"release_id": release_id, "epsilon": plain(epsilon), "delta": plain(delta), "reason": reason}


def limits_content(dataset: str, limits: Sequence[Limit]) -> dict[str, Any]:
    """A dataset's limits in JSON's types."""
    return {"dataset": dataset_name(dataset), "limits": [str(limit) for limit in limits]}


def limits_of(content: Mapping[str, Any]) -> tuple[str, tuple[Limit, ...]]:
    """What `limits_content` wrote. Raises LedgerError."""
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
