"""An earlier release of the same column in place of the first round: it is taken for public. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import BITS_SCHEMA, FixedPoint
from sfumato.transforms.moments.protocol import Prior


@dataclass(frozen=True, eq=False)
class PriorRelease:
    """Bit means of an earlier release.

    safe: nobody can guess the key that its coins came from. local: its bits were told through randomised response.
    """

    release_id: str
    bits: Mapping[str, Prior]
    safe: bool
    local: bool
    digest: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any], bits: pa.Table, column: str, form: FixedPoint) -> PriorRelease:
        """From a release's manifest and table of bits. Raises RequestError where it is of something else."""
        if manifest.get("job") != "moments":
            raise RequestError(f"warm_start: a release of `sfumato moments` is needed, got {manifest.get('job')!r}")
        try:
            told, safe = dict(manifest["fixed_point"]), manifest["privacy"]["randomness"]["safe"] is True
            local = manifest["privacy"]["trust"] == "local"
            release_id, before = str(manifest["release_id"]), str(manifest["column"])
            of = FixedPoint(*(told[name] for name in ("bits", "fraction_bits", "signed", "offset")))
        except (KeyError, TypeError, ValueError, RequestError) as error:
            raise RequestError(f"warm_start: the release's manifest lacks its column or form ({error!r})") from None
        if before != column:
            raise RequestError(f"warm_start: the release is of column {before!r}, this one of {column!r}")
        if of != form:
            raise RequestError(
                f"warm_start: the release has other --bits, --fraction_bits or --signed, {_words(of)}, this one "
                f"{_words(form)}; give the same"
            )
        if not bits.schema.equals(BITS_SCHEMA):
            raise RequestError("warm_start: the release's table of bits has other columns; it is of another version")
        means = bits["mean"].to_numpy()
        rows = np.array(bits["quantity"].to_pylist(), object)
        weights, stddevs = bits["weight"].to_numpy(), bits["stddev"].to_numpy()
        if not (np.isfinite(means).all() and np.isfinite(stddevs).all() and (stddevs > 0).all()):
            raise RequestError("warm_start: the release's bit means are no finite numbers; it is damaged")
        found = {
            kind: Prior(weights[rows == kind], means[rows == kind], stddevs[rows == kind])
            for kind in dict.fromkeys(rows.tolist())
        }
        digest = hashlib.sha256(
            "\n".join(rows).encode() + weights.tobytes() + means.tobytes() + stddevs.tobytes()
        ).hexdigest()
        return cls(release_id, found, safe, local, digest)

    def metadata(self) -> dict[str, Any]:
        """What the new release says of it."""
        return {"release_id": self.release_id, "digest": self.digest}


def _words(form: FixedPoint) -> str:
    return f"{form.bits}, {form.fraction_bits} and {form.signed}" + (f":{form.offset:g}" if form.offset else "")
