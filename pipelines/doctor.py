"""`sfumato doctor`: whether this machine, its runner, key, ledger and storage are ready for a run. Changes nothing."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PortableOptions
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sfumato.pipelines.clock import MAX_SKEW, fast_clock, newest_time, slow_clock
from sfumato.pipelines.folders import private_folder
from sfumato.pipelines.inputs import check_listable
from sfumato.pipelines.job_servers import OneJobRunner
from sfumato.pipelines.memory import available_memory
from sfumato.pipelines.published_nights import PublishedNights
from sfumato.pipelines.refresh import read_config
from sfumato.pipelines.runner_settings import flags_of, settings_of
from sfumato.schemas.errors import CheckFailedError, SfumatoError
from sfumato.schemas.refresh import RefreshConfig
from sfumato.schemas.requests.commands import DoctorRequest
from sfumato.transforms.files import is_remote
from sfumato.transforms.privacy.ledger.ledger import check_limits, open_ledger
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret
from sfumato.transforms.storage import matching

OK, WARNING, FAILED = "ok", "warning", "failed"
_SHOWN = ("apache-beam", "pyarrow", "numpy")  # versions that the line of versions names
_GB = 1e9
_MEMORY = 0.5 * _GB, 1.5 * _GB  # below: failed, warning
_DISK = 1 * _GB, 10 * _GB
_TIMEOUT_S = 10.0
_ENGINES = re.compile(r"apache_beam|beam-runners|flink|prism|spark|sfumato", re.IGNORECASE)
_LOOPBACK = re.compile(r"0100007F|.{6}7F|0{24}01000000|0{16}FFFF0000.{6}7F", re.IGNORECASE)  # as /proc/net has them


@dataclass(frozen=True)
class Check:
    """What a check found.

    Attributes:
        name: of what was checked.
        state: OK, WARNING or FAILED.
        text: what was found, and what to do.
    """

    name: str
    state: str
    text: str


@dataclass(frozen=True)
class Places:
    """What a run would use: by the options, or by a refresh's configuration. None for what is not named."""

    ledger: str | None
    key_file: str | None
    key_secret: str | None
    input: str | None
    output: str | None
    config: RefreshConfig | None = None
    config_file: str | None = None


def run(request: DoctorRequest, beam_arguments: tuple[str, ...] = ()) -> int:
    """Runs the checks and prints a line for each.

    Raises:
        CheckFailedError: a check failed. Warnings are no failures.
        RequestError: the configuration cannot be read.
    """
    places = _places(request)
    checks = list(_checks(request, places, beam_arguments))
    if request.format == "json":
        sys.stdout.write(json.dumps([asdict(check) for check in checks], indent=2) + "\n")
    else:
        width = max(len(check.name) for check in checks)
        sys.stdout.writelines(f"{check.state:<8} {check.name:<{width}}  {check.text}\n" for check in checks)
    if failed := [check.name for check in checks if check.state == FAILED]:
        raise CheckFailedError(f"{len(failed)} of {len(checks)} checks failed: {', '.join(dict.fromkeys(failed))}")
    return 0


def _places(request: DoctorRequest) -> Places:
    if request.config is None:
        return Places(request.ledger, request.key_file, request.key_secret, None, request.output)
    config = read_config(request.config)
    return Places(
        config.ledger, config.key_file, config.key_secret, config.input, config.output, config, request.config
    )


def _checks(request: DoctorRequest, places: Places, beam_arguments: tuple[str, ...]) -> Iterator[Check]:
    yield from _guarded("versions", check_versions)
    yield from _guarded("runner", lambda: check_runner(request, places.config, beam_arguments))
    yield check_memory()
    yield from _guarded("temporary folder", check_temporary_folder)
    if places.key_file is not None or places.key_secret is not None:
        yield from _guarded("key", lambda: check_key(places.key_file, places.key_secret))
    if places.ledger is not None:
        ledger = places.ledger
        yield from _guarded("ledger", lambda: check_ledger(ledger, places))
    yield from _guarded("clock", lambda: check_clock(places))
    yield check_ports()
    for name, place in (("input", places.input), ("output", places.output)):
        if place is not None:
            yield from _guarded(name, lambda name=name, place=place: check_storage(name, place))  # type: ignore[misc]


