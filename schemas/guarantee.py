"""The privacy guarantee: trust models, the texts of the manifest, and the record of what each sub-query spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal


class Trust(StrEnum):
    """The party that must be trusted with unprotected data.

    CENTRAL: the operator of the job is a trusted curator, who sees the logs and adds noise to exact results once.
    SPLIT: two servers, of which one must be honest. Each sees shares of reports, and adds noise to its share of sums.
    SECAGG: a server that sees only sums over many users (secure aggregation), never a single user's report.
    LOCAL: no party of the system that the job simulates: every report is protected separately.
    """

    CENTRAL = "central"
    SPLIT = "split"
    SECAGG = "secagg"
    LOCAL = "local"


CentralOrSecagg = Literal[Trust.CENTRAL, Trust.SECAGG]  # of a job that supports both
CentralSplitOrSecagg = Literal[Trust.CENTRAL, Trust.SPLIT, Trust.SECAGG]
SERVERS = 2  # of trust split: each adds the noise of the complete guarantee to the sums of all users
SEES = {
    Trust.CENTRAL: "the operator is a trusted curator, who sees exact results and adds noise once",
    Trust.SPLIT: "two servers see shares that disclose nothing unless both collude; each adds noise to all users' sums",
    Trust.SECAGG: "a server sees only sums over many users",
    Trust.LOCAL: "the collector sees only reports that are protected one by one",
}

PRIVACY_UNIT = "user"
USUAL_EPSILON = "; usual values are 0.1 to 10, for instance --epsilon 1"
NORMAL_SUMS = 1_000_000  # represents Gaussian noise where code needs a number of Laplace variables
NoiseKind = Literal["laplace", "gaussian"]
# The number of Laplace variables whose sum bounds the tails of a sum of draws, by the kind of noise.
TAIL_SUMS: Mapping[NoiseKind, Callable[[int], int]] = {"laplace": lambda sums: sums, "gaussian": lambda _: NORMAL_SUMS}

# Adjacency: its name in a ledger, and its sentence in a manifest.
ADD_OR_REMOVE, ZERO_OUT, REPLACE = ADJACENCIES = "add-or-remove-one-user", "zero-out", "replace"
ADJACENCY_TEXTS: Mapping[str, str] = {
    ADD_OR_REMOVE: (
        "add or remove one user: two datasets are neighbours if one is the other plus all records of one user"
    ),
    ZERO_OUT: (
        "zero-out: two datasets are neighbours if one is the other without the records of one user; the device of that "
        "user still reports, with an empty vector and its share of the noise"
    ),
    REPLACE: (
        "replace one user's value by any other usable value (a finite number, and not negative without --signed); 0 is "
        "one, so this covers zero-out, where the device of a removed user still reports, with the bits of 0"
    ),
}

# Assumptions, one sentence or two each.
ONE_ID = "A user is one user id. A person with two ids counts as two users."
# Where the logs are the input, in every trust model.
SHARED_ASSUMPTIONS = (
    ONE_ID,
    "The key is secret, and the input does not change during the run.",
    "AES and SipHash behave as pseudo-random functions, so the guarantee is computational. Two users with equal 64-bit "
    "keyed hashes count as one (probability below users / 2^64 for any one user).",
)
ASSUMPTIONS = (
    "This job computes the sums of secure aggregation itself; no device takes part. The server of a real protocol "
    "would also see which devices report.",
    "The operator of this job sees the raw logs. The guarantee covers the release and the sums that a server of secure "
    "aggregation would see. A failed run publishes nothing, and its error message is only for the operator.",
    *SHARED_ASSUMPTIONS,
)
SPLIT_ASSUMPTIONS = (
    "This job computes the sums of the two servers itself; no device takes part. Each server of a real protocol would "
    "also see which devices report.",
    "The operator of this job sees the raw logs. The guarantee covers the release, also against one of the two "
    "servers, which knows its own noise. Two servers that collude could put every report together. A failed run "
    "publishes nothing, and its error message is only for the operator.",
    *SHARED_ASSUMPTIONS,
)
CURATOR = (
    "The operator of this job is a trusted curator. It sees the raw logs and the exact results, and adds noise to them "
    "once. The guarantee covers only the release. A failed run publishes nothing, and its error message is only "
    "for the operator."
)
DEVICE_ASSUMPTIONS = (
    "Devices made the reports. At least one of the two operators is honest: it gives the other neither its shares nor "
    "its key nor its noise. Each of them sees which reports arrive, when, and how many it accepts.",
    "The guarantee covers this release, also against one of the two operators, which knows its own noise. Two "
    "operators that collude could put every report together.",
    "A user is one report. A person whose devices send several spends epsilon for each of them.",
    "The keys of the two operators are secret, and their programs draw the noise as stated.",
    "AES, X25519 and TurboSHAKE128 behave as the protocol assumes, so the guarantee is computational.",
)
CURATED_BY = {Trust.CENTRAL: (CURATOR, *SHARED_ASSUMPTIONS), Trust.SPLIT: SPLIT_ASSUMPTIONS}
"""The assumptions of noise that is added to the sums of all users, by the party that adds it."""
WARM_START = (
    "The earlier release that this one starts from is treated as public. For a user with records in the logs of both "
    "releases, the two epsilons add up, even if the earlier release is kept secret."
)
WARM_START_OF_COHORTS = (
    "The earlier release that this one starts from is treated as public. For a user that both releases queried, the "
    "two epsilons add up, even if the earlier release is kept secret."
)
SAMPLING_ASSUMPTIONS = (
    "The sampled users and their number stay secret, as does every item below the threshold.",
    *ASSUMPTIONS[1:],
)
LOCAL_ASSUMPTIONS = (
    "The collector of the reports knows who takes part (every user with a usable value) and in which group. Randomised "
    "response protects every single report from the collector too. The release also protects who takes part, because "
    "every count in it has noise.",
    "The collector picks the bit that a device reports. The choice is independent of the value (central randomness).",
    "The operator of this job works on collected logs and sees the raw values. It draws the randomised responses "
    "instead of the devices. The guarantee covers the reports and the release. A failed run publishes nothing, and its "
    "error message is only for the operator.",
    *SHARED_ASSUMPTIONS,
)
NO_LOCAL_PRIVACY = (
    "No differential privacy: every user sends bits of their value unchanged. Two things limit the disclosure: a user "
    "sends at most the metered number of bits, and only sums are published. Where few users reported a bit (see the "
    "reports in bits.parquet), a sum may be a single user's bit."
)
PRIVATE_GROUPS = (
    "The collector of the reports knows the group of each user. The release protects it by the same noise and the same "
    "epsilon as the value. The list of groups must be public."
)
PRIOR_BITS = (
    "The earlier release that replaces the first round is treated as public. For a user with records in the logs of "
    "both releases, the two epsilons add up, even if the earlier release is kept secret."
)
ROWS_ARE_USERS = (
    "Every row counts as a separate user. A person with k rows sends k times as many bits and spends k times epsilon."
)
ROWS_SPEND_APART = "Every row counts as a separate user. A person with k rows spends k times epsilon."
VALUE_BOUND = {
    True: "one record a user, chosen uniformly at random among their records",
    False: "every row counts as another user",
}
"""What a user adds to sums of a number, by whether user ids are read."""
EXACT_NOISE = (
    "The noise of the guarantee is drawn with integers, because rounding of floating-point numbers could reveal data."
)
FLOATING_NOISE = "Clients' shares of the noise were drawn in floating point: a demonstration of the protocol."

COMPOSITIONS = {
    "sequential": "the noisy user count and all sub-queries: every user takes part in each, and epsilons add up",
    "parallel": "the noisy user count and one sub-query: each sub-query has shards of its own, so a user takes part in "
    "one of them and spends at most the largest of their epsilons",
}
PARTICIPATION = {
    "planned": "Every planned shard reports with the planned noise, whatever the number of its users. Noise levels, "
    "lost shards and the existence of a release do not depend on who takes part, so taking part costs nothing beyond "
    "epsilon.",
    "paper": "Not protected. As in the paper, every user who takes part adds noise, and a shard with too few users is "
    "lost. The noise level, the lost shards and the existence of a release can reveal whether one user takes part; no "
    "finite epsilon bounds that, and delta is 1 in the worst case. The users' reports are protected (zero-out).",
}


@dataclass(frozen=True)
class Population:
    """The number of users. Every figure is public or differentially private."""

    users: float  # the number that a run is planned for, at least 1
    source: str  # `public`, or `noisy` where it is the noisy user count
    cost: float = 0.0  # of the noisy user count, which every run draws: an epsilon, or a rho with Gaussian noise
    noise_stddev: float = 0.0  # of that count, in users
    counted: float | None = None  # that count, which may be negative; None without one


@dataclass(frozen=True)
class SampleRound:
    """One sample-and-threshold histogram, with a sample of its own."""

    index: int
    level: int  # length of the items' prefixes; 0 for complete items
    sampling_rate: float  # of the users
    threshold: int  # the smallest sampled count that is published
    published: int  # number of published items


@dataclass(frozen=True)
class NoiseRound:
    """The counts of one prefix length with a trusted curator's noise.

    margin_at_once: half the width of 95% intervals that hold for all cells of the level at once; None where the number
    of items is not public.
    """

    index: int
    level: int  # length of the items' prefixes; 0 for complete items
    noise: str  # laplace, truncated or gaussian
    epsilon: float  # of the round, and so is delta
    delta: float
    noise_stddev: float  # of every count
    sigma: float | None  # of gaussian noise, else None
    limit: int | None  # the largest absolute value of truncated noise, else None
    threshold: int | None  # the smallest noisy count that is published; None where all items are public and published
    published: int  # number of published items
    hidden_count: int  # the largest count that an absent item can have at 99% confidence
    margin_at_once: int | None


def two_sentences(manifest: Mapping[str, Any]) -> str:
    """Returns a release's guarantee in two sentences: the bound for each user, and its condition.

    manifest: of a release. A missing entry guarantees nothing.
    """
    privacy = entry_of(manifest, "privacy")
    epsilon, delta = privacy.get("epsilon"), privacy.get("delta") or 0.0
    bits = entry_of(privacy, "meter").get("bits_per_client", 1)
    sent = "one bit" if bits == 1 else f"{bits} bits"
    if not isinstance(epsilon, int | float) or not isinstance(delta, int | float):
        of = "values" if "second" in manifest else "value"
        return f"No differential privacy. Each user sent {sent} of their {of} unchanged, and only sums are published."
    zeroed = privacy.get("adjacency") == ADJACENCY_TEXTS[ZERO_OUT]
    change = "zeroing the report of" if zeroed else "adding or removing all records of"
    factor = f"e^ε = {math.exp(epsilon):.3g}" if epsilon < 100 else "e^ε"
    besides = f", plus δ = {delta:g}" if delta else ""
    promise = f"{change} one user changes the probability of any result by a factor of at most {factor}{besides}."
    if not has_secret_key(privacy):
        unsafe = "Protects nobody: the key came from a seed that anyone can guess."
        return f"{unsafe} Under a secret key, at ε = {epsilon:g}, {promise}"
    if entry_of(privacy, "participation").get("protected") is False:
        condition = "Who takes part is not protected, as in the paper."
    elif privacy.get("trust") == Trust.LOCAL:
        local = entry_of(privacy, "collector").get("epsilon", epsilon)
        condition = f"Each user sent {sent} after randomised response: the collector learns at most ε = {local:g}."
    elif privacy.get("devices"):
        condition = "No party saw a report: two operators saw shares of it, and one of them must be honest."
    else:
        condition = "The operator of the job saw the raw logs; the guarantee covers only this release."
    return f"At ε = {epsilon:g}, {promise} {condition}"


def has_secret_key(privacy: Mapping[str, Any]) -> bool:
    """Returns whether a manifest's entry `privacy` states that the key cannot be guessed."""
    return entry_of(privacy, "randomness").get("safe") is True


def days_averaged(manifest: Mapping[str, Any]) -> int:
    """Returns over how many days the counts of a release are means; 1 where they are counts."""
    parameters = entry_of(manifest, "parameters")
    return int(entry_of(parameters, "bound").get("max_records", 1)) if parameters.get("average_day") else 1


def entry_of(entries: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns the entry of a manifest that is a mapping; empty where it is missing."""
    found = entries.get(name)
    return found if isinstance(found, Mapping) else {}
