"""What both ways to moments have in common on Beam: files are read once, and users are bounded and admitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

import apache_beam as beam
import pyarrow as pa

from sfumato.transforms.inputs.log_file import FileSlice
from sfumato.transforms.inputs.log_reader import read_batches, read_bundle
from sfumato.transforms.locations.read import BoundGroups, ChargeAndAdmitUsers, ReadLogs, RowCounts, count_other_days
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.client_values import Values, pack, row_blocks, split_by_user, user_blocks
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.privacy.admission import ChargeAndAdmit, UserCounts
from sfumato.transforms.privacy.keys import RunKey

Plan = TypeVar("Plan", MomentsPlan, CentralMomentsPlan)


@dataclass(frozen=True)
class _UserValues:
    """The values of users, as (user group, stored records); if each row is a user, as (0, a stored block of rows)."""

    values: Values
    key: RunKey
    spill: Spill

    def encode(self, parts: Sequence[FileSlice]) -> Iterator[tuple[RowCounts, Iterable[tuple[int, bytes]]]]:
        for name, batch in self._batches(parts):
            encoded = self.values.encode(batch, self.key)
            rows = RowCounts(encoded.rows, encoded.dropped, encoded.clamped)
            if encoded.users is not None:
                yield rows, split_by_user(encoded, self.spill)
            else:
                yield rows, ((0, pack(block, self.spill)) for block in row_blocks(encoded, name, self.key))

    def _batches(self, parts: Sequence[FileSlice]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields batches. Where a row is a user, each has a name that is unique and the same when Beam retries.

        The name keys the random draws of the rows. So the batches of small files are not joined there.
        """
        columns = self.values.columns
        if columns.user_id is not None:
            yield from (("", batch) for batch in read_bundle(parts, columns, count_other_days))
            return
        for part in parts:
            rows = 0
            for batch in read_batches(part, columns, count_other_days):
                yield f"{part.file.name or part.file.path}:{part.stream}{part.first}:{rows}", batch
                rows += batch.num_rows

    def bound(self, records: list[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yields stored blocks of a user group, with one client for each user, and the number of clients in each."""
        for block in user_blocks(records, self.values, self.key):
            yield len(block), pack(block, self.spill)


class UserMoments(beam.PTransform, Generic[Plan]):
    """Base of transforms from paths of logs to moments. One record of each user counts, or each row is a user.

    Args:
        values: without a column of user ids, each row is a user.
        plan: the statistics and their privacy. It binds the key, with the columns and the groups: queries for other
            bits with the same randomised response would reveal more than one bit of a client.
        key: of the run; use each key for one input, once.
        spill: a folder for blocks between stages.
        admit: None counts users by the plan's rule, without a ledger.

    Raises:
        DataError: when the pipeline runs. A file is damaged.
        NotAdmittedError: see ChargeAndAdmit.
    """

    def __init__(
        self,
        values: Values,
        plan: Plan,
        key: RunKey,
        grouping: Grouping | None = None,
        *,
        spill: Spill | str | None = None,
        admit: ChargeAndAdmit | None = None,
    ):
        super().__init__()
        groups = None if grouping is None else [grouping.stated(), list(grouping.groups.names())]
        self._key = key.narrowed({**plan.stated(), "columns": asdict(values.columns), "groups": groups})
        self._values, self._grouping = values, grouping
        self._plan: Plan = plan
        self._rows = 1 if grouping is None else grouping.tally_rows
        self._spill = Spill.of(spill)
        self._admit = admit or ChargeAndAdmit(plan.admission())

    def read(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        """Returns stored blocks with one client a user, and the NoisyUserCounts once the run is admitted."""
        users_of = _UserValues(self._values, self._key, self._spill)
        # PCollection[tuple[UserGroup, Chunk]], PCollection[RowCounts]
        records, rows = paths | "Read" >> ReadLogs(users_of)
        if self._values.columns.user_id is None:
            # The reshuffle keeps the blocks, so that no later stage reads the files again.
            blocks = records | "Blocks" >> beam.Values() | "KeepBlocks" >> beam.Reshuffle()  # PCollection[bytes]
            users = rows | "RowsAreUsers" >> beam.Map(_rows_as_users)  # PCollection[UserCounts]
        else:
            # PCollection[bytes], PCollection[UserCounts]
            blocks, users = records | "BoundUsers" >> BoundGroups(users_of.bound)
        # The ledger is charged here, once all input is read. All noise is drawn after it.
        # PCollection[NoisyUserCounts]
        return blocks, (users, rows) | "ChargeAndAdmitUsers" >> ChargeAndAdmitUsers(self._admit, self._key)


def _rows_as_users(rows: RowCounts) -> UserCounts:
    unusable = sum(rows.dropped)
    return UserCounts(rows.rows - unusable, unusable)


def side(singleton: beam.PCollection) -> beam.pvalue.AsSingleton:
    """Returns a PCollection of one element, as a side input."""
    return beam.pvalue.AsSingleton(singleton)