def _guarded(name: str, check: Callable[[], Check]) -> Iterator[Check]:
    """The check's result; its error as a failure."""
    try:
        yield check()
    except (SfumatoError, OSError) as error:
        yield Check(name, FAILED, " ".join(str(error).split()))


def check_versions() -> Check:
    """Whether the installed packages are those that sfumato needs."""
    try:
        python = metadata.metadata("sfumato")["Requires-Python"] or ""
        needed = [Requirement(text) for text in metadata.requires("sfumato") or []]
    except metadata.PackageNotFoundError:
        return Check("versions", FAILED, "sfumato is not installed; run: pip install . in its folder")
    wrong = []
    if not SpecifierSet(python).contains(platform.python_version()):
        wrong.append(f"Python {platform.python_version()} (needs {python})")
    for one in needed:
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            found = "none"
        if found == "none" or not one.specifier.contains(found, prereleases=True):
            wrong.append(f"{one.name} {found} (needs {one.specifier})")
    if wrong:
        return Check("versions", FAILED, f"{', '.join(wrong)}; install sfumato again: pip install . in its folder")
    shown = [f"sfumato {metadata.version('sfumato')}", f"Python {platform.python_version()}"]
    return Check("versions", OK, ", ".join([*shown, *(f"{name} {metadata.version(name)}" for name in _SHOWN)]))


def check_runner(request: DoctorRequest, config: RefreshConfig | None, beam_arguments: tuple[str, ...]) -> Check:
    """Whether a job could start on the runner: its options, its programs, and the server that it names.

    The checks are those with which each job begins.
    """
    named = request.runner_config
    if config is not None:
        named = named or config.runner_config
        beam_arguments = (*flags_of(config.beam), *beam_arguments)
    settings = settings_of(request.model_copy(update={"runner_config": named}), beam_arguments)
    settings.pipeline()
    text = f"{named or 'direct'} ({type(settings.runner).__name__})"
    if endpoint := settings.options.view_as(PortableOptions).job_endpoint:
        text += f", job server {endpoint} answers"
    elif (
        isinstance(settings.runner, OneJobRunner)
        and not settings.options.get_all_options()[settings.runner.engine.option]
    ):
        target = settings.runner.engine.target
        text += f", whose job server Beam downloads when a job starts; `make {target}` makes one"
    return Check("runner", OK, text)


def check_memory() -> Check:
    """Whether enough memory is left, on the machine and in its control groups."""
    left = available_memory()
    if not left:
        return Check("memory", WARNING, "unknown: nothing here says how much there is; give --memory")
    text = f"{left / _GB:.1f} GB for a run, by the machine and its control groups"
    return _level("memory", left, _MEMORY, text, "end other programs, or raise the container's limit")


def check_temporary_folder() -> Check:
    """Whether a private folder can be made, and the space for it."""
    named, found = os.environ.get("TMPDIR"), tempfile.gettempdir()
    if named and not os.path.samefile(found, named if os.path.isdir(named) else "/"):
        return Check("temporary folder", FAILED, f"TMPDIR={named} cannot be written to; {found} would be used")
    with private_folder():
        free = shutil.disk_usage(found).free
    text = f"{found}, {free / _GB:.1f} GB free"
    return _level("temporary folder", free, _DISK, text, "free some space, or name another folder by TMPDIR")


def _level(name: str, value: float, levels: tuple[float, float], text: str, remedy: str) -> Check:
    """A check of a number. levels: below the first it fails, below the second it warns."""
    state = FAILED if value < levels[0] else WARNING if value < levels[1] else OK
    advice = "" if state == OK else f", less than {levels[state == WARNING] / _GB:g}; {remedy}"
    return Check(name, state, f"{text}{advice}")


def check_key(key_file: str | None, key_secret: str | None) -> Check:
    """Whether the key can be read, by its owner alone, and is not weak. Nothing of it is shown."""
    if key_file is not None:
        secret = FileSecret(key_file)
        secret.check_private()
        secret.read()
        return Check("key", OK, f"{key_file}: can be read" + ("" if is_remote(key_file) else ", by its owner alone"))
    SecretManagerSecret(str(key_secret)).read()
    return Check("key", OK, f"{key_secret} can be read")


