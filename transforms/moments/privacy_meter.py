"""The private bits that a client discloses: counted, capped, stated in every release (paper 002, Section 5). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sfumato.schemas.errors import DataError
from sfumato.schemas.moments import BitMeans
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.moments.tally import Query


@dataclass(frozen=True)
class PrivacyMeter:
    """Checks what a client discloses of one value.

    Attributes:
        response: how clients report bits.
    """

    response: RandomisedResponse

    def check_queries(self, queries: Sequence[Query]) -> None:
        """Raises DataError if two queries of a run would reach one client: one query uses the whole allowance."""
        intervals = sorted((query.first, query.last) for query in queries)
        if any(before[1] > after[0] for before, after in pairwise(intervals)):
            raise DataError("meter: two queries would reach one user; nothing is published")

    def check(self, clients: int, reports: int) -> None:
        """Raises DataError unless this many clients reported as many bits as the release states."""
        if reports != self.response.reports * clients:
            raise DataError("meter: clients reported more or fewer bits than the query has; nothing is published")

    def manifest(self, bits: Sequence[BitMeans]) -> dict[str, Any]:
        """The manifest's entry. bits: those of all queried quantities.

        expected_private_bits: a bit that is true with probability p is like a true bit with probability 2 p - 1, and
        otherwise a fair coin.
        """
        epsilon = self.response.epsilon
        return {
            "bits_per_client": self.response.reports,
            "bits_per_value": self.response.reports,
            "cap": self.response.reports,
            "expected_private_bits": self.response.reports * self.response.gain,
            "epsilon_per_bit": None if epsilon is None else epsilon / self.response.reports,
            "epsilon_per_client": epsilon,
            "truth_probability": None if epsilon is None else self.response.truth_probability,
            "highest_read_probability": max(float(bit_means.read_probability.max()) for bit_means in bits),
        }
