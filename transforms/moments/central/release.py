"""The files and the manifest of moments by a trusted curator: post-processing of noisy sums. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from sfumato.schemas.guarantee import CURATOR, EXACT_NOISE, ONE_ID, ROWS_SPEND_APART, SHARED_ASSUMPTIONS, Trust
from sfumato.schemas.known_digits import laplace_z
from sfumato.schemas.moments import EVERYBODY, OTHER, MomentEstimate, Statistic
from sfumato.transforms.moments.central.central_moments import CentralSums
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.release import MomentsMetadata, MomentTables, moment_tables, release_of, vague_warnings

_CLIPPED_SHARE = 0.01  # of the users; clearly more of them outside the range bring a warning


def central_files(state: CentralSums, metadata: MomentsMetadata) -> dict[str, bytes]:
    """Returns the files of a curator's sums by name; the manifest is the last.

    Raises RefusedError for an infinite estimate.
    """
    plan, grouping = state.plan, metadata.grouping
    found = central_tables(state, grouping)
    entries: dict[str, Any] = {}
    if plan.degree:
        sources = ["noisy counts" if span is None else "given" for span in (plan.span, plan.second_span)]
        ranges = [{**asdict(span), "source": source} for span, source in zip(state.spans, sources, strict=False)]
        entries["range"] = ranges[0]
        if plan.has_second:
            entries["second"] = {"column": metadata.second_column, "range": ranges[1]}
    assumptions = [CURATOR, *SHARED_ASSUMPTIONS, EXACT_NOISE]
    if not metadata.bounded:
        assumptions = [ROWS_SPEND_APART if one == ONE_ID else one for one in assumptions]
    privacy = {
        "trust": Trust.CENTRAL,
        "epsilon": plan.epsilon,
        "delta": 0.0,
        "shares": plan.shares,
        "noise_stddev": plan.count_stddev,
        "sums": plan.slots,
        "mechanism": f"discrete Laplace noise on {plan.slots} sum{'s'[: plan.degree]} of Bernstein polynomials "
        f"over the range{'s' * plan.has_second}, in every group, which one user changes by 1 in all",
        "randomness": metadata.release.source,
        "groups": None if grouping is None else {"min_group": grouping.min_group},
        "assumptions": assumptions,
    }
    users = float(state.clients.sum())
    users_stddev = plan.count_stddev * math.sqrt(len(state.clients))
    results, warnings = dict[str, Any](), list[str]()
    if plan.degree:
        shares = [min(max(float(count) / max(users, 1.0), 0.0), 1.0) for count in state.outside]
        clipped = [
            {"below": below, "above": above, "stddev": plan.outside_stddev / max(users, 1.0)}
            for below, above in zip(shares[::2], shares[1::2], strict=True)
        ]
        results = dict(zip(("clipped", "second_clipped"), clipped, strict=False))
        margin = laplace_z(0.99) * plan.outside_stddev / max(users - laplace_z(0.99) * users_stddev, 1.0)
        warnings += [
            f"About {part[side]:.1%} of the users have values {side} the {name.replace('_', ' ')} and count as its end"
            f"{'' if source == 'noisy counts' else f'; give a wider --{name}'}."
            for part, source, name in zip(clipped, sources, ("range", "second_range"), strict=False)
            for side in ("below", "above")
            if part[side] - margin > _CLIPPED_SHARE
        ]
    if not state.span_is_sure:
        warnings.append(
            "No power of two has clearly more users than the noise, so the range is a guess: give --range, use more "
            "users or a larger epsilon."
        )
    warnings += vague_warnings(found, state.spans, "more users, or a larger epsilon")
    return release_of(metadata, found, entries, privacy, (users, users_stddev), results, warnings)


def central_tables(state: CentralSums, grouping: Grouping | None) -> MomentTables:
    """Returns the tables of a curator's release. Raises RefusedError if an estimate is not finite."""
    margin = 0.0 if grouping is None else groups_margin(state.plan, grouping)
    least = 0.0 if grouping is None else max(grouping.min_group, margin)
    half = laplace_z(0.95) * state.plan.count_stddev

    def estimates(*given: Any, **level: Any) -> Iterator[MomentEstimate]:
        for one in state.estimates(*given, **level):
            yield _allow_for_selection(one, least, half, state.value_range(Statistic(one.statistic)))

    return moment_tables(estimates, state.spans, grouping, state.clients, margin)


def groups_margin(plan: CentralMomentsPlan, grouping: Grouping) -> float:
    """Returns the users that noise adds to any empty group with a probability of 5% in all groups together."""
    return laplace_z(1 - 0.1 / len(grouping.groups)) * plan.count_stddev  # 10% at both sides


def _allow_for_selection(
    estimate: MomentEstimate, least: float, margin: float, ends: tuple[float, float]
) -> MomentEstimate:
    """Returns the estimate with an interval that allows for how published groups are chosen: by their noisy numbers of
    users.

    A group of fewer users is published only where noise lifts it to `least`. Laplace noise beyond that has the same
    distribution for all of them. So if the noisy number is no further above than an end at 97.5%, any smaller number of
    users explains it as well as the next, and the interval of the count begins at 0. Other statistics of such a group
    get intervals at 99% instead of 95%.

    least: the smallest noisy number of users of a published group. margin: half the width of a count's 95% interval, in
    users. ends: the smallest and the largest value of the statistic.
    """
    near = estimate.clients - least <= math.log(40) / math.log(20) * margin
    if not near or estimate.group in (EVERYBODY, OTHER):
        return estimate
    if estimate.statistic == "count":
        return replace(estimate, low=0.0)
    wider = math.log(100) / math.log(20)
    low, high = (estimate.value + wider * (end - estimate.value) for end in (estimate.low, estimate.high))
    return replace(estimate, low=max(low, ends[0]), high=min(high, ends[1]), stddev=wider * estimate.stddev)
