"""The ledger of a run: its charge, and the checks before and after it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any

from sfumato.schemas.errors import BudgetError, RequestError
from sfumato.schemas.ledger import (
    Charge,
    Cost,
    Disclosure,
    Limit,
    Period,
    Reservation,
    dataset_name,
    format_amount,
    parse_amount,
)
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.ledger.ledger import Ledger, check_budget, check_limits, open_ledger
from sfumato.transforms.privacy.ledger.stores import absolute_location
from sfumato.transforms.privacy.ledger.windows import daily_epsilon, spent_in_window
from sfumato.transforms.release.catalog import check_not_lost
from sfumato.transforms.release.metadata import ReleaseMetadata


@dataclass(frozen=True)
class Accounting:
    """The ledger that a run charges, and the data that the charge is for.

    Attributes:
        ledger: the ledger's location.
        dataset: name of the logs that are charged.
        period: days that the logs cover.
        budget: the dataset's expected limits; empty to accept the ledger's.
        allow_reuse: charge input files that were charged to another dataset or other days before.
        rows_by: see Charge.
    """

    ledger: str
    dataset: str
    period: Period
    budget: tuple[Limit, ...] = ()
    allow_reuse: bool = False
    rows_by: str | None = None

    def open(self) -> Ledger:
        """Opens the ledger."""
        return open_ledger(self.ledger)

    def reservation(self, release_id: str | None) -> Reservation | None:
        """Returns the reservation that an earlier run made under this release id, if any. Raises LedgerError."""
        return None if release_id is None else self.open().history().reservations.get(release_id)

    def check_not_lost(self, output: str, timeline: str | None = None) -> None:
        """Raises LedgerError if existing releases of the dataset were charged and the ledger lacks their charges."""
        check_not_lost(self.open().history(), self.dataset, output, timeline)

    def make_charge(self, cost: Cost, key: RunKey, metadata: ReleaseMetadata, files: Sequence[str] = ()) -> Charge:
        """Returns the charge for a release, bound to the request, the input and the key.

        Args:
            cost: of the whole release.
            key: of the run.
            metadata: the release's identity and parameters.
            files: `file_digest` of each input file.
        """
        return Charge(
            release_id=metadata.release_id,
            job=metadata.job,
            dataset=self.dataset,
            period=self.period,
            epsilon=parse_amount("epsilon", cost.epsilon),
            delta=parse_amount("delta", cost.delta),
            adjacency=cost.adjacency,
            trust=cost.trust,
            rho=rho_amount(cost),
            files=tuple(sorted(files)),
            request=_request_digest(metadata),
            # Keyed, because an unkeyed digest of the input would confirm a guess at it.
            binding=key.subkey("ledger").hex(),
            starts_from=_starts_from(metadata.parameters.get("warm_start")),
            rotation=cost.rotation,
            rows_by=self.rows_by,
            bits=cost.bits,
        )

    def make_disclosure(
        self, bits: int, key: RunKey, metadata: ReleaseMetadata, files: Sequence[str] = ()
    ) -> Disclosure:
        """Returns the disclosure of a release without differential privacy. bits: that each user sends."""
        return Disclosure(
            release_id=metadata.release_id,
            job=metadata.job,
            dataset=self.dataset,
            period=self.period,
            bits=bits,
            request=_request_digest(metadata),
            binding=key.subkey("ledger").hex(),
            files=tuple(sorted(files)),
        )

    def reserve(self, charge: Charge) -> Reservation:
        """Charges the ledger, once for each release id. Raises RequestError, BudgetError or LedgerError."""
        return self.open().reserve(charge, self.budget, allow_reuse=self.allow_reuse)

    def check(self, charge: Charge) -> Reservation | None:
        """Raises the errors of `reserve`, and writes nothing. Returns the existing reservation, if any."""
        return self.open().check(charge, self.budget, allow_reuse=self.allow_reuse)

    def forecast(self, cost: Cost, release_id: str | None) -> list[str]:
        """Returns lines for --dry_run: the charge of a run, and whether it is within the limits. Writes nothing.

        Raises:
            RequestError: the limits contradict the ledger's, or there are none.
            LedgerError: the ledger is damaged.
        """
        history = self.open().history()
        if math.isinf(cost.epsilon):
            if dataset_name(self.dataset) in history.limits:
                return [f"it would be refused: dataset {self.dataset} has limits, and there is no epsilon"]
            return [f"no epsilon: {cost.bits} bits of each user, recorded in the ledger {self.ledger}"]
        if release_id in history.reservations:
            return [f"nothing: release {release_id} was charged before; the run would resume it"]
        epsilon, delta = parse_amount("epsilon", cost.epsilon), parse_amount("delta", cost.delta)
        charge = Charge(
            release_id=release_id or "new", job="", dataset=self.dataset, period=self.period, request="", binding="",
            epsilon=epsilon, delta=delta, adjacency=cost.adjacency, rho=rho_amount(cost), rotation=cost.rotation,
        )  # fmt: skip
        limits = check_limits(history, self.dataset, self.budget) or history.limits[charge.dataset]
        text = f"epsilon {format_amount(epsilon)}" + (f" and delta {format_amount(delta)}" if delta else "")
        if charge.rho is not None:
            text += f" (rho {charge.rho:.4g})"
        asked = "" if cost.rotation is None else f", for the users of cohort {cost.rotation}"
        lines = [f"{text} to dataset {self.dataset} for {self.period}{asked}, in the ledger {self.ledger}"]
        for limit in limits:
            cohorts = None if cost.rotation is None else {cost.rotation.partition: cost.rotation.cohort}
            spent = spent_in_window(history.charges, charge.dataset, self.period.last, limit, cohorts)
            lines.append(f"limit: {limit.describe()}; epsilon {format_amount(spent)} is spent up to {self.period.last}")
            is_known = charge.rho is not None or not delta  # how releases of every day compose
            if is_known and limit.days > 1 and limit.adjacency == charge.adjacency:
                exact = daily_epsilon(limit, float(delta), 1 if cost.rotation is None else cost.rotation.cohorts)
                most = Context(prec=4, rounding=ROUND_FLOOR).create_decimal_from_float(exact).normalize()
                at = f" and delta {format_amount(delta)}" if delta else ""
                lines.append(f"releases of every day fit this limit up to epsilon {format_amount(most)}{at} each")
        try:
            check_budget(history, charge, limits)
        except (BudgetError, RequestError) as error:
            return [*lines, f"it would be refused: {str(error).removeprefix('ledger: ')}"]
        return [*lines, "it fits"]


def _request_digest(metadata: ReleaseMetadata) -> str:
    request = json.dumps({"job": metadata.job, **metadata.parameters}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(request.encode()).hexdigest()


def _starts_from(warm_start: Mapping[str, Any] | None) -> str | None:
    """Returns the ids of the releases from which a release starts, separated by commas; None without any."""
    return ",".join([warm_start["release_id"], *warm_start.get("added", [])]) if warm_start else None


def rho_amount(cost: Cost) -> Decimal | None:
    """Returns the rho of a cost as the ledger adds it up; None unless its noise is Gaussian."""
    return None if cost.rho is None else parse_amount("rho", cost.rho)


def accounting(request: ReleaseRequest) -> Accounting | None:
    """Returns the ledger that a request names, None without one."""
    if request.ledger is None:
        return None
    assert request.dataset is not None
    assert request.period is not None  # a request with a ledger has both
    ledger = absolute_location(request.ledger)
    rows_by = None if request.day_rows is None else f"{request.day_rows.column} {request.day_rows.time_zone}"
    return Accounting(ledger, request.dataset, request.period, request.budget or (), request.allow_reuse, rows_by)
