"""`sfumato audit --self_test`: plants faults in a copy of sfumato, one at a time, and audits its jobs there.

It is the evidence that an audit can fail: each fault breaks a promise of a release, and an audit must find it.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import ndtri

from sfumato.schemas.errors import CheckFailedError
from sfumato.transforms.audit.request import SelfTestRequest
from sfumato.transforms.privacy.keys import keyed_hash

_USERS, _AUDITED = 1_500, 1
_REGION = "--region=-1,50,1,51"
SELF_TEST_JOBS = {
    "heatmap": f"heatmap {_REGION} --depth=7 --trust=central",
    "heatmap, secagg": f"heatmap {_REGION} --depth=5 --method=flat --shard_size=300",
    "zones": f"zones {_REGION} --quadkey=12 --trust=central",
    "flows": f"flows {_REGION} --origin=longitude,latitude --destination=to_longitude,to_latitude",
    "histogram": "histogram --column=kind --delta=1e-3 --epsilon=2",
    "histogram, central": f"histogram {_REGION} --cells=5 --trust=central",
    "hotspots, central": "hotspots --column=kind --depth=2 --levels=2 --trust=central --delta=1e-4",
    "quantiles, central": "quantiles --column=latitude --range=50,51 --trust=central",
    "moments, central": "moments --column=latitude --range=50.2,50.8 --trust=central",
    "ranges": f"ranges build {_REGION} --method=grid --sizes=5000,20000 --population=1500",
}
_AUDIT = """
import sys
from sfumato.pipelines.operations.audit_job import first_violation
from sfumato.transforms.audit.request import JobAuditRequest
users, minutes, job, *words = sys.argv[1:]
print(first_violation(JobAuditRequest(job=job, users=users, minutes=float(minutes)), words))
"""


@dataclass(frozen=True)
class PlantedFault:
    """A change of a module's text. old: occurs once. minutes: of runs with fresh keys."""

    name: str
    job: str
    module: str
    old: str
    new: str
    minutes: float = 0.0

    def path_in(self, package: Path) -> Path:
        """Returns the path of the module in a copy of sfumato."""
        part = self.module if self.module.startswith("pipelines/") else f"transforms/{self.module}"
        return package / f"{part}.py"


