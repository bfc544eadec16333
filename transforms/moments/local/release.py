"""The files and the manifest of moments of users' reports: post-processing of public tallies. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa

from sfumato.schemas.guarantee import (
    ADJACENCY_TEXTS,
    LOCAL_ASSUMPTIONS,
    NO_LOCAL_PRIVACY,
    ONE_ID,
    PRIOR_BITS,
    PRIVATE_GROUPS,
    REPLACE,
    ROWS_ARE_USERS,
    Trust,
)
from sfumato.schemas.moments import BITS_SCHEMA, BitMeans, FixedPoint
from sfumato.schemas.release import BITS_FILE
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.quantities import SECOND
from sfumato.transforms.moments.local.tally import meter_entry
from sfumato.transforms.moments.release import MomentsMetadata, moment_tables, release_of, vague_warnings
from sfumato.transforms.statistics.shrinkage import simultaneous_z

_RANDOMISED_RESPONSE = "randomised response on single bits, drawn with integers"
_NOISE = "discrete Laplace noise on every count of reports, drawn with integers"


def moments_files(state: MomentsState, metadata: MomentsMetadata) -> dict[str, bytes]:
    """Returns the files of a release of moments by name; the manifest is the last.

    Raises RefusedError for an infinite estimate.
    """
    plan, grouping, bits = state.plan, metadata.grouping, state.bit_charts()
    clients, stddev = state.clients(), float(np.sqrt(state.clients_variance().item()))
    margin = 0.0 if grouping is None else simultaneous_z(len(grouping.groups)) * stddev / math.sqrt(len(clients))
    found = moment_tables(state.estimates, plan.forms, grouping, clients, margin)
    found.tables[BITS_FILE] = pa.concat_tables([_bits_table(bit_means) for bit_means in bits])
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
    forms: dict[str, Any] = {"fixed_point": _form(plan.form)}
    if plan.second is not None:
        forms["second"] = {"column": metadata.second_column, "fixed_point": _form(plan.second)}
    privacy = {
        "trust": Trust.LOCAL if local else Trust.SECAGG,
        "epsilon": plan.released_epsilon if local else None,
        "delta": 0.0,
        "collector": {"epsilon": plan.epsilon, "adjacency": ADJACENCY_TEXTS[REPLACE]} if local else None,
        "shares": {"admission": plan.admission().cost, "tallies": plan.tally_epsilon} if local else None,
        "noise_stddev": plan.noise_stddev,
        "mechanism": "; ".join(mechanism),
        "randomness": metadata.release.source,
        "groups": None
        if grouping is None
        else {"epsilon": plan.released_epsilon, "min_group": grouping.min_group, "noise_stddev": plan.noise_stddev},
        "meter": meter_entry(plan.response, bits),
        "assumptions": assumptions,
    }
    rounds = [
        {
            "quantity": query.quantity.kind,
            "round": query.round,
            "clients": max(float(tally.reports.sum()), 0.0) / plan.bits_per_client,
            "reports": max(float(tally.reports.sum()), 0.0),
        }
        for query, tally in state.tallies
    ]
    warnings = [
        *_bit_warnings(bits, local),
        *vague_warnings(found, plan.forms, "more users, a larger epsilon, or fewer --bits"),
    ]
    users = float(clients.sum()), stddev
    entries = {**forms, "method": state.method}
    return release_of(metadata, found, entries, privacy, users, {"rounds": rounds}, warnings)


def _form(form: FixedPoint) -> dict[str, Any]:
    return {**asdict(form), "step": form.step, "low": form.low, "high": form.high}


def _bits_table(bits: BitMeans) -> pa.Table:
    columns = {name: getattr(bits, name) for name in BITS_SCHEMA.names if name != "quantity"}
    return pa.table({"quantity": [bits.quantity] * len(bits.weight), **columns}, schema=BITS_SCHEMA)


def _bit_warnings(bits: Sequence[BitMeans], local: bool) -> list[str]:
    warnings = [] if local else ["Bits are reported as they are: this release has no differential privacy (--no_dp)."]
    for bit_means in bits:
        name = {"value": "the values", SECOND + "value": "the second column's values"}.get(bit_means.quantity)
        # For empty bits, the probability that noise lifts any above the line is 5%.
        line = NormalDist().inv_cdf(1 - 0.05 / len(bit_means.mean)) * bit_means.stddev
        if name and local and not (bit_means.mean > line).any():
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
