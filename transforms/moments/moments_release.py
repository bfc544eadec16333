"""The files and the manifest of a release of means and moments: post-processing of public tallies. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa

from sfumato.schemas.guarantee import (
    ADD_OR_REMOVE,
    LOCAL_ASSUMPTIONS,
    NO_LOCAL_PRIVACY,
    ONE_ID,
    PRIOR_BITS,
    PRIVACY_UNIT,
    PRIVATE_GROUPS,
    REPLACE_VALUE,
    ROWS_ARE_USERS,
    VALUE_BOUND,
)
from sfumato.schemas.moments import BITS_SCHEMA, BitMeans, FixedPoint, MomentEstimate, Statistic
from sfumato.schemas.release import BITS_FILE
from sfumato.schemas.trust import Trust
from sfumato.transforms.moments.derived_statistics import value_range
from sfumato.transforms.moments.moment_tables import MomentsMetadata, group_warnings, moment_tables, vague_warnings
from sfumato.transforms.moments.moments_view import moments_view
from sfumato.transforms.moments.privacy_meter import PrivacyMeter
from sfumato.transforms.moments.protocol import MomentsPlan, MomentsState
from sfumato.transforms.moments.quantities import SECOND
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import release_manifest
from sfumato.transforms.statistics.shrinkage import simultaneous_z

_RANDOMISED_RESPONSE = "randomised response on single bits (integers against thresholds of 64 bits)"
_NOISE = "discrete Laplace noise on every count of reports (integers against thresholds of 64 bits)"


def moments_files(state: MomentsState, plan: MomentsPlan, metadata: MomentsMetadata) -> dict[str, bytes]:
    """The files of a release by name; the manifest is the last. Raises RefusedError if an estimate is not finite."""
    grouping, bits = metadata.grouping, state.bit_charts(plan)
    clients, stddev = state.clients(plan), float(np.sqrt(state.clients_variance(plan).item()))
    margin = 0.0 if grouping is None else simultaneous_z(len(grouping.groups)) * stddev / math.sqrt(len(clients))
    found = moment_tables(partial(state.estimates, plan), plan.forms, grouping, clients, margin)
    users = max(float(clients.sum()), 0.0), stddev
    manifest = _manifest(state, plan, metadata, bits, found.groups, users, found.estimates)
    tables = {**found.tables, BITS_FILE: pa.concat_tables([_bits_table(bit_means) for bit_means in bits])}
    return build_release({**tables, **metadata.release.geography_files}, manifest, moments_view)


def _manifest(
    state: MomentsState,
    plan: MomentsPlan,
    metadata: MomentsMetadata,
    bits: Sequence[BitMeans],
    groups: Sequence[str],
    clients: tuple[float, float],
    estimates: Sequence[MomentEstimate],
) -> dict[str, Any]:
    grouping, form = metadata.grouping, plan.form
    local = plan.epsilon is not None
    mechanism = [_RANDOMISED_RESPONSE] if local else ["every bit is reported as it is"]
    assumptions = [*LOCAL_ASSUMPTIONS] if local else [NO_LOCAL_PRIVACY, *LOCAL_ASSUMPTIONS[2:]]
    if plan.released_epsilon is not None:
        mechanism.append(_NOISE)
    if grouping is not None:
        assumptions.append(PRIVATE_GROUPS)
    if plan.prior:
        assumptions.append(PRIOR_BITS)
    if not metadata.bounded:
        assumptions = [ROWS_ARE_USERS if assumption == ONE_ID else assumption for assumption in assumptions]
    content: dict[str, Any] = {"column": metadata.column}
    if grouping is not None:
        content |= grouping.groups.place()
    content["fixed_point"] = _form(form)
    if plan.second is not None:
        content["second"] = {"column": metadata.second_column, "fixed_point": _form(plan.second)}
    content["method"] = plan.method_of(state)
    content["privacy"] = {
        "unit": PRIVACY_UNIT,
        "contribution_bound": VALUE_BOUND[metadata.bounded],
        "adjacency": ADD_OR_REMOVE,
        "trust": Trust.LOCAL if local else Trust.SECAGG,
        "epsilon": plan.released_epsilon if local else None,
        "delta": 0.0,
        "collector": {"epsilon": plan.epsilon, "adjacency": REPLACE_VALUE} if local else None,
        "shares": {"admission": plan.admission().epsilon, "tallies": plan.tally_epsilon} if local else None,
        "noise_stddev": plan.noise_stddev,
        "mechanism": "; ".join(mechanism),
        "randomness": metadata.release.source,
        "groups": None
        if grouping is None
        else {"epsilon": plan.released_epsilon, "min_group": grouping.min_group, "noise_stddev": plan.noise_stddev},
        "meter": PrivacyMeter(plan.response).manifest(bits),
        "assumptions": assumptions,
    }
    content["results"] = {
        "clients": clients[0],
        "clients_stddev": clients[1],
        "groups_published": None if grouping is None else len(groups),
        "rounds": [
            {
                "quantity": query.quantity.kind,
                "round": query.round,
                "clients": max(float(tally.reports.sum()), 0.0) / plan.bits_per_client,
                "reports": max(float(tally.reports.sum()), 0.0),
            }
            for query, tally in state.tallies
        ],
    }
    ranges = {name: value_range(Statistic(name), plan.forms) for name in {one.statistic for one in estimates}}
    advice = "more users, a larger epsilon, or fewer --bits"
    warnings = [*_warnings(bits, local), *vague_warnings(estimates, ranges, advice), *group_warnings(grouping, groups)]
    return release_manifest(metadata.release, content, warnings)


def _form(form: FixedPoint) -> dict[str, Any]:
    return {**asdict(form), "step": form.step, "low": form.low, "high": form.high}


def _warnings(bits: Sequence[BitMeans], local: bool) -> list[str]:
    warnings = [] if local else ["Bits are reported as they are: this release has no differential privacy (--no_dp)."]
    for bit_means in bits:
        name = {"value": "the values", SECOND + "value": "the second column's values"}.get(bit_means.quantity)
        if name and local and _unseen(bit_means):
            warnings.append(
                f"No bit of {name} is above its noise, so the estimates shrink towards 0: use more users, a "
                "larger epsilon, fewer --bits, or --method weighted, which does not shrink."
            )
        if name and (bit_means.mean - 2 * bit_means.stddev > 0.8)[-3:].all():
            warnings.append(
                f"The highest bits of {name} are set for nearly all users: many values may lie beyond the range and "
                "count as its end. Give more --bits or fewer --fraction_bits (--verbose counts such values)."
            )
    return warnings


def _unseen(bits: BitMeans) -> bool:
    """Whether the bits look empty: for empty bits, the probability that noise lifts any above the line is 5%."""
    line = NormalDist().inv_cdf(1 - 0.05 / len(bits.mean))
    return not (bits.mean > line * bits.stddev).any()


def _bits_table(bits: BitMeans) -> pa.Table:
    columns = {name: getattr(bits, name) for name in BITS_SCHEMA.names if name != "quantity"}
    return pa.table({"quantity": [bits.quantity] * len(bits.weight), **columns}, schema=BITS_SCHEMA)
