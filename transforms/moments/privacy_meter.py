"""Private bits that a client discloses: counted, capped, stated in every release (paper 002, Section 5). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.moments import BitMeans
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.moments.tally import Ask


@dataclass(frozen=True)
class PrivacyMeter:
    """What a client discloses of her one value. cap: the most bits that she may. Raises RequestError above it."""

    told: RandomisedResponse
    cap: int

    def __post_init__(self) -> None:
        if isinstance(self.cap, bool) or self.cap < 1:
            raise RequestError(f"max_bits_per_client: must be 1 or more, got {self.cap}")
        if self.told.reports > self.cap:
            raise RequestError(
                f"bits_per_client: {self.told.reports} is more than --max_bits_per_client {self.cap} allows"
            )

    def check_asks(self, asks: Sequence[Ask]) -> None:
        """Raises DataError where anybody would be asked twice: a client's whole allowance goes into one question."""
        places = sorted((ask.first, ask.last) for ask in asks)
        if any(before[1] > after[0] for before, after in pairwise(places)):
            raise DataError("meter: a user would be asked twice; nothing is published")

    def check(self, clients: int, reports: int) -> None:
        """Raises DataError unless so many clients reported as many bits as the release says."""
        if reports != self.told.reports * clients:
            raise DataError("meter: more or fewer bits were reported than were asked for; nothing is published")

    def manifest(self, bits: Sequence[BitMeans]) -> dict[str, Any]:
        """The manifest's entry. bits: all quantities that were asked about.

        expected_private_bits: a bit that is true with chance p is like one told with chance 2 p - 1, and else a coin.
        """
        epsilon = self.told.epsilon
        return {
            "bits_per_client": self.told.reports,
            "bits_per_value": self.told.reports,
            "cap": self.cap,
            "expected_private_bits": self.told.reports * self.told.gain,
            "epsilon_per_bit": None if epsilon is None else epsilon / self.told.reports,
            "epsilon_per_client": epsilon,
            "truth_probability": None if epsilon is None else self.told.truth,
            "highest_read_probability": max(float(one.read_probability.max()) for one in bits),
        }
