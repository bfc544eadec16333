"""The privacy guarantee in the field's words, and the record of what each sub-query spent."""

from __future__ import annotations

from dataclasses import dataclass

PRIVACY_UNIT = "user"
ADJACENCY = (
    "add or remove one user: two datasets are neighbours when one holds all the records of one more user; "
    "a removed user's device is taken to stay in its shard and to report nothing"
)
ASSUMPTIONS = (
    "Which devices take part, and so which shards have enough of them, may be known to the server "
    "(as in the paper's threat model); what they report is protected.",
    "Whoever runs this job sees the raw logs; the guarantee is about the release and about the sums that a "
    "secure-aggregation server would see.",
    "The key is secret and no two different inputs are run under the same release id, key file and request.",
    "AES behaves as a pseudo-random function, so the guarantee is computational; the noise itself is drawn with "
    "integer thresholds of 64 bits.",
)


@dataclass(frozen=True)
class SubQuery:
    """What one sub-query cost and how noisy its answers are. Every figure is public or differentially private.

    noise_stddev: of one entry of the estimate, in users; vector_length: entries a client sends; shards_lost: shards
    whose survivors were too few; bits_per_client: on the wire, vector_length times the bits of the modulus.
    """

    index: int
    epsilon: float
    vector_length: int
    noise_stddev: float
    shards: int
    shards_lost: int
    modulus: int
    bits_per_client: int


@dataclass(frozen=True)
class Population:
    """How many users there are: a public figure, or a differentially private count that cost epsilon."""

    users: float
    source: str
    epsilon: float = 0.0
    noise_stddev: float = 0.0
