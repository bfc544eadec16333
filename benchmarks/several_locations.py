"""Table 2 of paper 000: one location a user, or a distribution over all, by `sfumato compare` itself.

    SFUMATO_DATA=... python -m benchmarks.several_locations [--keys 10] [--maps tokyo,synthetic] [--folder compare_data]

On 64 x 64 cells: the Tokyo check-ins, and logs by `sfumato synth` of as many users and about as many records as the
paper has. Each table is what the command above it prints; the synthetic logs and the evaluations stay in the folder.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.comparison import print_run, run, run_compare
from benchmarks.public_data import dataset
from benchmarks.speed import command

DEPTH = 6
# Region, and where the logs are. Tokyo's is the extent of its records, 139.4715..139.9071 and 35.5108..35.8634, rounded
# outwards.
MAPS = {
    "tokyo": "139.47,35.51,139.91,35.87",
    "synthetic": "3.00,1.00,3.13,1.13",
    "tokyo_paper": "139.47,35.51,139.92,35.87",  # the paper's check-ins, which a reader downloads (public_data.py)
}
SYNTHETIC = "--users 2293 --records_per_user 250 --seed 1"
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
        region = f"--region={MAPS[name]}"
        run(command("synth", "--output", str(target), region, *SYNTHETIC.split()))
    return str(target / "*.parquet")


def compare(title: str, name: str, pattern: str, folder: Path, keys: int) -> None:
    """Runs the command of a table and prints both."""
    given = f"--region={MAPS[name]} --depth {DEPTH} {TABLES[title]} --keys {keys} --seed 1".split()
    print_run(f"{title}, `{name}`", lambda: run_compare(f"several_{title}_{name}", given, pattern, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", default=",".join(MAPS if dataset("tokyo") else [*MAPS][:2]))
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path("compare_data"))
    options = parser.parse_args()
    for name in options.maps.split(","):
        pattern = logs_of(name, options.folder)
        for title in TABLES:
            compare(title, name, pattern, options.folder, options.keys)


if __name__ == "__main__":
    main()
