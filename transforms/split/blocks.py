"""Files of reports or requests, read in blocks of one size, so that every report counts at most once.

A block goes on from file to file: a thousand files of one report make the blocks of one file of a thousand. A file
that changes while it is read ends the run: what is counted are the bytes whose ids were compared. Reports that are
equal byte for byte count once. Different readable reports with the same id do not count at all, so the order of files
does not decide which of them is the device's. Copies that cannot be opened do not matter.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np

from sfumato.schemas.errors import DataError
from sfumato.transforms.io.files import open_file
from sfumato.transforms.split.parties import REQUESTS, Aggregator, private_key
from sfumato.transforms.split.prio3 import LEADER
from sfumato.transforms.split.reports import REPLAYED, Opened, Records, open_records

_BLOCK_BYTES = 1 << 22  # of reports: 80 of 3,034 entries, 64 MB of memory
_MAX_BLOCK = 512


_READERS = 16  # files of a block that are read at once
ANSWERS = "answers"  # output of `OverBlocks`


@dataclass(frozen=True)
class Part:
    """`rows` records of a file from the first one on."""

    path: str
    first: int
    rows: int

    def read(self, size: int) -> bytes:
        """Returns the part's bytes. size: of a record."""
        with open_file(self.path) as file:
            file.seek(self.first * size)
            return file.read(self.rows * size)


@dataclass(frozen=True)
class Block:
    """Parts of files that follow each other. number: of the block in the batch."""

    number: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """The number of records."""
        return sum(part.rows for part in self.parts)

    def read(self, size: int) -> bytes:
        """Returns the block's bytes. size: of a record."""
        with ThreadPoolExecutor(min(_READERS, len(self.parts))) as threads:
            return b"".join(threads.map(partial(Part.read, size=size), self.parts))


