"""What audits find, and how seldom they accuse: the figures of docs/how_to/audit_a_job.md.

    python -m benchmarks.audit [--audits 1000] [--logs FILES]

Four parts: the lower bound of epsilon for a cell of a heatmap; false alarms of sequential tests of right code; an
understated epsilon and edits of one byte in a published release; with --logs, the seconds of an audit of the heatmap.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.equal_releases import write_logs
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import SfumatoError
from sfumato.schemas.region import Places
from sfumato.transforms.audit.claims import claims
from sfumato.transforms.audit.sequential import EpsilonTest
from sfumato.transforms.counting.methods import Flat
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash

_REGION = "--region=-122.51,37.7,-122.35,37.82"
_CELL, _USERS = 5, 50


def lower_bound(runs: int) -> float:
    """Returns the lower bound of epsilon from runs of the in-memory core, half of them with one user more."""
    parameters = CountParameters(depth=2, method=Flat(), trust="central", epsilon=1.0, population=_USERS)
    codes = np.full(_USERS, _CELL, np.uint64)
    test = EpsilonTest(1)

    def users_of_cell(codes: np.ndarray, secret: bytes) -> float:
        key, places = RunKey.derive(FixedSecret(secret), {}), Places(2)
        users = keyed_hash(key.subkey("users"), np.arange(len(codes))) & ~places.mask
        order = np.argsort(users)
        state = run_in_memory(Rows(places, users[order], codes[order]), _USERS, parameters, key)
        return float(state.results[-1].counts.ravel()[_CELL])

    rng = np.random.default_rng(1)
    for _ in range(runs // 2):
        with_user, without = users_of_cell(codes, rng.bytes(32)), users_of_cell(codes[1:], rng.bytes(32))
        test.add([(with_user >= _USERS, without >= _USERS)])
    return test.lower_bound()


def alarms(audits: int, pairs: int, epsilon: float) -> int:
    """Returns how many sequential tests of right code refute its epsilon, at any time of their run."""
    key, refuted = RunKey.derive(FixedSecret(b"audits of right code" * 2), {}), 0
    for audit in range(audits):
        noise = LAPLACE.draw(key, f"audit {audit}", np.arange(2, dtype=np.uint64), pairs, epsilon)
        test = EpsilonTest(1)
        for with_user, without in noise.T.tolist():
            test.add([(with_user + 1 >= 1, without >= 1)])
            if test.refutes(epsilon):
                refuted += 1
                break
    return refuted


def found_edits(edits: int) -> tuple[bool, int]:
    """Returns whether an epsilon that is understated by 5% is found, and how many edits of one byte are."""
    rng, found = np.random.default_rng(2), 0
    quiet = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        place, ledger = Path(folder) / "release", Path(folder) / "ledger.db"
        write_logs(Path(folder) / "logs")
        words = ["heatmap", f"--input={folder}/logs", f"--output={place}", "--epsilon=1", "--depth=6", _REGION]
        words += [f"--key_file={folder}/key", "--release_id=one", f"--ledger={ledger}", "--dataset=city"]
        cli.main(["key", "new", f"{folder}/key"])
        assert cli.main([*words, "--period=2026-01-01", "--budget=1/1d", "--trust=central"]) == 0
        manifest = json.loads((place / "manifest.json").read_text())
        manifest["privacy"]["epsilon"] *= 0.95
        understated = any(one.is_broken for one in claims(manifest))
        for _ in range(edits):
            path = sorted(place.iterdir())[rng.integers(len(list(place.iterdir())))]
            content = bytearray(before := path.read_bytes())
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
            path.write_bytes(content)
            with contextlib.suppress(SfumatoError):
                found += cli.main(["audit", str(place), f"--ledger={ledger}"]) != 0
            path.write_bytes(before)
    return understated, found


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--edits", type=int, default=200)
    parser.add_argument("--logs", help="Parquet files with the default columns, in San Francisco")
    options = parser.parse_args()
    print(f"a cell of a heatmap at epsilon 1, 2,000 runs: epsilon is at least {lower_bound(2000):.2f}")
    count = alarms(options.audits, 200, 1.0)
    print(f"{options.audits:,} sequential tests of right code at level 0.05, 200 pairs each: {count} alarms")
    understated, found = found_edits(options.edits)
    print(f"an epsilon understated by 5%: {'found' if understated else 'missed'}")
    print(f"edits of one bit: {found} of {options.edits} found")
    if options.logs:
        begun = time.monotonic()
        words = [f"--input={options.logs}", _REGION, "--epsilon=1", "--trust=central", "--users=20", "--minutes=0"]
        status = cli.main(["audit", "--job", "heatmap", *words])
        print(f"an audit of the heatmap with 20 users: exit status {status}, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
