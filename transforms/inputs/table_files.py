"""Delta and Iceberg tables: the data files of one version or snapshot, which are read as Parquet."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pyarrow as pa

from sfumato.schemas.errors import RequestError
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.io.files import join
from sfumato.transforms.io.google_errors import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_WAIT_S


def delta_files(reference: str) -> list[LogFile]:
    """Returns the data files of a Delta table, and the values of its partitions.

    reference: the table's folder, local or remote, and `@VERSION` for another version than the latest.

    Raises RequestError if there is no such table or version, it has deletion vectors or mapped columns, which its files
    do not show, or the library is not installed.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise RequestError("input: Delta tables require the extra delta; run: pip install '.[delta]'") from None
    path, version = pinned(reference)
    try:
        table = DeltaTable(path, version=version)
        actions = pa.table(table.get_add_actions(flatten=True))
        mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        deleted = pa.table(table.deletion_vectors()).num_rows
    except (DeltaError, OSError, ValueError) as error:
        raise RequestError(f"delta:{reference}: cannot be opened ({str(error).splitlines()[0]})") from None
    if mapping != "none":
        raise RequestError(f"delta:{reference}: column mapping is not supported; rewrite the table without it")
    if deleted:
        raise RequestError(
            f"delta:{reference}: deletion vectors are not supported, as files contain deleted rows; run REORG TABLE "
            "... APPLY (PURGE) first"
        )
    prefix = "partition."
    columns = [name for name in actions.column_names if name.startswith(prefix)]
    files = [unquote(file) for file in actions["path"].to_pylist()]  # below the table, or where the log states
    paths = [(file if "://" in file else join(path, file)).removeprefix("file://") for file in files]
    if len(set(paths)) < len(paths):
        raise RequestError(f"delta:{reference}: lists a data file twice")
    # As text, since Python has no dates after the year 9999, and a user may have one.
    texts = [actions[name].cast(pa.string()).to_pylist() for name in columns]
    names = [name.removeprefix(prefix) for name in columns]
    values = zip(*texts, strict=True) if texts else ((),) * len(paths)
    return [
        LogFile(file, partition=tuple(zip(names, partition, strict=True)))
        for file, partition in zip(paths, values, strict=True)
    ]


def pinned(reference: str) -> tuple[str, int | None]:
    """Returns a table's name and the number after its `@`, None without."""
    found = re.fullmatch(r"(.+)@(\d+)", reference)
    return (reference, None) if found is None else (found[1], int(found[2]))


def iceberg_files(reference: str) -> list[LogFile]:
    """Returns the data files of an Iceberg table. Its columns keep their ids, by which a renamed column is known.

    reference: CATALOG.NAMESPACE.TABLE, where pyiceberg knows the catalog by its configuration, and `@SNAPSHOT` for
    another snapshot than the latest.

    Raises RequestError if there is no such catalog, table or snapshot, rows were deleted, which the files do not
    show, a file is not Parquet, or the library is not installed.
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import ServerError, ServiceUnavailableError, TooManyRequestsError
        from requests.exceptions import ConnectionError as NoConnectionError
        from requests.exceptions import Timeout
        from tenacity import retry as retried
        from tenacity import retry_if_exception_type, stop_after_delay, wait_random_exponential
    except ImportError:
        raise RequestError("input: Iceberg tables require the extra iceberg; run: pip install '.[iceberg]'") from None
    name, snapshot = pinned(reference)
    catalog, _, table = name.partition(".")
    if not table:
        raise RequestError(f"iceberg:{reference}: must be iceberg:CATALOG.NAMESPACE.TABLE")
    attempts = retried(  # the policy of every remote call; a catalog's client has none
        retry=retry_if_exception_type(
            (ServerError, ServiceUnavailableError, TooManyRequestsError, NoConnectionError, Timeout)
        ),
        wait=wait_random_exponential(FIRST_PAUSE_S, LONGEST_PAUSE_S),
        stop=stop_after_delay(MAX_WAIT_S),
        reraise=True,
    )
    try:
        scan = attempts(lambda: load_catalog(catalog).load_table(table))().scan(snapshot_id=snapshot)
        tasks = list(scan.plan_files())
        ids = tuple((field.name, field.field_id) for field in scan.projection().fields)
    except Exception as error:  # noqa: BLE001  each catalog has its own client and errors
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RequestError(f"iceberg:{reference}: cannot be opened ({reason})") from None
    if any(task.delete_files for task in tasks):
        raise RequestError(
            f"iceberg:{reference}: row-level deletes are not supported, as files contain deleted rows; rewrite the "
            "data files first (rewrite_data_files)"
        )
    if others := {str(task.file.file_format.value) for task in tasks} - {"PARQUET"}:
        raise RequestError(f"iceberg:{reference}: data files must be Parquet, got {', '.join(sorted(others))}")
    return [LogFile(task.file.file_path.removeprefix("file://"), field_ids=ids) for task in tasks]