FAULTS = (
    PlantedFault(
        "a user counts with every record",
        "heatmap",
        "locations/users",
        "if _may_repeat(users, bounded, places):",
        "if False:",
    ),
    PlantedFault(
        "a user counts with every item",
        "histogram, central",
        "histogram/central_counts",
        "if sizes.max(initial=0) <= max_items:",
        "if True:",
    ),
    PlantedFault(
        "a user counts with every sampled item",
        "histogram",
        "histogram/user_sample",
        "if sample.has_each_user_once or not any_repeated(sample.users):",
        "if True:",
    ),
    PlantedFault(
        "a user counts with every trip",
        "flows",
        "flows/user_trips",
        "if sizes.max(initial=0) > max_trips:",
        "if False:",
    ),
    PlantedFault(
        "values are not clipped to their range",
        "moments, central",
        "moments/central/bernstein_sums",
        "t = np.clip((values - span.low) / (span.high - span.low), 0, 1)",
        "t = (values - span.low) / (span.high - span.low)",
    ),
    PlantedFault(
        "a user counts in two zones",
        "zones",
        "secagg/shard_sums",
        "ShardTotals(totals.sums + central_noise.sum(axis=0), totals.live)",
        "ShardTotals(totals.sums + np.roll(totals.sums, 1) + central_noise.sum(axis=0), totals.live)",
    ),
    PlantedFault(
        "half of the noise of a curator",
        "zones",
        "secagg/shard_sums",
        "ShardTotals(totals.sums + central_noise.sum(axis=0), totals.live)",
        "ShardTotals(totals.sums + central_noise.sum(axis=0) // 2, totals.live)",
    ),
    PlantedFault(
        "half of the noise of a shard",
        "heatmap, secagg",
        "secagg/shard_sums",
        "    if planned and not query.noise.colluders:\n        return noise",
        "    if planned and not query.noise.colluders:\n        return noise // 2",
    ),
    PlantedFault(
        "noise for half of the sensitivity",
        "heatmap",
        "secagg/shard_sums",
        "        query.cost,\n        query.sensitivity,\n    )\n    return ShardTotals",
        "        2 * query.cost,\n        query.sensitivity,\n    )\n    return ShardTotals",
    ),
    PlantedFault(
        "one noise for all shards",
        "heatmap, secagg",
        "secagg/shard_sums",
        'noise = query.noise.kind.draw(key, f"shard noise {query.index}", shards, entries,',
        'noise = query.noise.kind.draw(key, f"shard noise {query.index}", 0 * shards, entries,',
    ),
    PlantedFault(
        "half of the noise of items",
        "histogram, central",
        "histogram/central_counts",
        "noise.draw(key, label, counts.items)",
        "noise.draw(key, label, counts.items) // 2",
    ),
    PlantedFault(
        "noise that follows from no secret",
        "histogram, central",
        "privacy/keys",
        "return hmac.digest(secret, self.request_digest, hashlib.sha256)",
        'return hmac.digest(b"", b"", hashlib.sha256)',
    ),
    PlantedFault(
        "no noise where nobody is",
        "histogram, central",
        "histogram/central_counts",
        "noise.draw(key, label, counts.items)",
        "noise.draw(key, label, counts.items) * (counts.counts > 0)",
    ),
    PlantedFault(
        "half of the noise of a grid",
        "ranges",
        "ranges/field_counts",
        "np.asarray(flat + noise[: flat.size], dtype=np.float64)",
        "np.asarray(flat + noise[: flat.size] // 2, dtype=np.float64)",
    ),
    PlantedFault(
        "half of the noise of trips",
        "flows",
        "flows/flow_tree",
        "noisy[~is_split] = exact[~is_split] + noise",
        "noisy[~is_split] = exact[~is_split] + noise // 2",
    ),
    PlantedFault(
        "an exact number of users",
        "heatmap",
        "privacy/admission",
        "(counts.usable + int(noise[0])) / rate",
        "counts.usable / rate",
    ),
    PlantedFault(
        "a user adds every record to the sums",
        "moments, central",
        "moments/client_values",
        "if any_repeated(users):",
        "if False:",
    ),
    PlantedFault(
        "a sampled user counts twice",
        "histogram",
        "histogram/transform",
        "counts = add_counts(accumulator)\n        return counts.only",
        "counts = add_counts([*accumulator, *accumulator])\n        return counts.only",
    ),
    PlantedFault(
        "a threshold on exact counts",
        "hotspots, central",
        "histogram/central_counts",
        "noisy >= noise.threshold",
        "counts.counts >= noise.threshold",
    ),
    PlantedFault(
        "an exact number in the log",
        "heatmap",
        "locations/read",
        "kind.emit(users=admission.users,",
        "kind.emit(users=float(users.usable),",
    ),
    PlantedFault(
        "a file that follows from records",
        "heatmap",
        "locations/read",
        "    rows.emit()\n    if admit is None:",
        "    rows.emit()\n"
        "    open(key.secret.path.rsplit('/', 1)[0] + '/run/seen', 'w').write(str(rows.rows))\n"
        "    if admit is None:",
    ),
    PlantedFault(
        "an exit status that follows from records",
        "zones",
        "locations/read",
        "    rows.emit()\n    if admit is None:",
        "    rows.emit()\n    if sum(rows.dropped):\n        raise ValueError('a bad row')\n    if admit is None:",
    ),
    PlantedFault(
        "the ledger is not charged",
        "heatmap",
        "privacy/admission",
        "refused = None if self.gate is None else self.gate.charge()",
        "refused = None",
    ),
    PlantedFault(
        "the ledger is charged half",
        "histogram, central",
        "pipelines/frame/accounting",
        'epsilon=parse_amount("epsilon", cost.epsilon)',
        'epsilon=parse_amount("epsilon", cost.epsilon / 2)',
    ),
    PlantedFault(
        "noise for twice the stated epsilon",
        "zones",
        "counting/manifest",
        '"epsilon": parameters.epsilon,',
        '"epsilon": parameters.epsilon / 2,',
    ),
    PlantedFault(
        "a key that is bound to no file",
        "moments, central",
        "pipelines/frame/run_key",
        "key_binding(job, [] if audit else files, release_id)",
        "key_binding(job, [], release_id)",
    ),
    PlantedFault(
        "a key that is bound to the number of records",
        "quantiles, central",
        "pipelines/frame/run_key",
        "fingerprint = content_fingerprint(with_rows(files, job.columns()), job.columns())",
        "fingerprint = [file.rows for file in files]",
    ),
    PlantedFault(
        "a key that is bound to no release id",
        "histogram, central",
        "pipelines/frame/run_key",
        '"release_id": release_id,',
        '"release_id": None,',
    ),
    PlantedFault(
        "intervals around exact counts",
        "histogram, central",
        "histogram/central_counts",
        "    return NoisyHistogram(level, noise, counts.items[shown], noisy[shown], texts)",
        "    NoisyHistogram.intervals = (counts.counts[shown] - 3, counts.counts[shown] + 3)\n"
        "    return NoisyHistogram(level, noise, counts.items[shown], noisy[shown], texts)",
    ),
    PlantedFault(
        "an exact number in a field of the log",
        "heatmap",
        "locations/read",
        "kind.emit(users=admission.users,",
        "kind.emit(exact=users.usable, users=admission.users,",
    ),
    PlantedFault(
        "a file named like the release",
        "histogram, central",
        "histogram/central_counts",
        "    key = key.narrowed({",
        "    open(key.secret.path.rsplit('/', 1)[0] + '/run/release_' + str(counts[0].counts.sum()), 'w').close()\n"
        "    key = key.narrowed({",
    ),
    PlantedFault(
        "a refusal with an exact number",
        "zones",
        "privacy/admission",
        "                self.gate.settle(self.rule.cost, str(refusal))\n            raise\n",
        "                self.gate.settle(self.rule.cost, str(refusal))\n"
        '            raise type(refusal)(f"{refusal} ({counts.usable})") from None\n',
    ),
    PlantedFault(
        "a page with more than the tables",
        "ranges",
        "release/builder",
        "return {**page_files(view(files)), **files}",
        'return {**page_files(view(files)), PAGE_FILE: render_page(view(files)).encode() + b" ", **files}',
    ),
    PlantedFault(
        "half of the noise above a threshold",
        "hotspots, central",
        "histogram/central_counts",
        "noise.draw(key, label, counts.items)",
        "noise.draw(key, label, counts.items) // 2",
        minutes=0.5,
    ),
    PlantedFault(
        "a tenth of the noise of a single number",
        "quantiles, central",
        "privacy/admission",
        "(counts.usable + int(noise[0])) / rate",
        "(counts.usable + int(noise[0]) // 10) / rate",
        minutes=1.0,
    ),
)


