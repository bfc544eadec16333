"""A registry record as text: YAML with comments, JSON-LD for a web page, and a data sheet. Pure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from sfumato.schemas.guarantee import entry_of
from sfumato.transforms.report.sections import days_of
from sfumato.transforms.statement.record import ADDITIONS, OPTIONS
from sfumato.transforms.statement.request import StatementRequest

_WIDTH = 110
_REGISTRY = "https://github.com/opendp/deployments-registry-data"
_EMPTY: tuple[Any, ...] = (None, "", [""])

Fields = Mapping[str, Any]


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def yaml_text(record: Fields, manifest: Fields) -> str:
    """Returns the record as the registry stores it, with a comment above each field that a person must fill."""
    blocks = [_dumped({name: value for name, value in record.items() if name != "deployment"}), "deployment:\n"]
    for group, fields in record["deployment"].items():
        blocks.append(f"  {group}:\n")
        for name, value, hint in _with_hints(group, fields):
            comment = textwrap.wrap(hint, _WIDTH, initial_indent="# ", subsequent_indent="# ") if hint else []
            line = f"# {name}:\n" if value is None else _dumped({name: value})
            blocks.append(textwrap.indent("\n".join([*comment, line]), "    "))
    return "".join(blocks)


def json_ld_text(record: Fields, manifest: Fields) -> str:
    """Returns a schema.org Dataset with the whole record as a JSON literal, for a web page's metadata."""
    basic = record["deployment"]["basic"]
    region, days = entry_of(manifest, "region"), days_of(manifest)
    content: dict[str, Any] = {
        "@context": ["https://schema.org", {"deployment": {"@id": f"{_REGISTRY}#deployment", "@type": "@json"}}],
        "@type": "Dataset",
        "identifier": manifest.get("release_id"),
        "name": basic["name"] or manifest.get("release_id"),
        "description": basic["description"],
        "datePublished": basic["publication_date"],
        "creator": [{"@type": "Organization", "name": name} for name in basic["data_curators"] if name],
        "measurementTechnique": entry_of(manifest, "privacy").get("mechanism"),
    }
    if region:
        box = " ".join(f"{region[side]:g}" for side in ("south", "west", "north", "east"))
        content["spatialCoverage"] = {"@type": "Place", "geo": {"@type": "GeoShape", "box": box}}
    if all(days):
        content["temporalCoverage"] = "/".join(days)
    content["deployment"] = record["deployment"]
    return json.dumps(content, indent=2, ensure_ascii=False).replace("<", "\\u003c") + "\n"  # safe in a script element


def sheet_text(record: Fields, manifest: Fields) -> str:
    """Returns the record as a data sheet for people."""
    lines = [f"Release {manifest.get('release_id')} of `sfumato {manifest.get('job')}`"]
    for group, fields in record["deployment"].items():
        lines += ["", group.replace("_", " ").upper()]
        for name, value, hint in _with_hints(group, fields):
            lines.append(f"  {name.replace('_', ' ')}:")
            text = "; ".join(value) if isinstance(value, list) else str(value)
            if isinstance(value, Mapping):
                text = ", ".join(f"{key} = {number}" for key, number in value.items())
            for line in (f"({hint or 'none'})" if value in _EMPTY else text).splitlines():
                lines += textwrap.wrap(line, _WIDTH, initial_indent="    ", subsequent_indent="      ")
    return "\n".join(lines) + "\n"


FORMATS = {"yaml": yaml_text, "json-ld": json_ld_text, "text": sheet_text}


def _with_hints(group: str, fields: Fields) -> Iterator[tuple[str, Any, str | None]]:
    """Yields name, value (None if it is missing) and what a person should write, for each field."""
    missing = {"data_product_sector": None} if group == "basic" else {}
    for name, value in {**missing, **fields}.items():
        hint = ADDITIONS.get(name)
        if value in _EMPTY and name in OPTIONS:
            hint = f"write {StatementRequest.model_fields[OPTIONS[name]].description} (--{OPTIONS[name]})"
        yield name, value, hint


def _dumped(fields: Fields) -> str:
    return yaml.dump(dict(fields), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
