"""Parquet files that are already in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq


def parquet_table(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the table that a Parquet file holds. Raises pa.ArrowException or OSError if the file is damaged.

    Everything happens in the caller's thread. Arrow's threads may still hold the content after they are done, and one
    that lets go of it while Python ends aborts the process.

    content: of the file. columns: names of those to read; None for all.
    """
    return pq.ParquetFile(pa.BufferReader(content)).read(columns, use_threads=False)
