"""Table 2 of paper 000: one location a user, or a distribution over all.

    SFUMATO_DATA=... python -m benchmarks.several_locations [--keys 10] [--maps tokyo,synthetic] [--folder bench_data]

On 64 x 64 cells: the Tokyo check-ins, and logs by `sfumato synth` of as many users and about as many records as the
paper has, which stay in the folder. Each table is printed under its options. Its cases run in memory.
"""

from __future__ import annotations

import argparse
import functools
import glob
import os
from collections.abc import Sequence
from pathlib import Path

import sfumato
from benchmarks.comparison import print_table
from benchmarks.evaluation.cases import Case, parse_cases
from benchmarks.evaluation.comparison_table import Row
from benchmarks.evaluation.evaluate_case import compare_cases
from benchmarks.evaluation.in_memory import Rows
from benchmarks.public_data import dataset
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret

DEPTH = 6
# Region, and where the logs are. Tokyo's is the extent of its records, 139.4715..139.9071 and 35.5108..35.8634, rounded
# outwards.
MAPS = {
    "tokyo": "139.47,35.51,139.91,35.87",
    "synthetic": "3.00,1.00,3.13,1.13",
    "tokyo_paper": "139.47,35.51,139.92,35.87",  # the paper's check-ins, which a reader downloads (public_data.py)
}
SYNTHETIC = {"users": 2293, "records_per_user": 250, "seed": 1}
_METRICS = "--metrics mse,l1,l1_matrix_norm"
_GIVEN = f"--methods adaptive {_METRICS}"
# The paper's algorithm. Where its Eq. 7 aims at less noise (c = 0.1) the tree stays coarse, whatever users send.
_PAPER = f"{_GIVEN} --schedule paper --estimator last --calibration 0.1,1"
_ROUNDED = "--contribution all --gamma 1,100,10000,1000000 --rounding systematic,independent"
TABLES = {
    "Almost no noise": f"--methods flat {_METRICS} --trust central --epsilon 30 --contribution one,top,all",
    "Almost no noise, the paper's algorithm": f"{_PAPER} --trust central --epsilon 30 --contribution one,top,all",
    "One location or several": f"{_GIVEN} --contribution one,top,all --gamma 10000",
    "Gamma and rounding": f"{_GIVEN} {_ROUNDED}",
    "Automatic gamma": f"{_GIVEN} --contribution all --modulus auto,65536,4294967296 --allow_overflow",
    "Every cell at once": f"--methods flat {_METRICS} {_ROUNDED}",
    "One location or several, the paper's algorithm": f"{_PAPER} --contribution one,top,all --gamma 10000",
    "Table 2, a modulus of 16 bits": f"{_PAPER} {_ROUNDED} --modulus 65536 --allow_overflow",
    "Table 2, a modulus of 32 bits": f"{_PAPER} {_ROUNDED} --modulus 4294967296 --allow_overflow",
}


def logs_of(name: str, folder: Path) -> str:
    """A pattern of the map's logs; the synthetic ones are written once."""
    if name == "tokyo_paper":
        return str(dataset("tokyo"))
    if name == "tokyo":
        return str(Path(os.environ["SFUMATO_DATA"]) / "foursquare_tokyo_checkins.parquet")
    target = folder / "several_synthetic"
    if not target.exists():
        sfumato.synth(target, region=MAPS[name], **SYNTHETIC)
    return str(target / "*.parquet")


def compare_on_logs(options: str, paths: Sequence[str], region: Region, keys: int) -> tuple[list[Row], Sequence[str]]:
    """Compares methods on all users of logs; the truth is the exact density of their distributions.

    Args:
        options: see `parse_cases`.
        paths: of the logs.
        region: of the map.
        keys: runs of each case, each with its own shards and noise.

    Returns:
        The rows of the table, and the names of its metrics.
    """
    cases, metrics = parse_cases(f"--depth {DEPTH} {options}")
    key, grid = RunKey.derive(seed_secret(1), {"benchmark": "several locations"}), Grid(region, DEPTH)
    read = functools.cache(functools.partial(Rows.read, paths, grid, key.subkey("users")))

    def everybody(case: Case, number: int) -> Rows:
        parameters = case.parameters
        rows = read(parameters.contributes == "top", parameters.distribution_total)
        return rows.rehashed(key.subkey("cohort", number)).in_order()

    truth = read(False, max(case.parameters.distribution_total or 1 for case in cases)).histogram()
    return compare_cases(cases, metrics, keys, truth, len(read(False, None).users), everybody, key), metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", default=",".join(MAPS if dataset("tokyo") else [*MAPS][:2]))
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path("bench_data"))
    options = parser.parse_args()
    for name in options.maps.split(","):
        paths, region = sorted(glob.glob(logs_of(name, options.folder))), Region.parse(MAPS[name])
        for title, varied in TABLES.items():
            run = functools.partial(compare_on_logs, varied, paths, region, options.keys)
            print_table(f"{title}, `{name}`", varied, options.keys, run)


if __name__ == "__main__":
    main()