def run(request: SelfTestRequest) -> None:
    """Runs the command. Raises CheckFailedError if an audit misses a fault, or accuses code without one."""
    with tempfile.TemporaryDirectory(prefix="sfumato-self-test-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        logs = Path(folder) / "logs.parquet"
        pq.write_table(city(), logs)
        copy_package(Path(folder) / "sfumato")
        compile_dir(str(folder), quiet=2)
        trials = [*((None, job) for job in SELF_TEST_JOBS), *((fault, fault.job) for fault in FAULTS)]
        results = pool.map(lambda trial: tried(Path(folder), logs, *trial), trials)
        wrong = 0
        for (fault, job), (found, seconds) in zip(trials, results, strict=True):
            right = bool(found) == (fault is not None)
            wrong += not right
            name = f"{job}: {'no fault' if fault is None else fault.name}"
            sys.stdout.write(f"{'right' if right else 'WRONG'}  {seconds:3.0f} s  {name}: {found or 'no violation'}\n")
            sys.stdout.flush()
    if wrong:
        raise CheckFailedError(f"{wrong} of {len(trials)} audits are wrong")
    sys.stdout.write(
        f"{len(FAULTS)} of {len(FAULTS)} faults found, and no violation in {len(SELF_TEST_JOBS)} jobs without one\n"
    )


def tried(folder: Path, logs: Path, fault: PlantedFault | None, job: str) -> tuple[str, float]:
    """Returns the first violation that an audit finds in a copy of sfumato with a fault, in words, and its seconds.

    folder: holds the copy without one.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as copy:
        shutil.copytree(folder / "sfumato", Path(copy) / "sfumato")
        if fault is not None:
            plant(Path(copy) / "sfumato", fault)
        words = SELF_TEST_JOBS[job].split()
        words += [f"--input={logs}", *([] if "--epsilon" in SELF_TEST_JOBS[job] else ["--epsilon=1"])]
        minutes = 0.0 if fault is None else fault.minutes
        done = subprocess.run(
            [sys.executable, "-c", _AUDIT, str(_AUDITED), str(minutes), *words],
            env={**os.environ, "PYTHONPATH": copy, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return f"exit status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", time.monotonic() - begun
    return done.stdout.strip(), time.monotonic() - begun


def plant(package: Path, fault: PlantedFault) -> None:
    """Changes a module of a copy of sfumato. Raises ValueError unless its text holds the old snippet once."""
    path = fault.path_in(package)
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: {path.name} holds the snippet {text.count(fault.old)} times")
    path.write_text(text.replace(fault.old, fault.new))


def copy_package(target: Path) -> None:
    """Copies the installed package sfumato to a new folder."""
    parts = {
        name: Path(next(iter(importlib.import_module(f"sfumato{name}").__path__)))
        for name in ("", ".pipelines", ".schemas", ".transforms")
    }
    for name, source in parts.items():
        shutil.copytree(
            source, target / name.removeprefix("."), dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )


def city() -> pa.Table:
    """Returns logs of two records a user, with a kind and a destination."""
    users = np.repeat(np.arange(_USERS), 2)

    def uniform(name: str) -> NDArray[np.float64]:
        bits = keyed_hash(hashlib.sha256(name.encode()).digest(), np.arange(len(users)))
        return np.asarray(((bits >> np.uint64(11)) + np.uint64(1)) * 2.0**-53, np.float64)

    places = {
        f"{to}{axis}": middle + spread * ndtri(uniform(f"{to}{axis}"))
        for axis, middle, spread in (("latitude", 50.5, 0.15), ("longitude", 0.0, 0.3))
        for to in ("", "to_")
    }
    kinds = np.array([first + second for first in "abcdefgh" for second in "abcdefgh"])
    rank = np.floor(np.log(uniform("kind")) / math.log(0.88)).astype(int)  # each kind has 0.88 times the users before
    kind = kinds[np.minimum(rank, len(kinds) - 1)]
    return pa.table({"user_id": pa.array(users.astype(str)), "kind": kind, **places})
