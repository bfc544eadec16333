"""Trust models: the party that sees unprotected data. Every job has one; `--trust` selects it."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Trust(StrEnum):
    """The party that must be trusted with unprotected data.

    CENTRAL: the operator of the job is a trusted curator, who sees the logs and adds noise to exact results once.
    SECAGG: a server that sees only sums over many users (secure aggregation), never a single user's report.
    LOCAL: no party of the system that the job simulates: every report is protected separately.
    """

    CENTRAL = "central"
    SECAGG = "secagg"
    LOCAL = "local"


CentralOrSecagg = Literal[Trust.CENTRAL, Trust.SECAGG]  # of a job that supports both
SEES = {
    Trust.CENTRAL: "the operator is a trusted curator, who sees exact results and adds noise once",
    Trust.SECAGG: "a server sees only sums over many users",
    Trust.LOCAL: "the collector sees only reports that are protected one by one",
}
