"""What the collector makes of the two aggregators' shares: noisy counts, and a release. Pure post-processing."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from sfumato.schemas.errors import DataError
from sfumato.schemas.guarantee import DEVICE_ASSUMPTIONS
from sfumato.schemas.locations import LocationColumns
from sfumato.transforms.histogram.central_counts import NoisyHistogram, NoisyLevels, SplitCountPlan
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.item_encoding import CellItems
from sfumato.transforms.histogram.release import CountMetadata, central_files
from sfumato.transforms.histogram.sampling_round import WHOLE
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.split.aggregate import SHARE_FORMAT, share_associated, share_info
from sfumato.transforms.split.hpke import Opener
from sfumato.transforms.split.prio3 import decode_share, unshard
from sfumato.transforms.split.reports import ROLES
from sfumato.transforms.split.task import Task

_SHARE_KINDS = {
    "format": str, "task": str, "role": str, "batch": str, "reports": int, "enc": str, "payload": str,
}  # fmt: skip
_MOST = 1 << 62  # of a count that tables hold


@dataclass(frozen=True)
class Collected:
    """The counts of a task. All of it is noisy.

    Attributes:
        counts: of the cells in the quadtree's order, with the noise of both aggregators.
        reports: the number of reports, as each aggregator states it with noise of its own.
    """

    counts: list[int]
    reports: list[int]


class DeviceBound(ItemBound):
    """What a report adds to the counts."""

    def text(self, record: str = "record", item: str = "item") -> str:
        if self.max_records == 1:
            return "one report a user, of one cell"
        return f"one report a user, of whole weights of cells with a sum of at most {self.max_records}"


class DeviceCountPlan(SplitCountPlan):
    """The budget of a task, whose reports devices made."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = DEVICE_ASSUMPTIONS
    STATED: ClassVar[Mapping[str, Any]] = {"devices": True}


def collect(task: Task, shares: Sequence[bytes], private: bytes) -> Collected:
    """Returns the counts of a task.

    Args:
        task: which both aggregators worked on.
        shares: contents of the leader's and the helper's files, in any order.
        private: key of the collector.

    Raises:
        DataError: the shares are not those of both aggregators for one batch of this task, or no counts.
    """
    found, batches = dict[str, tuple[list[int], int]](), set[str]()
    for content in shares:
        role, batch, reports, share = opened(task, content, private)
        found[role] = share, reports
        batches.add(batch)
    if set(found) != set(ROLES) or len(shares) != len(ROLES):
        raise DataError("shares: one of the leader and one of the helper are required")
    if len(batches) > 1:
        raise DataError("shares: the two aggregators accepted different reports; run both again on the same exchange")
    counts = unshard(share for share, _ in found.values())
    if max(map(abs, counts)) > _MOST:
        raise DataError("shares: the sums are not counts; one of the aggregators wrote a wrong share")
    return Collected(counts, [reports for _, reports in found.values()])


def opened(task: Task, content: bytes, private: bytes) -> tuple[str, str, int, list[int]]:
    """Returns the role, batch, number of reports and aggregate share of a file.

    The encryption shows that the aggregator which the task names wrote it. Raises DataError.
    """
    try:
        stated = json.loads(content)
        kinds = {name: type(value) for name, value in stated.items()}
        if kinds != _SHARE_KINDS or stated["format"] != SHARE_FORMAT or abs(stated["reports"]) > _MOST:
            raise DataError("shares: a file is not an aggregator's share")
        if stated["task"] != task.id.hex():
            raise DataError("shares: a file is of another task")
        role, batch, reports = stated["role"], stated["batch"], stated["reports"]
        number, enc = ROLES.index(role), bytes.fromhex(stated["enc"])
        opener = Opener(private, share_info(number), bytes.fromhex(getattr(task, role)))
        payload = base64.b64decode(stated["payload"], validate=True)
        plain = opener.open(enc, share_associated(task, number, batch, reports), payload)
        if plain is None:
            raise DataError("shares: a file is not from this task's aggregator to this collector, or was changed")
        return role, batch, reports, decode_share(plain, task.circuit.length)
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"shares: a file is not an aggregator's share ({error})") from None


def release_id_of(task: Task) -> str:
    """Returns the id of the release of a task, or of the map whose first round the task is."""
    return f"split-{task.id.hex()[:32]}"


def collected_files(collected: Collected, task: Task, created: str, code: str | None = None) -> dict[str, bytes]:
    """Returns the files of a release of a task's counts, by name; the manifest is the last.

    created: ISO 8601 time. code: digest of the running code, if it is stated.
    """
    bound = DeviceBound(max_records=task.max_value)
    plan = DeviceCountPlan(epsilon=task.epsilon, bound=bound, domains=(task.circuit.length,))
    counted = CellItems(LocationColumns(), task.grid)
    items = np.arange(task.circuit.length, dtype=np.uint64)
    histogram = NoisyHistogram(WHOLE, plan.noises[0], items, np.array(collected.counts, dtype=np.int64))
    reports = NoisyUserCounts(
        float(np.mean(collected.reports)), 0.0, 2 * task.count_epsilon, LAPLACE.stddev(task.count_epsilon)
    )
    parameters = {
        "trust": plan.TRUST,
        "task": {**json.loads(task.text), "id": task.id.hex()},
        **asdict(plan),
        "rounds": plan.rounds,
        "counted": counted.stated(),
    }
    metadata = ReleaseMetadata(
        "histogram", release_id_of(task), created, "keys of two operators", True, parameters, code=code
    )
    return central_files(NoisyLevels((histogram,), reports), CountMetadata(metadata, plan, counted))