def block_rows(record: int) -> int:
    """Returns the number of records of a complete block. record: bytes of a report."""
    return max(1, min(_MAX_BLOCK, _BLOCK_BYTES // record))


def blocks_of(files: Sequence[tuple[str, int]], record: int) -> list[Block]:
    """Returns the blocks of some files, in order. files: path and bytes of each. record: bytes of a report.

    Bytes after the last complete record of a file are no report.
    """
    blocks, parts, room = list[Block](), list[Part](), block_rows(record)
    for path, size in files:
        first, end = 0, size // record
        while first < end:
            parts.append(Part(path, first, min(room, end - first)))
            first, room = first + parts[-1].rows, room - parts[-1].rows
            if not room:
                blocks.append(Block(len(blocks), tuple(parts)))
                parts, room = [], block_rows(record)
    return [*blocks, Block(len(blocks), tuple(parts))] if parts else blocks


def first_look(seen: Iterable[tuple[int, bytes, bytes]]) -> dict[int, tuple[bytes, list[int]]]:
    """Returns for each block the digest of its bytes, and the rows whose id another row has too.

    seen: number of each block, the 16-byte ids of its rows, and the digest.
    """
    ordered = sorted(seen)
    ids = np.frombuffer(b"".join(part for _, part, _ in ordered), dtype="V16")
    _, place, copies = np.unique(ids, return_inverse=True, return_counts=True)
    is_shared, found, start = copies[place] > 1, dict[int, tuple[bytes, list[int]]](), 0
    for number, part, digest in ordered:
        end = start + len(part) // 16
        found[number] = digest, np.flatnonzero(is_shared[start:end]).tolist()
        start = end
    return found


def replayed_rows(readable: Iterable[tuple[bytes, int, int, bytes]]) -> dict[int, list[int]]:
    """Returns the rows of each block that do not count because of their id.

    readable: of reports that share an id with others: the id, the block's number, the row, and the report's digest.
    """
    by_id, found = defaultdict[bytes, list[tuple[int, int, bytes]]](list), defaultdict[int, list[int]](list)
    for report, number, row, digest in readable:
        by_id[report].append((number, row, digest))
    for reports in by_id.values():
        is_one = len({digest for _, _, digest in reports}) == 1
        for number, row, _ in sorted(reports)[is_one:]:
            found[number].append(row)
    return dict(found)


class OverBlocks(beam.PTransform):
    """Blocks -> what a function yields of each: of the block's number, its records, and the aggregator's shares.

    Two outputs: the main one, and of what is tagged ANSWERS.
    """

    def __init__(self, aggregator: Aggregator, function: Callable[[int, Records, Opened], Iterable[Any]]) -> None:
        super().__init__()
        self._aggregator, self._function = aggregator, function

    def expand(self, blocks: beam.PCollection) -> Any:
        aggregator, function = self._aggregator, self._function
        blocks = blocks | "Spread" >> beam.Reshuffle()
        looked = (
            blocks
            | "Look" >> beam.Map(lambda block: (0, _look(aggregator, block)))
            | "Together" >> beam.GroupByKey()  # PCollection[tuple[0, Iterable[tuple[number, ids, digest]]]]
            | "Shared ids" >> beam.MapTuple(lambda _, seen: first_look(seen))
        )
        seen = beam.pvalue.AsSingleton(looked, default_value={})
        replayed = (
            blocks
            | "Open shared" >> beam.Map(lambda block, seen: (0, _readable(aggregator, block, seen)), seen)
            | "Of all blocks" >> beam.GroupByKey()  # PCollection[tuple[0, Iterable[list[report]]]]
            | "Replayed" >> beam.MapTuple(lambda _, parts: replayed_rows(itertools.chain.from_iterable(parts)))
        )
        rows = beam.pvalue.AsSingleton(replayed, default_value={})

        def verify(
            block: Block, seen: dict[int, tuple[bytes, list[int]]], replayed: dict[int, list[int]]
        ) -> Iterable[Any]:
            records = _records(aggregator, block, seen[block.number][0])
            opened = _opened(aggregator, records)
            opened.errors[replayed.get(block.number, [])] = REPLAYED
            return function(block.number, records, opened)

        return blocks | "Verify" >> beam.FlatMap(verify, seen, rows).with_outputs(ANSWERS, main="sums")


def _look(aggregator: Aggregator, block: Block) -> tuple[int, bytes, bytes]:
    content = _content(aggregator, block)
    ids = np.frombuffer(content, dtype=aggregator.record)["id"].tobytes()
    return block.number, ids, hashlib.sha256(content).digest()


def _readable(
    aggregator: Aggregator, block: Block, seen: dict[int, tuple[bytes, list[int]]]
) -> list[tuple[bytes, int, int, bytes]]:
    """Returns those rows of a block that share an id and can be opened, see `replayed_rows`."""
    digest, rows = seen[block.number]
    if not rows:
        return []
    records = _records(aggregator, block, digest)[rows]
    return [
        (record["id"].tobytes(), block.number, row, hashlib.sha256(record.tobytes()).digest())
        for record, row, error in zip(records, rows, _opened(aggregator, records).errors, strict=True)
        if not error
    ]


def _records(aggregator: Aggregator, block: Block, digest: bytes) -> Records:
    """Returns a block's records. Raises DataError: its bytes are not those whose ids were compared."""
    content = _content(aggregator, block)
    if hashlib.sha256(content).digest() != digest:
        raise _changed(block)
    return np.frombuffer(content, dtype=aggregator.record)


def _content(aggregator: Aggregator, block: Block) -> bytes:
    size = aggregator.record.itemsize
    if aggregator.role == LEADER:
        content = block.read(size)
    else:
        content = aggregator.read_exchange(block.parts[0].path, REQUESTS, block.number)
    if len(content) != block.rows * size:
        raise _changed(block)
    return content


def _changed(block: Block) -> DataError:
    files = " or ".join(dict.fromkeys([block.parts[0].path, block.parts[-1].path]))
    return DataError(f"{files}: was changed while it was read; nothing is published. Run the command again")


def _opened(aggregator: Aggregator, records: Records) -> Opened:
    return open_records(aggregator.task, aggregator.role, records, private_key(aggregator.key))
