"""The run of a job for a Python program: tables as its files, and its release as the result."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.pipelines.command_line.run import columns_of, request_class, request_of, run_job
from sfumato.pipelines.frame.console import Console, shown_on
from sfumato.pipelines.runners.failures import error_of
from sfumato.releases import Release, open_release
from sfumato.schemas.errors import RequestError, SfumatoError
from sfumato.schemas.requests.request_base import Request

if TYPE_CHECKING:
    import pandas as pd

Folder = str | os.PathLike[str]
Logs: TypeAlias = Any  # Folder, a pandas data frame or a pyarrow table, whose packages have no types
_PLACES = {"geometry_column", "cell_column", "latitude_column", "longitude_column", "origin"}
_OPTION = re.compile(r"(`[^`]*`)|--(?=[a-z])")  # of the command line, outside of a quoted command


def publish(job: str, arguments: dict[str, Any]) -> Release:
    """Runs a job that publishes a release, and opens it. Raises SfumatoError.

    arguments: of the job's function, by name.
    """
    values = {**arguments, **arguments["options"]}
    del values["options"]
    input, output = values.pop("input"), values.pop("output")
    if values.get("dry_run"):
        raise RequestError(
            f"dry_run: is only available on the command line; run `sfumato {job} ... --dry_run`, or see sfumato.plan"
        )
    values |= _geometry_of(job, input, values)
    with as_files(job, input, values) as (given, _):
        return _publish_files(job, given, output)


@contextlib.contextmanager
def as_files(job: str, input: Logs, values: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """A job's options with files for tables, and these files by argument, gone in the end. Raises SfumatoError.

    values: the job's other options.
    """
    tables: dict[str, str] = {}
    with _errors_for_python(tables), _zones_file(values) as zones:
        tables |= zones
        with _files_of(job, input, {**values, **zones}) as files:
            tables |= {} if files is input else {"input": files}
            yield {**values, **zones, "input": files}, tables


@contextlib.contextmanager
def _errors_for_python(tables: Mapping[str, str]) -> Iterator[None]:
    """Rewrites an error's message for who called a function: options without dashes, tables by their arguments' names.

    tables: files of a caller's tables, by argument.
    """
    try:
        yield
    except SfumatoError as error:
        text = without_dashes(str(error))
        for name, file in tables.items():
            text = text.replace(f"{name}: {file}: ", f"{name}: ").replace(file, name)
        error.args = (text,)
        raise


def without_dashes(text: str) -> str:
    """Returns a text of the command line with options as Python names them."""
    return _OPTION.sub(lambda found: found[1] or "", text)


def _publish_files(job: str, values: Mapping[str, Any], output: Folder | None) -> Release:
    if output is not None:
        run(job, {**values, "output": output})
        return open_release(output)
    for name in ("ledger", "timeline"):
        if values.get(name) is not None:
            raise RequestError(f"output: with a {name} the release must be kept; name a folder for it")
    folder = tempfile.mkdtemp(prefix="sfumato-")
    place = os.path.join(folder, job.partition(" ")[0])
    try:
        run(job, {**values, "output": place})
        release = open_release(place)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(release, shutil.rmtree, folder, ignore_errors=True)
    return release


@contextlib.contextmanager
def _files_of(job: str, input: Logs, values: Mapping[str, Any]) -> Iterator[Any]:
    """Patterns of files as they are; of a table one file that only this user may read, gone in the end.

    values: the job's other options. They say what the columns of a data frame are.
    """
    several = input if isinstance(input, list | tuple) and input else [input]
    if input is None or all(isinstance(one, str | os.PathLike) for one in several):
        yield input
        return
    # Beam takes seconds to import, and planning needs none.
    from sfumato.pipelines.runners.folders import private_folder

    is_frame = type(input).__module__.partition(".")[0] in ("pandas", "geopandas")
    if not (isinstance(input, pa.Table) or (is_frame and hasattr(input, "columns"))):
        raise RequestError(
            "input: must be files, a pattern or several, a pandas data frame or a pyarrow table, got "
            f"{type(input).__name__}"
        )
    with private_folder() as folder:  # the next run removes it if this process is killed
        if is_frame and job == "inspect":
            file = os.path.join(folder, "table.csv")  # each value as text, as a job reads it
            _with_places(input).to_csv(file, index=False)
            yield file
            return
        file = os.path.join(folder, "table.parquet")
        table = input if isinstance(input, pa.Table) else _read_frame(job, input, {**values, "input": file})
        # Without metadata, so that equal tables are one input in the ledger.
        pq.write_table(table.replace_schema_metadata(None), file)
        yield file


@contextlib.contextmanager
def _zones_file(values: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The option `zones` as a file, if it is a GeoDataFrame; no option otherwise. Raises RequestError."""
    frame: Any = values.get("zones")
    if frame is None or isinstance(frame, str | os.PathLike):
        yield {}
        return
    if not (hasattr(frame, "crs") and hasattr(frame, "to_parquet")):
        raise RequestError(
            f"zones: must be a path or a GeoDataFrame with a geometry, got {type(frame).__name__}; make one with "
            "geopandas.GeoDataFrame(frame, geometry=..., crs=4326)"
        )
    from sfumato.pipelines.runners.folders import private_folder
    from sfumato.transforms.geo.feature_files import in_degrees

    located = in_degrees("zones", frame)
    with private_folder() as folder:
        file = os.path.join(folder, "zones.parquet")
        located.to_parquet(file)
        yield {"zones": file}


