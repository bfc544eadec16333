"""`sfumato doctor`: whether a run could start here. It makes the checks of a run in advance, and changes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sfumato.pipelines.operations.published_nights import PublishedNights, clock_problem
from sfumato.pipelines.operations.refresh_config import read_config
from sfumato.pipelines.runners.folders import private_folder
from sfumato.pipelines.runners.runner_settings import flags_of, settings_of
from sfumato.schemas.errors import CheckFailedError, SfumatoError
from sfumato.schemas.refresh import RefreshConfig
from sfumato.schemas.requests.commands import DoctorRequest
from sfumato.transforms.privacy.ledger.charge_rules import check_limits
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret

OK, WARNING, FAILED = "ok", "warning", "failed"
_DISK_GB = 10  # for users' records that do not fit into memory
_ENGINES = re.compile(r"apache_beam|beam-runners|flink|prism|spark|sfumato", re.IGNORECASE)
_LOOPBACK = re.compile(r"0100007F|.{6}7F|0{24}01000000|0{16}FFFF0000.{6}7F", re.IGNORECASE)  # as /proc/net has them
_Found = tuple[str, str]  # state of a check; what was found, and what to do


def run(request: DoctorRequest, beam_arguments: tuple[str, ...] = ()) -> None:
    """Runs the checks and prints a line for each.

    Raises:
        CheckFailedError: a check failed. Warnings are no failures.
        RequestError: the configuration cannot be read.
    """
    config = None if request.config is None else read_config(request.config)
    found = _found(request, config, beam_arguments)
    if request.format == "json":
        checks = [{"name": name, "state": state, "text": text} for name, (state, text) in found.items()]
        sys.stdout.write(json.dumps(checks, indent=2) + "\n")
    else:
        width = max(map(len, found))
        sys.stdout.writelines(f"{state:<8} {name:<{width}}  {text}\n" for name, (state, text) in found.items())
    if failed := [name for name, (state, _) in found.items() if state == FAILED]:
        raise CheckFailedError(f"{len(failed)} of {len(found)} checks failed: {', '.join(failed)}")


def _found(request: DoctorRequest, config: RefreshConfig | None, beam_arguments: tuple[str, ...]) -> dict[str, _Found]:
    """Returns the result of each check by name. An error in a check is a failure."""
    key_file, key_secret, ledger = (getattr(config or request, name) for name in ("key_file", "key_secret", "ledger"))
    checks: dict[str, Callable[[], _Found]] = {
        "runner": lambda: check_runner(request, config, beam_arguments),
        "temporary folder": check_temporary_folder,
    }
    if key_file is not None or key_secret is not None:
        checks["key"] = lambda: check_key(key_file, key_secret)
    if ledger is not None:
        checks["ledger"] = lambda: check_ledger(ledger, config, str(request.config))
        checks["clock"] = lambda: check_clock(ledger)
    checks["ports"] = check_ports
    found: dict[str, _Found] = {}
    for name, check in checks.items():
        try:
            found[name] = check()
        except (SfumatoError, OSError) as error:
            found[name] = FAILED, " ".join(str(error).split())
    return found


def check_runner(request: DoctorRequest, config: RefreshConfig | None, beam_arguments: tuple[str, ...]) -> _Found:
    """Checks what each job checks first: the runner's options, its programs, and the server that it names."""
    named = request.runner_config
    if config is not None:
        named = named or config.runner_config
        beam_arguments = (*flags_of(config.beam), *beam_arguments)
    settings = settings_of(request.model_copy(update={"runner_config": named}), beam_arguments)
    settings.pipeline()
    return OK, f"{named or 'direct'} ({type(settings.runner).__name__})"


def check_temporary_folder() -> _Found:
    """Checks whether a private folder can be made, and the space for it."""
    with private_folder():
        free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    text = f"{tempfile.gettempdir()}, {free:.1f} GB free"
    if free < _DISK_GB:
        return WARNING, f"{text}, less than {_DISK_GB}; free some space, or set TMPDIR to another folder"
    return OK, text


def check_key(key_file: str | None, key_secret: str | None) -> _Found:
    """Checks whether the key can be read, by its owner only, and is not weak. Nothing of it is shown."""
    if key_file is not None:
        FileSecret(key_file).check()
    else:
        SecretManagerSecret(str(key_secret)).read()
    return OK, f"{key_file or key_secret} can be read"


def check_ledger(location: str, config: RefreshConfig | None, config_file: str) -> _Found:
    """Checks whether the ledger is in order, and has the configuration's limits and releases."""
    ledger = open_ledger(location)
    history = ledger.history(with_limits=True)
    ledger.check_writable()
    if config is not None:
        PublishedNights.read(config, config_file).check()
    if not history.entries:
        return WARNING, f"not found: {location}; the first charge creates it"
    if config is not None:
        check_limits(history, config.dataset, config.budget)
    return OK, f"{location}: {history.entries} entries, unbroken"


def check_clock(ledger: str) -> _Found:
    """Checks whether the clock agrees with the ledger's newest entry."""
    found = clock_problem(open_ledger(ledger).history())
    if found is None:
        return OK, "agrees with the ledger"
    problem, is_certain = found
    return FAILED if is_certain else WARNING, problem


def check_ports() -> _Found:
    """Checks whether a server of Beam's, Flink's, Spark's or ours listens where other machines reach it."""
    servers = [f"{program} (process {process}) on port {port}" for port, process, program in _listening()]
    if servers:
        return FAILED, f"other machines can reach {', '.join(servers)} and run code there; stop it, or close the port"
    return OK, "no engine server listens outside of loopback"


def _listening() -> Iterator[tuple[int, int, str]]:
    """Yields (port, process, program) of this user's engines that listen outside of loopback, from /proc."""
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
            yield from ((ports[one], int(folder.name), os.path.basename(words[0])) for one in sorted(sockets))
