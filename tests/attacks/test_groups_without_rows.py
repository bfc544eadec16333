"""An attack by crashes: a run ended with a traceback if a group of users had no usable row.

Groups follow from the key and the ids. So the exit status told the exact number of usable rows of
a group, which is secret. Here no group has a usable row, or no group exists at all.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sfumato.pipelines import cli
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.transforms.flows.user_trips import TripRule, count_trips
from sfumato.transforms.histogram.central_counts import count_items
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.sampling_round import WHOLE, NumberPrefixes, TextPrefixes
from sfumato.transforms.histogram.user_sample import Sample, merge, run_starts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.conftest import REGION as CITY
from tests.conftest import write_files

pytestmark = pytest.mark.usefixtures("blank_pictures")

KEY = RunKey.derive(FixedSecret(b"nobody is here, and it is said so"), {})
REGION = "--region=-1,50,1,51"
MAP = f"{REGION} --depth=4"
CATEGORY = "--trust=central --column=kind"
BOUNDS = "--max_items_per_user=2 --max_records_per_item=3"
RUNS = {
    "top place by weight": f"heatmap {MAP} --contribution=top --weight_column=km",
    "all places by dwell": f"heatmap {MAP} --contribution=all --time_column=time",
    "slots": f"heatmap {MAP} --time_column=time --slots=weekday --records_per_user=3 --trust=central",
    "zones": f"zones {REGION} --quadkey=8 --contribution=all",
    "ranges": f"ranges build {REGION} --method=grid --sizes=500,900 --weight_column=km",
    "histogram of records": f"histogram {CATEGORY} --max_records_per_item=2",
    "histogram of items": f"histogram {CATEGORY} {BOUNDS}",
    "histogram of cells": f"histogram {REGION} --cells=3 --trust=central {BOUNDS}",
    "histogram by sample": "histogram --column=kind",
    "hotspots": f"hotspots {CATEGORY} --levels=2 --depth=2 {BOUNDS}",
    "hotspots of cells": f"hotspots {MAP} --levels=2 --trust=central --top=3 {BOUNDS}",
    "quantiles": "quantiles --trust=central --column=km --range=0,10 --method=exponential",
    "quantiles by sample": "quantiles --column=km --range=0,10 --bits=4",
    "moments": "moments --trust=central --column=km --statistics=mean,variance",
    "moments of bits": "moments --column=km --bits=6 --group_by=kind --groups=a,b",
    "flows": f"flows {REGION} --origin=longitude,latitude --destination=to_longitude,to_latitude",
    "flows of records": f"flows {REGION} --time_column=time --max_trips_per_user=2",
}


def unusable(users: int) -> pa.Table:
    """Users whose rows hold nothing but an id."""
    numbers = ("latitude", "longitude", "to_latitude", "to_longitude", "km", "time")
    empty = {name: pa.nulls(users, pa.float64()) for name in numbers}
    ids = pa.array([f"user {number}" for number in range(users)], pa.string())
    return pa.table({"user_id": ids, **empty, "kind": pa.nulls(users, pa.string())})


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_job_ends_as_with_users(name: str, tmp_path: Path) -> None:
    """It publishes a release, or the reason of a noisy refusal."""
    for users in (0, 3):
        pattern = write_files(unusable(users), tmp_path / f"logs-{users}", 1)
        output = tmp_path / f"release-{users}"
        files = [f"--input={pattern}", f"--output={output}"]
        cli.main([*RUNS[name].split(), "--epsilon=2", "--seed=1", *files])
        assert (output / MANIFEST_FILE).is_file()


def nobody(texts: bool) -> Sample:
    empty = np.empty(0, np.uint64)
    return Sample.from_arrays(empty, empty, texts={7: "seven"} if texts else None)


@pytest.mark.parametrize("max_records", [1, 2])
@pytest.mark.parametrize("max_items", [1, 3])
def test_counts_of_nobody_are_empty_under_every_bound(max_items: int, max_records: int) -> None:
    bound = ItemBound(max_items, max_records)
    of_numbers = count_items(nobody(texts=False), bound, KEY, NumberPrefixes(4, 8), [2, 8])
    of_texts = count_items(merge([nobody(texts=True)] * 2), bound, KEY, TextPrefixes(4), [2, WHOLE])
    assert [int(counts.counts.sum()) for counts in (*of_numbers, *of_texts)] == [0] * 4


def test_trips_of_nobody_are_none() -> None:
    for rule in (None, TripRule(3600, 100, CITY)):
        (counts,) = count_trips(nobody(texts=False), 2, rule, KEY)
        assert counts.counts.sum() == 0


def test_runs_begin_at_the_rows_that_differ_from_the_one_before() -> None:
    user, item = np.array([1, 1, 2, 2, 2]), np.array([5, 5, 5, 6, 6])
    assert run_starts(user, item).tolist() == [0, 2, 3]
    assert run_starts(user).tolist() == [0, 2]
    assert run_starts(user[:0], item[:0]).tolist() == []
