"""The TypeScript client under Node, bundled as an app gets it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

_REPORTS = """
import { readFileSync } from "node:fs";
const { report, RequestError } = await import(process.argv[1]);
const bytes = (text) => new Uint8Array(Buffer.from(text, "hex"));
const made = [];
for (const { answered, task, place, now, randomness } of JSON.parse(readFileSync(0, "utf8"))) {
  const kept = new Map();
  const memory = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
  try {
    for (const one of answered) await report(bytes(one.task), one.place, memory, { now: one.now });
    const found = await report(bytes(task), place, memory, { now, randomness: bytes(randomness) });
    made.push({ report: Buffer.from(found).toString("hex") });
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    made.push({ refusal: error.message });
  }
}
process.stdout.write(JSON.stringify(made));
"""


def bundle(folder: Path) -> Path:
    """Bundles the client into a folder, and returns its script. Skips the test without Node or the packages."""
    if shutil.which("node") is None:
        pytest.skip("no node on this machine (Node 20 or later): the TypeScript client was not tried")
    if not (ROOT / "web" / "node_modules" / "@hpke").exists():
        pytest.skip("web/node_modules has no packages of the client (make web): the TypeScript client was not tried")
    subprocess.run(["node", "client.mjs", str(folder)], cwd=ROOT / "web", check=True)
    return folder / "client.js"


def run_script(script: str, *arguments: object, given: str = "") -> str:
    """Runs a module in Node, and returns what it prints."""
    command = ["node", "--input-type=module", "--eval", script, *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


def reports(client: Path, cases: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Returns a report in hexadecimal, or a refusal's message, for each case: see `case`."""
    found: list[dict[str, str]] = json.loads(run_script(_REPORTS, client, given=json.dumps(cases)))
    return found


def case(
    task: str, place: Any, now: float, randomness: bytes = bytes(208), answered: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Returns a phone's task, place, clock and randomness, and the cases that the phone answered before."""
    before = answered or []
    return {
        "task": task.encode().hex(), "place": place, "now": now, "randomness": randomness.hex(), "answered": before,
    }  # fmt: skip
