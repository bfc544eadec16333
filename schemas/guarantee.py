"""The privacy guarantee in the field's words, and the record of what each sub-query spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PRIVACY_UNIT = "user"
ZERO_OUT = (
    "zero-out: two datasets are neighbours when one holds all the records of one more user; in place of the removed "
    "user a device still answers, with an empty vector and its share of the noise"
)
ONE_ID = "A user is what has one user id: one person's two ids are two users."
ASSUMPTIONS = (
    "This job computes the sums of secure aggregation itself; no device takes part. A server of a real protocol would "
    "also see which devices answer.",
    "Whoever runs this job sees the raw logs; the guarantee is about the release and about the sums that a "
    "secure-aggregation server would see. A run that fails publishes nothing, and its error message is for the "
    "operator alone.",
    ONE_ID,
    "The key is secret, and the input does not change while the job runs.",
    "AES and SipHash behave as pseudo-random functions: the guarantee is computational. Two users whose 64-bit keyed "
    "hashes are equal count as one (chance below users / 2^64 for any one user).",
)
TRUSTED_SERVER = (
    "Whoever runs this job is a trusted server: it sees the raw logs and the exact sums and adds the noise; there is "
    "no secure aggregation, and the guarantee is about the release alone. A run that fails publishes nothing: that "
    "there is a release tells that somebody had a usable row."
)
WARM_START = (
    "The earlier release that this one starts from is taken for public. For a user whose records are in the logs of "
    "both the epsilons of both add up, also if the earlier one is shown to nobody."
)
COMPOSITIONS = {
    "sequential": "the count of users and all sub-queries: every user answers each, and epsilons add up",
    "parallel": "the count of users and one sub-query: shards are divided among the sub-queries, so that a user "
    "answers one of them, and spends the largest of their epsilons at most",
}
PARTICIPATION = {
    "planned": "Every planned shard answers, with the planned noise, whoever is there. Noise levels, lost shards and "
    "whether there is a release do not depend on who takes part, so taking part costs nothing beyond epsilon.",
    "paper": "Not protected. As in the paper, every user who takes part adds noise, and a shard with too few of them "
    "is lost. The noise level, the lost shards and whether there is a release can show whether one user takes part; no "
    "finite epsilon bounds that, and delta is 1 in the worst case. What a user reports is protected (zero-out).",
}
EXACT_NOISE = "The noise that carries the guarantee is drawn with integers against thresholds of 64 bits."
FLOATING_NOISE = "Clients' shares of the noise were drawn in floating point: a demonstration of the protocol."


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
    """How many users there are. Every figure is public or differentially private.

    users: the figure that a run is planned from, at least 1. source: public, or noisy where it is the count. epsilon,
    noise_stddev: of the noisy user count, which is made in any case. counted: that count as it came out, which may be
    negative; None where there is none.
    """

    users: float
    source: str
    epsilon: float = 0.0
    noise_stddev: float = 0.0
    counted: float | None = None


ADD_OR_REMOVE = "add or remove one user: two datasets are neighbours when one holds all the records of one more user"
SAMPLING_ASSUMPTIONS = (
    "Who is drawn stays secret, as does how many are drawn; what the threshold holds back is shown to nobody.",
    *ASSUMPTIONS[1:],
)


REPLACE_VALUE = (
    "replace one user's value by any other that can be used (a finite number, and not negative without --signed), "
    "among them 0, which covers zero-out as well: in place of a removed user her device still answers, with the bits "
    "of 0"
)
LOCAL_ASSUMPTIONS = (
    "Whoever collects the reports knows who takes part, that is who has a value that can be used, and in which group. "
    "Every single report is protected from the collector too, by randomised response. The release protects who takes "
    "part as well: every count that it is made of has noise.",
    "Which bit a device is asked for is chosen by the collector and says nothing of the value (central randomness).",
    "Whoever runs this job over collected logs sees the raw values: it draws the devices' coins in their place, and "
    "the guarantee is about the reports and the release. A run that fails publishes nothing, and its error message is "
    "for the operator alone.",
    *ASSUMPTIONS[2:],
)
NO_LOCAL_PRIVACY = (
    "No differential privacy: every user tells bits of her value as they are. What protects her is that she tells no "
    "more of them than the meter says, and that only sums are published; where few users were asked for a bit, as the "
    "reports in bits.parquet tell, a sum may be a single user's bit."
)
PRIVATE_GROUPS = (
    "Which group a user is in is known to whoever collects the reports. The release protects it by the same noise and "
    "the same epsilon as the value. Groups must be known from elsewhere."
)
PRIOR_BITS = (
    "The earlier release that stands for the first round is taken for public. For a user whose records are in the logs "
    "of both the epsilons of both add up, also if the earlier one is shown to nobody."
)
ROWS_ARE_USERS = (
    "Every row is taken for another user's: somebody who has k rows tells k times as many bits, and spends k times "
    "epsilon."
)


@dataclass(frozen=True)
class SampleRound:
    """One sample-and-threshold histogram: a sample of its own, drawn at sampling_rate, counts below threshold dropped.

    level: length of the items' prefixes, 0 for whole items; published: how many items passed.
    """

    index: int
    level: int
    sampling_rate: float
    threshold: int
    published: int


def two_sentences(manifest: Mapping[str, Any]) -> str:
    """A release's guarantee in two sentences: what it promises each user, and on which condition.

    Args:
        manifest: of a release. An entry that is missing promises nothing.
    """
    privacy = _entry(manifest, "privacy")
    epsilon, delta = privacy.get("epsilon"), privacy.get("delta") or 0.0
    bits = _entry(privacy, "meter").get("bits_per_client", 1)
    sent = "one bit" if bits == 1 else f"{bits} bits"
    if not isinstance(epsilon, int | float) or not isinstance(delta, int | float):
        return f"No differential privacy. Each user sent {sent} of their value as it is, and only sums are published."
    change = "zeroing the report of" if privacy.get("adjacency") == ZERO_OUT else "adding or removing all records of"
    factor = f"e^ε = {math.exp(epsilon):.3g}" if epsilon < 100 else "e^ε"
    besides = f", plus δ = {delta:g}" if delta else ""
    promise = f"{change} one user changes the probability of any result by a factor of at most {factor}{besides}."
    if _entry(privacy, "randomness").get("safe") is not True:
        unsafe = "Protects nobody: the key came from a seed that anybody can guess."
        return f"{unsafe} Under a secret key, at ε = {epsilon:g}, {promise}"
    if _entry(privacy, "participation").get("protected") is False:
        condition = "Who takes part is not protected, as in the paper."
    elif privacy.get("trust") == "local":
        local = _entry(privacy, "collector").get("epsilon", epsilon)
        condition = (
            f"Each user sent {sent} after randomised response: whoever collects them learns at most ε = {local:g}."
        )
    else:
        condition = "Whoever ran the job saw the raw logs; the promise is about this release alone."
    return f"At ε = {epsilon:g}, {promise} {condition}"


def _entry(entries: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The entry of a manifest that is a mapping; empty where it is missing."""
    found = entries.get(name)
    return found if isinstance(found, Mapping) else {}
