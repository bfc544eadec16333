"""Iceberg tables: the data files of one snapshot, which are read as Parquet."""

from __future__ import annotations

from sfumato.schemas.errors import RequestError
from sfumato.transforms.google_errors import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_WAIT_S
from sfumato.transforms.inputs.delta_table import pinned
from sfumato.transforms.inputs.log_file import LogFile


def iceberg_files(reference: str) -> list[LogFile]:
    """The data files of a table. Its columns keep their ids, by which a renamed column is known.

    Args:
        reference: CATALOG.NAMESPACE.TABLE, where pyiceberg knows the catalog by its configuration, and `@SNAPSHOT` for
            another snapshot than the latest.

    Raises:
        RequestError: there is no such catalog, table or snapshot, rows were deleted, which the files alone do not show,
            a file is not Parquet, or the library is not installed.
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import ServerError, ServiceUnavailableError, TooManyRequestsError
        from requests.exceptions import ConnectionError as NoConnectionError
        from requests.exceptions import Timeout
        from tenacity import retry as retried
        from tenacity import retry_if_exception_type, stop_after_delay, wait_random_exponential
    except ImportError:
        raise RequestError("Iceberg tables need their library: pip install 'sfumato[iceberg]'") from None
    name, snapshot = pinned(reference)
    catalog, _, table = name.partition(".")
    if not table:
        raise RequestError(f"iceberg:{reference} must be iceberg:CATALOG.NAMESPACE.TABLE")
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
        raise RequestError(f"iceberg:{reference} cannot be opened ({_first_line(error)})") from None
    if any(task.delete_files for task in tasks):
        raise RequestError(
            f"iceberg:{reference} has row-level deletes, so its files hold rows that were deleted; rewrite its data "
            "files first (rewrite_data_files)"
        )
    if others := {str(task.file.file_format.value) for task in tasks} - {"PARQUET"}:
        raise RequestError(f"iceberg:{reference} holds files of {', '.join(sorted(others))}; only Parquet can be read")
    return [LogFile(task.file.file_path.removeprefix("file://"), field_ids=ids) for task in tasks]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
