"""Delta tables: the data files of one version, which are read as Parquet."""

from __future__ import annotations

import re

import pyarrow as pa

from sfumato.schemas.errors import RequestError
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
        uris = {_name(uri): uri for uri in table.file_uris()}
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
    logs = []
    for action in actions.select(["path", *columns]).to_pylist():
        values = ((name.removeprefix(prefix), action[name]) for name in columns)
        partition = tuple((name, None if value is None else str(value)) for name, value in values)
        logs.append(LogFile(uris[_name(action["path"])], partition=partition))
    return logs


def pinned(reference: str) -> tuple[str, int | None]:
    """A table's name and the number after its `@`, None without."""
    found = re.fullmatch(r"(.+)@(\d+)", reference)
    return (reference, None) if found is None else (found[1], int(found[2]))


def _name(path: str) -> str:
    """The name of a data file, which is unique in its table."""
    return path.rpartition("/")[2]
