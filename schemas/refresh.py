"""The configuration of a scheduled refresh: a YAML file with the settings that all nightly runs share."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import ADD_OR_REMOVE, NAME, Limit, ordered

_PATHS = ("input", "output", "ledger", "key_file")
_LIMIT_KEYS = ("epsilon", "delta", "days", "adjacency")


@dataclass(frozen=True)
class RefreshConfig:
    """The settings of all runs of a refresh. Relative paths are relative to the configuration file.

    Attributes:
        dataset: its name in the ledger and in release ids.
        input: a folder with a folder `dt=YYYY-MM-DD` of Parquet files for each day.
        output: folder of the releases, `latest.json` and the page.
        ledger: of the budget.
        budget: the dataset's limits.
        options: of the job, by name.
        key_file, key_secret: of the run's key; one of the two.
        job: the command.
        warm_start: whether a heatmap starts from the last release before it.
        min_users: smallest number of users, by the noisy count.
        runner_config: a file with options of Beam, or its name.
        beam: options of Beam.

    Raises:
        RequestError: the dataset's name is invalid, or not exactly one key is given.
    """

    dataset: str
    input: str
    output: str
    ledger: str
    budget: tuple[Limit, ...]
    options: Mapping[str, Any]
    key_file: str | None = None
    key_secret: str | None = None
    job: str = "heatmap"
    warm_start: bool = True
    min_users: int = 0
    runner_config: str | None = None
    beam: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.dataset):
            raise RequestError(f"dataset: letters, digits, - and _ only, got {self.dataset!r}")
        if (self.key_file is None) == (self.key_secret is None):
            raise RequestError("key_file, key_secret: give one of them; a run that crashes needs its key again")

    @classmethod
    def of(cls, settings: Any, folder: str) -> RefreshConfig:
        """Reads the content of a YAML file. folder: of the file, local or gs://. Raises RequestError."""
        if not isinstance(settings, dict):
            raise RequestError("config: must map names to values, as in `dataset: taxis`")
        names = [one.name for one in fields(cls)]
        check_known(settings, names, "config")
        missing = [one.name for one in fields(cls) if one.default is MISSING and one.default_factory is MISSING]
        for name in missing:
            if settings.get(name) is None:
                raise RequestError(f"config: {name} is missing")
        values = {name: value for name, value in settings.items() if value is not None}
        for name in ("dataset", *_PATHS, "key_secret", "job", "runner_config"):
            if name in values and not isinstance(values[name], str):
                raise RequestError(f"config: {name} must be text, got {values[name]!r}")
        for name in _PATHS:
            if name in values:
                values[name] = _resolved(values[name], folder)
        for name in ("input", "output"):
            if re.search(r"[*?\[]", values[name]):
                raise RequestError(f"config: {name} is a folder without * ? or [ in its name, got {values[name]!r}")
        if str(values.get("runner_config", "")).endswith((".yaml", ".yml")):
            values["runner_config"] = _resolved(values["runner_config"], folder)
        kinds = {"options": (dict, "a map"), "beam": (dict, "a map"), "warm_start": (bool, "true or false")}
        for name, (kind, noun) in kinds.items():
            if name in values and not isinstance(values[name], kind):
                raise RequestError(f"config: {name} must be {noun}, got {values[name]!r}")
        users = values.get("min_users", 0)
        if isinstance(users, bool) or not isinstance(users, int) or users < 0:
            raise RequestError(f"config: min_users must be a whole number, 0 or more, got {users!r}")
        return cls(**{**values, "budget": _limits(values["budget"])})


def _limits(value: Any) -> tuple[Limit, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise RequestError("config: budget must be a list of limits, as `- {epsilon: 10, days: 365}`")
    limits = []
    for one in value:
        check_known(one, _LIMIT_KEYS, "config: budget")
        if not {"epsilon", "days"} <= set(one):
            raise RequestError(f"config: a limit needs epsilon and days, got {one!r}")
        if isinstance(one["days"], bool) or not isinstance(one["days"], int):
            raise RequestError(f"config: days must be a whole number, got {one['days']!r}")
        adjacency = one.get("adjacency", ADD_OR_REMOVE)
        limits.append(Limit.from_numbers(one["epsilon"], one.get("delta", 0), one["days"], adjacency))
    return ordered(limits)


def _resolved(place: str, folder: str) -> str:
    if "://" in place and not place.startswith("gs://"):
        raise RequestError(f"config: places are files and folders, or gs://BUCKET/...; got {place!r}")
    if "://" in place or os.path.isabs(place):
        return place
    place = re.sub(r"^(\./)+", "", place)
    return f"{folder.rstrip('/')}/{place}" if "://" in folder else os.path.normpath(os.path.join(folder, place))


def check_known(found: Iterable[Any], known: Iterable[str], where: str) -> None:
    """Raises RequestError for an unknown key, with the nearest known one. where: begins the message."""
    names = list(known)
    for key in found:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(names))}"
            raise RequestError(f"{where}: unknown key {key!r}; {hint}")