def _own_geometry(frame: Logs) -> str | None:
    """Returns the geometry of a GeoDataFrame without columns of degrees; None of other logs."""
    name = getattr(frame, "active_geometry_name", None)
    return None if name is None or {"latitude", "longitude"} <= set(frame.columns) else str(name)


def _geometry_of(job: str, frame: Logs, values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the option that names the geometry of a GeoDataFrame, if a job reads places and no option names them."""
    name, fields = _own_geometry(frame), request_class(job).model_fields
    given = {name for name, value in values.items() if value is not None}
    reads_places = "column" not in fields or given & {"region", "cells", "zones", "h3", "quadkey"}
    if name is None or "geometry_column" not in fields or not reads_places or _PLACES & given:
        return {}
    return {"geometry_column": name}


def _with_places(frame: Any) -> Any:
    """Returns a data frame with the columns of degrees that a GeoDataFrame's points have. Raises RequestError."""
    from sfumato.transforms.geo.feature_files import in_degrees

    name = _own_geometry(frame)
    if name is None:
        return frame
    places = in_degrees("input", frame[name])
    return frame.drop(columns=name).assign(latitude=places.y, longitude=places.x)


def _read_frame(job: str, frame: pd.DataFrame, values: Mapping[str, Any]) -> pa.Table:
    """Returns what a job with these options reads of a data frame. Raises RequestError."""
    from sfumato.pipelines.frame.inputs import layout_of
    from sfumato.transforms.geo.feature_files import in_degrees
    from sfumato.transforms.inputs.data_frame import table_of

    request = _request(job, {"output": values["input"], **values})
    columns = columns_of(request)
    layout = layout_of(request, columns)
    if layout.geometry is not None and hasattr(points := frame.get(layout.geometry), "crs"):
        frame = frame.assign(**{layout.geometry: in_degrees("input", points)})
    return table_of(frame, columns, layout)


def _request(job: str, values: Mapping[str, Any]) -> Request:
    """Returns a job's request, of options that may be of NumPy's types. Raises RequestError."""
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}
    return request_of(job, plain)


class _PythonConsole(Console):
    """The log of a run for a Python program, which knows options by their names."""

    def _text(self, record: logging.LogRecord, is_ours: bool) -> str:
        text = super()._text(record, is_ours)
        return without_dashes(text) if is_ours else text


@_errors_for_python({})
def run(job: str, values: Mapping[str, Any]) -> str:
    """Runs a job for options by name, and returns what its command prints. Raises SfumatoError."""
    request, printed = _request(job, values), io.StringIO()
    with shown_on(_PythonConsole(job, "text", bool(values.get("verbose")))), contextlib.redirect_stdout(printed):
        try:
            run_job(request)
        except Exception as error:
            # The message says all. A worker's error comes wrapped by the runner, whose traceback has hundreds of lines.
            found = error if isinstance(error, SfumatoError) else error_of(error)
            if found is None:
                raise
            raise found.with_traceback(None) from None
    return printed.getvalue()
