"""Delta tables: the data files of one version, which are read as Parquet."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pyarrow as pa

from sfumato.schemas.errors import RequestError
from sfumato.transforms.files import join
from sfumato.transforms.inputs.log_file import LogFile


def delta_files(reference: str) -> list[LogFile]:
    """The data files of a table, and the values of its partitions.

    Args:
        reference: the table's folder, local or remote, and `@VERSION` for another version than the latest.

    Raises:
        RequestError: there is no such table or version, it has deletion vectors or mapped columns, which its files
            alone do not show, or the library is not installed.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise RequestError("Delta tables need their library: pip install 'sfumato[delta]'") from None
    path, version = pinned(reference)
    try:
        table = DeltaTable(path, version=version)
        actions = pa.table(table.get_add_actions(flatten=True))
        mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        deleted = pa.table(table.deletion_vectors()).num_rows
    except (DeltaError, OSError, ValueError) as error:
        raise RequestError(f"delta:{reference} cannot be opened ({str(error).splitlines()[0]})") from None
    if mapping != "none":
        raise RequestError(f"delta:{reference} maps columns to other names in its files; write it without the mapping")
    if deleted:
        raise RequestError(
            f"delta:{reference} has deletion vectors, so its files hold rows that were deleted; run REORG TABLE ... "
            "APPLY (PURGE) first"
        )
    prefix = "partition."
    columns = [name for name in actions.column_names if name.startswith(prefix)]
    paths = [_data_file(path, unquote(file)) for file in actions["path"].to_pylist()]
    if len(set(paths)) < len(paths):
        raise RequestError(f"delta:{reference} lists a data file twice")
    # As text, since Python has no dates after the year 9999, and a user may have one.
    texts = [actions[name].cast(pa.string()).to_pylist() for name in columns]
    names = [name.removeprefix(prefix) for name in columns]
    values = zip(*texts, strict=True) if texts else ((),) * len(paths)
    return [
        LogFile(file, partition=tuple(zip(names, partition, strict=True)))
        for file, partition in zip(paths, values, strict=True)
    ]


def pinned(reference: str) -> tuple[str, int | None]:
    """A table's name and the number after its `@`, None without."""
    found = re.fullmatch(r"(.+)@(\d+)", reference)
    return (reference, None) if found is None else (found[1], int(found[2]))


def _data_file(table: str, path: str) -> str:
    """The place of a data file that a table's log names: below the table, or wherever it says."""
    return (path if "://" in path else join(table, path)).removeprefix("file://")