def check_ledger(location: str, places: Places) -> Check:
    """Whether the ledger is in order, can be written to, and has the configuration's limits and releases."""
    config = places.config
    ledger = open_ledger(location)
    history = ledger.history(with_limits=True)
    ledger.check_writable()
    if places.config is not None:
        PublishedNights.read(places.config, str(places.config_file)).check()
    if not history.entries:
        return Check("ledger", WARNING, f"there is none at {location}; the first charge begins one")
    if config is not None:
        check_limits(history, config.dataset, config.budget)
    writable = "a charge shows whether it may be written to" if is_remote(location) else "can be written to"
    return Check("ledger", OK, f"{location}: {history.entries} entries, unbroken; {writable}")


def check_clock(places: Places) -> Check:
    """Whether the clock agrees with the ledger's newest entry, and with the storage's."""
    now, compared = datetime.now(UTC), []
    history = None if places.ledger is None else open_ledger(places.ledger).history()
    if history is not None and newest_time(history) is not None:
        compared.append("the ledger")
        if (problem := slow_clock(history)) is not None:
            return Check("clock", FAILED, problem)
    if any(place is not None and place.startswith("gs://") for place in (places.ledger, places.input, places.output)):
        began = time.monotonic()
        served = _storage_time()
        if served is None:
            return Check("clock", WARNING, "the storage's time cannot be read now")
        skew = abs((served - datetime.now(UTC)).total_seconds()) - (time.monotonic() - began)
        compared.append("the storage")
        if skew > MAX_SKEW.total_seconds():
            return Check("clock", FAILED, f"it differs from the storage's by {skew:.0f} s; set the clock")
    if history is not None and (doubt := fast_clock(history)) is not None:
        return Check("clock", WARNING, doubt)
    return Check("clock", OK, f"{now:%F %T} UTC" + (f", in order with {' and '.join(compared)}" if compared else ""))


def _storage_time() -> datetime | None:
    """The time that Google's storage, or its emulator, states; None if it cannot be reached."""
    address = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as response:
            date = response.headers["Date"]
    except urllib.error.HTTPError as error:  # a refusal has a date too
        date = error.headers["Date"]
    except (OSError, ValueError):
        return None
    return None if date is None else parsedate_to_datetime(date).astimezone(UTC)


def check_ports() -> Check:
    """Whether a server of Beam's, Flink's, Spark's or ours listens where other machines reach it."""
    open_servers = [f"{program} (process {process}) on port {port}" for port, process, program in _listening()]
    if open_servers:
        text = f"other machines may reach {', '.join(open_servers)}, and run code there; end it, or close the port"
        return Check("ports", FAILED, text)
    return Check("ports", OK, "no server of an engine listens outside of loopback")


def _listening() -> Iterator[tuple[int, int, str]]:
    """Port, process and program of each engine of this user that listens outside of loopback, by Linux's /proc."""
    ports = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, user, _, inode, *_ = line.split()
            address, _, port = local.partition(":")
            if state == "0A" and int(user) == os.getuid() and not _LOOPBACK.fullmatch(address):
                ports[f"socket:[{inode}]"] = int(port, 16)
    for folder in Path("/proc").glob("[0-9]*") if ports else ():
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            sockets = {os.readlink(file) for file in (folder / "fd").iterdir()} & ports.keys()
        except OSError:  # it ended, or is another user's
            continue
        if sockets and _ENGINES.search(" ".join(words)):
            for one in sorted(sockets):
                yield ports[one], int(folder.name), os.path.basename(words[0])


def check_storage(name: str, place: str) -> Check:
    """Whether a folder can be listed, and a local output can be written to."""
    if is_remote(place):
        matching(FileSystems.join(place, "*"), 1)
        return Check(name, OK, f"{place} can be listed")
    if name == "input":
        if not os.path.isdir(place):
            return Check(name, FAILED, f"there is no folder {place}")
        days = sorted(one for one in os.listdir(place) if one.startswith("dt="))
        for day in days:  # those of earlier days without the folders in them, which may be very many
            check_listable(os.path.join(place, day), deep=day == days[-1])
        return Check(name, OK, f"{place} can be read")
    folder = next(folder for folder in (Path(place).absolute(), *Path(place).absolute().parents) if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Check(name, FAILED, f"{folder} cannot be written to by this user")
    return Check(name, OK, f"{place} can be written to")
