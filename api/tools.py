"""The commands that publish no release of logs, as Python functions. All of them raise the errors of `heatmap`."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from sfumato.pipelines.command_line.run import request_of
from sfumato.releases import Release, open_release
from sfumato.runs import Folder, Logs, as_files, run, without_dashes
from sfumato.schemas.errors import RequestError
from sfumato.schemas.parquet_table import parquet_table
from sfumato.schemas.release import CHANGES_FILE
from sfumato.transforms.changes.release import compare_releases
from sfumato.transforms.counting.plan import Plan, make_plan
from sfumato.transforms.heatmap.request import PlanRequest
from sfumato.transforms.nights.plan import RotationPlan, make_rotation_plan
from sfumato.transforms.release.published_release import data_frame, read_part

if TYPE_CHECKING:
    import geopandas
    import pandas as pd

_COMMAND = "    sfumato "
_CELL = re.compile(r"--([a-z_]+)(?= *\|$)")  # an option in the last column of a table, which keeps its width
_FORM = re.compile(r"--(decimal|dates|zones) (,|dmy|mdy|FILE)")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


def inspect(input: Logs, *, zones: Folder | geopandas.GeoDataFrame | None = None, **options: Any) -> None:
    """Prints what logs contain, what is wrong with them, and the call that fits them, as `sfumato inspect` does.

    The figures are exact: they are for the person who holds the logs. Nothing is published or charged.

    Args:
        input: files or a table, see `heatmap`.
        zones: file of zones, such as stops, or a GeoDataFrame of them, whose visitors are to be counted.
        **options: any other option of `sfumato inspect`, such as user_id_column, dates or region.

    Example:
        >>> sfumato.inspect("logs/*.parquet")  # doctest: +ELLIPSIS
        For your eyes only: ...
            sfumato.heatmap('logs/*.parquet', ...
    """
    with as_files("inspect", input, {"zones": zones, **options}) as (given, tables):
        printed = run("inspect", given)
    names = {file: {"input": "logs"}.get(name, name) for name, file in tables.items()}
    drawn = f" --basemap {tables.get('zones', '')} "  # only a file can be drawn, not a table
    for line in printed.splitlines():
        if line.startswith(_COMMAND):
            line = line.replace(drawn, " ")
            line = f"    sfumato.{_as_call(line.removeprefix(_COMMAND), names)}"
        line = _FORM.sub(r"\1='\2'", _CELL.sub(r"\1  ", line))
        sys.stdout.write(f"{without_dashes(line)}\n")


def _literal(option: str, value: str) -> str:
    """Returns a value of the command line as Python writes it. Names of columns are texts, whatever they are."""
    return value if _NUMBER.fullmatch(value) and not option.endswith("column") else repr(value)


def _as_call(command: str, names: Mapping[str, str]) -> str:
    """Returns a command as a call of the function. names: of the arguments, by their files."""
    job, *words = shlex.split(command)
    given = dict[str, list[str]]()
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            given[name] = [value] if equals else []
        else:
            given[list(given)[-1]].append(word)
    texts = {
        name: ", ".join(names.get(one) or _literal(name, one) for one in values) or "True"
        for name, values in given.items()
    }
    files = texts.pop("input")
    files = f"[{files}]" if len(given["input"]) > 1 else files
    return f"{job}({', '.join([files, *(f'{name}={text}' for name, text in texts.items())])})"


def changes(
    before: Release | Folder,
    after: Release | Folder,
    *,
    rate: float = 0.05,
    shares: bool = False,
    output: Folder | None = None,
    overwrite: bool = False,
) -> pd.DataFrame:
    """Finds where two heatmaps, or two counts of the same zones, differ by more than noise explains.

    It costs no privacy budget.

    Args:
        before: a release of `heatmap`, of `zones`, or of `histogram` with zones, or its folder.
        after: another, of the same region or of the same zones.
        rate: false discovery rate: the expected share of wrong ones among the changed rows, at most.
        shares: compare shares of all users, for releases of different numbers of users.
        output: folder for the table, its manifest and a page; by default nothing is written.
        overwrite: replace the changes that are there.

    Returns:
        A (Geo)DataFrame with one row for each place that both know, from single cells to the whole region, or each
        zone: `before`, `after`, `difference` and its 95% interval `low`, `high`, `q_value` and `changed`. `shown` marks
        disjoint changed places. Their interval `changed_low`, `changed_high` allows for having been selected.

    Raises:
        RequestError: the releases cannot be compared.

    Example:
        >>> maps = [sfumato.heatmap("logs/*.parquet", region=(3.00, 1.00, 3.13, 1.13), depth=6) for _ in range(2)]
        >>> table = sfumato.changes(*maps)
        >>> int(table["changed"].sum()) <= 20  # of hundreds: the same logs twice
        True
    """
    pair = [one if isinstance(one, Release) else open_release(one) for one in (before, after)]
    places = [one.path for one in pair]
    values = {"before": places[0], "after": places[1], "rate": rate, "shares": shares, "overwrite": overwrite}
    if output is not None:
        run("changes", {**values, "output": output})
        return data_frame(parquet_table(read_part(os.fspath(output), CHANGES_FILE)))
    request_of("changes", values)  # raises where the rate is out of its range
    return data_frame(compare_releases(pair[0], pair[1], rate, shares=shares).table())


def synth(output: Folder, *, users: int, records_per_user: int = 1, seed: int = 0, **options: Any) -> str:
    """Writes location logs of a synthetic city, for trials.

    Args:
        output: folder for the Parquet files, local or gs://.
        users: their number.
        records_per_user: rows of each user.
        seed: another seed gives other users of the same city.
        **options: any other option of `sfumato synth`.

    Returns:
        A pattern that matches the files, as the other functions take for `input`.

    Example:
        >>> sfumato.synth("city", users=1_000)
        'city/*.parquet'
    """
    given = {"output": output, "users": users, "records_per_user": records_per_user, "seed": seed}
    run("synth", {**given, **options})
    return f"{os.fspath(output).rstrip('/')}/*.parquet"


def client_report(
    task: Folder,
    *,
    location: Sequence[float] | None = None,
    weights: Sequence[tuple[float, float, int]] | None = None,
    answered: Folder | None = None,
) -> bytes:
    """Makes a device's report for two servers, neither of which can read it, as `sfumato client report` does.

    Args:
        task: the public JSON file of the task.
        location: longitude and latitude in degrees.
        weights: for a task with a max_value, a longitude, a latitude and a whole weight of each place.
        answered: file that the device keeps, so that it answers each task once and the rounds of a map in order.

    Returns:
        The report, of one size for all reports of the task.

    Raises:
        RequestError: the task cannot be read, is not open now or was answered before, or the location or the weights
            are not what it counts.

    Example:
        >>> report = sfumato.client_report("task.json", location=(3.05, 1.07))
        >>> len(report) == len(sfumato.client_report("task.json", location=(3.12, 1.01)))
        True
    """
    from sfumato.transforms.split.answered import device_report
    from sfumato.transforms.split.task import Task

    kept = None if answered is None else os.fspath(answered)
    return device_report(Task.read(os.fspath(task)), location, weights, kept)


@overload
def plan(
    *, users: int, epsilon: float = 1.0, depth: int = 10, method: str = "adaptive", nights: None = None, **options: Any
) -> Plan: ...


@overload
def plan(
    *, users: int, epsilon: float = 1.0, depth: int = 10, method: str = "adaptive", nights: int, **options: Any
) -> RotationPlan: ...


def plan(
    *,
    users: int,
    epsilon: float = 1.0,
    depth: int = 10,
    method: str = "adaptive",
    nights: int | None = None,
    **options: Any,
) -> Plan | RotationPlan:
    """Computes the cost of a heatmap for a client and its accuracy, from public figures only. It reads no data.

    Args:
        users: number of participants.
        epsilon: privacy budget of the complete release.
        depth: the finest grid has 2^depth x 2^depth cells.
        method: see `heatmap`.
        nights: compare the numbers of rotating cohorts for a map every night; epsilon then covers any N consecutive
            nights.
        **options: any other option of `sfumato plan`.

    Returns:
        The plan, with `noise_stddev` (users), `min_visible_users` (users), `bits` a client sends, and `sub_queries`.
        With nights a plan with `choices`, one for each number of cohorts, and the `best` of them.

    Raises:
        RequestError: an option is wrong, or no such heatmap can be made.

    Example:
        >>> plan = sfumato.plan(users=1_000_000, epsilon=1.0, depth=8)
        >>> len(plan.sub_queries) > 1, plan.noise_stddev < 200
        (True, True)
        >>> sfumato.plan(users=300_000, epsilon=1.0, nights=30).best.cohorts
        30
    """
    given = {"users": users, "epsilon": epsilon, "depth": depth, "method": method, "nights": nights, **options}
    request = request_of("plan", given)
    assert isinstance(request, PlanRequest)
    settings = request.settings()
    if len(settings) > 1:
        raise RequestError("plan: give one value for each option; `sfumato plan` compares several")
    return make_plan(settings[0]) if nights is None else make_rotation_plan(settings[0], nights)
