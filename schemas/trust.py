"""Trust models: the party that sees what is not protected yet. Every job states one; a user chooses with --trust."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Trust(StrEnum):
    """Who must be trusted with unprotected data.

    CENTRAL: the operator of the job is a trusted curator, who sees the logs and adds noise to exact results once.
    SECAGG: a server that sees only sums over many users (secure aggregation), never one user's report.
    LOCAL: nobody, in the system that the job simulates: every report is protected separately.
    """

    CENTRAL = "central"
    SECAGG = "secagg"
    LOCAL = "local"


CentralOrSecagg = Literal[Trust.CENTRAL, Trust.SECAGG]  # of a job that a curator or secure aggregation can do
SEES = {
    Trust.CENTRAL: "the operator is a trusted curator, who sees exact results and adds noise once",
    Trust.SECAGG: "a server sees sums over many users alone",
    Trust.LOCAL: "the collector sees reports that are protected one by one",
}
