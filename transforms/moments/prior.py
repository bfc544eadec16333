"""An earlier release of the same column in place of round one.

Adaptive bit pushing (paper 002) has two rounds. In round one some clients report bits with fixed probabilities. Its
bit means set the probabilities of round two, in which the other clients report. With an earlier release, which is
public, all clients report in round two. A poor prior costs accuracy: clients report on less useful bits. The estimates
use this release's reports alone.

A *quantity* is the value itself, or a function of it such as its square (`quantities.Quantity`). A *slot* is a bit of
a quantity that a client can report; S is their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import BITS_SCHEMA, FixedPoint
from sfumato.schemas.trust import Trust
from sfumato.transforms.moments.quantities import Slots


@dataclass(frozen=True, eq=False)
class Prior:
    """Bit means of a quantity in an earlier release, in place of round one.

    Attributes:
        weight: float64[S], each bit's place value in the quantity's unit, plus or minus a power of two.
        mean: float64[S], share of 1s.
        stddev: float64[S], of mean, > 0.
    """

    weight: NDArray[np.float64]
    mean: NDArray[np.float64]
    stddev: NDArray[np.float64]

    def for_slots(self, slots: Slots) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means and variances for these slots: float64[S] each. Unknown slots have mean 1/2 and standard deviation 1/2.

        Slots are matched by weight. Weights are powers of two, so equal ones are equal as floats.

        The bits of `square` depend on the centre, which is different in every release. So their means are a guess only.
        """
        rows_by_weight = {weight: row for row, weight in enumerate(self.weight.tolist())}
        rows = np.array([rows_by_weight.get(weight, -1) for weight in slots.weight.tolist()])  # -1: not in the prior
        mean, stddev = (np.where(rows >= 0, column[rows], 0.5) for column in (self.mean, self.stddev))
        return mean, stddev**2


@dataclass(frozen=True, eq=False)
class PriorRelease:
    """Bit means of an earlier release.

    Attributes:
        release_id: of the release.
        bits: a Prior for each quantity.
        has_secret_key: whether nobody can guess the key of the release's randomness.
        local: whether clients protected their bits by randomised response.
        digest: SHA-256 of the table of bits.
    """

    release_id: str
    bits: Mapping[str, Prior]
    has_secret_key: bool
    local: bool
    digest: str

    @classmethod
    def from_release(cls, manifest: Mapping[str, Any], bits: pa.Table, column: str, form: FixedPoint) -> PriorRelease:
        """Reads a release's manifest and table of bits. Raises RequestError unless they fit this column and form."""
        if manifest.get("job") != "moments":
            raise RequestError(f"warm_start: a release of `sfumato moments` is needed, got {manifest.get('job')!r}")
        try:
            entry, has_secret_key = dict(manifest["fixed_point"]), manifest["privacy"]["randomness"]["safe"] is True
            local = manifest["privacy"]["trust"] == Trust.LOCAL
            release_id, prior_column = str(manifest["release_id"]), str(manifest["column"])
            prior_form = FixedPoint(*(entry[name] for name in ("bits", "fraction_bits", "signed", "offset")))
        except (KeyError, TypeError, ValueError, RequestError) as error:
            raise RequestError(f"warm_start: the release's manifest lacks its column or form ({error!r})") from None
        if prior_column != column:
            raise RequestError(f"warm_start: the release is of column {prior_column!r}, this one of {column!r}")
        if prior_form != form:
            raise RequestError(
                f"warm_start: the release has other --bits, --fraction_bits or --signed, {_form_text(prior_form)}, "
                f"this one {_form_text(form)}; give the same"
            )
        if manifest.get("method") == "threshold":
            raise RequestError(
                "warm_start: the release has answers about thresholds, and not bits; start from one that was made with "
                "--method adaptive or weighted"
            )
        if not bits.schema.equals(BITS_SCHEMA):
            raise RequestError("warm_start: the release's table of bits has other columns; it is of another version")
        means = bits["mean"].to_numpy()
        rows = np.array(bits["quantity"].to_pylist(), object)
        weights, stddevs = bits["weight"].to_numpy(), bits["stddev"].to_numpy()
        if not (np.isfinite(means).all() and np.isfinite(stddevs).all() and (stddevs > 0).all()):
            raise RequestError("warm_start: the release's bit means are no finite numbers; it is damaged")
        priors = {
            kind: Prior(weights[rows == kind], means[rows == kind], stddevs[rows == kind])
            for kind in dict.fromkeys(rows.tolist())
        }
        digest = hashlib.sha256(
            "\n".join(rows).encode() + weights.tobytes() + means.tobytes() + stddevs.tobytes()
        ).hexdigest()
        return cls(release_id, priors, has_secret_key, local, digest)

    def metadata(self) -> dict[str, Any]:
        """The entry on this release in the new release's manifest."""
        return {"release_id": self.release_id, "digest": self.digest}


def _form_text(form: FixedPoint) -> str:
    return f"{form.bits}, {form.fraction_bits} and {form.signed}" + (f":{form.offset:g}" if form.offset else "")
