"""The page and manifest that are published in place of a release that was refused after its charge. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping
from decimal import Decimal

from sfumato.schemas.guarantee import PRIVACY_UNIT
from sfumato.schemas.ledger import format_amount
from sfumato.schemas.release import MANIFEST_FILE, PAGE_FILE, REFUSAL_FORMAT
from sfumato.transforms.release.metadata import ReleaseMetadata, manifest_bytes, package_versions

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>body {{ font: 1.05rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 12vh auto; padding: 0 1.25rem }}
h1 {{ font-size: 1.5rem; line-height: 1.25 }} small {{ opacity: .75 }}</style></head>
<body><h1>{title}</h1>
"""
_PAGE_END = "</body></html>\n"
_REFUSED = """<p>{reason}.</p>
<p>This decision uses noisy counts and public figures only. It cost epsilon {spent} of the {total} that the release
would have cost. Adjacency: {adjacency}.</p>
<p><small>Release {release_id}, {job}, {created}. Details are in <a href="manifest.json">manifest.json</a>.</small></p>
"""


def notice_page(text: str, fields: Mapping[str, str]) -> bytes:
    """Returns a page without a result.

    Args:
        text: HTML of the body below the title, with the fields' names in braces.
        fields: plain text by name, `title` among them.
    """
    return (_PAGE + text + _PAGE_END).format(**{name: html.escape(value) for name, value in fields.items()}).encode()


def refusal_files(
    metadata: ReleaseMetadata,
    reason: str,
    epsilon: Decimal,
    spent: Decimal,
    delta_spent: Decimal,
    adjacency: str,
    bits: int | None = None,
) -> dict[str, bytes]:
    """Returns the files of a refused release by name, the manifest last.

    Args:
        metadata: the release's identity.
        reason: the refusal's message, made of noisy and public values alone.
        epsilon: what the whole release would have cost.
        spent: epsilon that the refusal cost.
        delta_spent: delta that the refusal cost.
        adjacency: of `spent` and `delta_spent`, as text.
        bits: of their value that each user had sent before the refusal; None for none.
    """
    manifest = {
        "format": REFUSAL_FORMAT,
        "status": "refused",
        "release_id": metadata.release_id,
        "job": metadata.job,
        "created": metadata.created,
        "reason": reason,
        "privacy": {
            "unit": PRIVACY_UNIT,
            "adjacency": adjacency,
            "epsilon": float(epsilon),
            "epsilon_spent": float(spent),
            "delta": float(delta_spent),
            **({} if bits is None else {"meter": {"bits_per_client": bits}}),
            "randomness": metadata.source,
        },
        **({} if metadata.ledger is None else {"ledger": dict(metadata.ledger)}),
        "parameters": dict(metadata.parameters),
        "versions": package_versions(),
    }
    fields = {
        "title": "No result was published",
        "reason": reason,
        "spent": format_amount(spent),
        "total": format_amount(epsilon),
        "adjacency": adjacency,
        "release_id": metadata.release_id,
        "job": metadata.job,
        "created": metadata.created,
    }
    return {PAGE_FILE: notice_page(_REFUSED, fields), MANIFEST_FILE: manifest_bytes(manifest)}
