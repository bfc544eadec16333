"""The ledger of a run: its charge, and the checks before and after it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Self

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
    rounded_down,
    rounded_up,
)
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.schemas.slots import UTC
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.ledger.charge_rules import check_budget, check_disclosure, check_limits
from sfumato.transforms.privacy.ledger.ledger import Ledger, open_ledger
from sfumato.transforms.privacy.ledger.stores import absolute_location
from sfumato.transforms.privacy.ledger.windows import daily_epsilon, spent_in_window
from sfumato.transforms.privacy.mechanism import epsilon_for_delta, gaussian_delta
from sfumato.transforms.release.metadata import ReleaseMetadata


@dataclass(frozen=True)
class Accounting:
    """The ledger that a run charges, and the data that the charge is for."""

    ledger: str  # the ledger's location
    dataset: str  # name of the logs that are charged
    period: Period  # days that the logs cover
    limits: tuple[Limit, ...] = ()  # the dataset's expected limits; empty to accept the ledger's
    allow_reuse: bool = False  # charge input files that were charged to another dataset or other days before
    rows_by: str | None = None  # the column and time zone by which only some days' rows are read; see Charge

    @classmethod
    def of(cls, request: ReleaseRequest) -> Self | None:
        """Returns the ledger that a request names, None without one."""
        if request.ledger is None:
            return None
        assert request.dataset is not None
        assert request.period is not None  # a request with a ledger has both
        ledger = absolute_location(request.ledger)
        days = request.day_rows
        rows_by = None if days is None else f"{days.column} {days.time_zone or UTC}"
        return cls(ledger, request.dataset, request.period, request.budget or (), request.allow_reuse, rows_by)

    def open(self) -> Ledger:
        """Opens the ledger."""
        return open_ledger(self.ledger)

    def planned(
        self, cost: Cost, key: RunKey, metadata: ReleaseMetadata, files: Sequence[str] = ()
    ) -> Charge | Disclosure:
        """Returns what a release is charged, or without an epsilon what is recorded: the bits that each user sends.

        It is bound to the request, the input and the key.

        cost: of the whole release. key: of the run. metadata: the release's identity and parameters. files:
        `file_digest` of each input file.
        """
        start: Mapping[str, Any] | None = metadata.parameters.get("warm_start")
        request = json.dumps({"job": metadata.job, **metadata.parameters}, sort_keys=True, allow_nan=False)
        shared: dict[str, Any] = {
            "release_id": metadata.release_id,
            "job": metadata.job,
            "dataset": self.dataset,
            "period": self.period,
            "files": tuple(sorted(files)),
            "request": hashlib.sha256(request.encode()).hexdigest(),
            "binding": key.binding,
            "bits": cost.bits,
        }
        if math.isinf(cost.epsilon):
            return Disclosure(**shared)
        return Charge(
            **shared,
            epsilon=parse_amount("epsilon", cost.epsilon),
            delta=parse_amount("delta", cost.delta),
            adjacency=cost.adjacency,
            trust=cost.trust,
            rho=rho_amount(cost),
            starts_from=",".join([start["release_id"], *start.get("added", [])]) if start else None,
            rotation=cost.rotation,
            rows_by=self.rows_by,
        )

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
        limits = check_limits(history, self.dataset, self.limits) or history.limits[charge.dataset]
        text = f"epsilon {format_amount(epsilon)}" + (f" and delta {format_amount(delta)}" if delta else "")
        if charge.rho is not None:
            text += f" (rho {charge.rho:.4g})"
        for_cohort = "" if cost.rotation is None else f", for the users of cohort {cost.rotation}"
        lines = [f"{text} to dataset {self.dataset} for {self.period}{for_cohort}, in the ledger {self.ledger}"]
        for limit in limits:
            cohorts = None if cost.rotation is None else {cost.rotation.partition: cost.rotation.cohort}
            spent = spent_in_window(history.charges, charge.dataset, self.period.last, limit, cohorts)
            lines.append(f"limit: {limit.describe()}; epsilon {format_amount(spent)} is spent up to {self.period.last}")
            is_known = charge.rho is not None or not delta  # how releases of every day compose
            if is_known and limit.days > 1 and limit.adjacency == charge.adjacency:
                exact = daily_epsilon(limit, float(delta), 1 if cost.rotation is None else cost.rotation.cohorts)
                at = f" and delta {format_amount(delta)}" if delta else ""
                lines.append(f"releases of every day fit this limit up to epsilon {rounded_down(exact)}{at} each")
        try:
            check_budget(history, charge, limits)
        except (BudgetError, RequestError) as error:
            return [*lines, f"it would be refused: {str(error).removeprefix('ledger: ')}"]
        return [*lines, "it fits; a run also checks that no file of it was charged to other days"]


@dataclass(frozen=True)
class LedgerGate:
    """A ChargeGate: charges a ledger from inside a job's graph, after all input is read and before noise is drawn.

    What users send without differential privacy is recorded, and there is no charge.
    """

    accounting: Accounting
    planned: Charge | Disclosure

    def bound_to(self, key: RunKey) -> Self:
        """Returns the gate of a charge that is bound to this key: of input that is known only when the graph runs."""
        return replace(self, planned=replace(self.planned, binding=key.binding))

    def check(self) -> Reservation | None:
        """Raises the errors of `charge`, and writes nothing. Returns the existing reservation, if any."""
        ledger, allow_reuse = self.accounting.open(), self.accounting.allow_reuse
        if isinstance(self.planned, Disclosure):
            check_disclosure(ledger.history(), self.planned, allow_reuse=allow_reuse)
            return None
        return ledger.check(self.planned, self.accounting.limits, allow_reuse=allow_reuse)

    def charge(self) -> str | None:
        """See ChargeGate.charge."""
        ledger, allow_reuse = self.accounting.open(), self.accounting.allow_reuse
        if isinstance(self.planned, Disclosure):
            ledger.disclose(self.planned, allow_reuse=allow_reuse)
            return None
        return ledger.reserve(self.planned, self.accounting.limits, allow_reuse=allow_reuse).refusal

    def settle(self, cost: float, reason: str) -> None:
        """See ChargeGate.settle. The record of a disclosure stays: an upper bound."""
        planned = self.planned
        if isinstance(planned, Charge):
            spent, delta, rho = admission_cost(cost, planned.epsilon, planned.delta, planned.rho)
            self.accounting.open().settle(planned.release_id, spent, delta, reason, rho=rho, binding=planned.binding)


def admission_cost(
    cost: float, epsilon: Decimal, delta: Decimal, rho: Decimal | None
) -> tuple[Decimal, Decimal, Decimal | None]:
    """Returns epsilon, delta and rho that the admission of a release spends.

    Args:
        cost: of the noisy counts of users, an epsilon or a rho.
        epsilon: of the complete release.
        delta: of the complete release. With Gaussian noise the admission has the share of it that it has of rho, unless
            it would need a larger epsilon than the release. Then it has the release's epsilon.
        rho: of the complete release; None unless its noise is Gaussian.
    """
    if rho is None:
        return parse_amount("epsilon", rounded_up(cost)), Decimal(0), None
    spent = parse_amount("rho", rounded_up(cost))
    share = parse_amount("delta", rounded_up(float(delta) * cost / float(rho)))
    own = parse_amount("epsilon", rounded_up(epsilon_for_delta(float(spent), float(share))))
    if own > epsilon:
        own, share = epsilon, parse_amount("delta", rounded_up(gaussian_delta(float(spent), float(epsilon))))
    return own, share, spent


def rho_amount(cost: Cost) -> Decimal | None:
    """Returns the rho of a cost as the ledger adds it up; None unless its noise is Gaussian."""
    return None if cost.rho is None else parse_amount("rho", cost.rho)
