"""The releases that stand in a folder of nightly ones, `releases/<date>/`, and whether the ledger knows them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from apache_beam.io.filesystems import FileSystems

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import amount
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.transforms.files import matching
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.release.store import Release, open_release

RELEASES = "releases"
_NIGHT = re.compile(r"\d{4}-\d{2}-\d{2}")


def published_dates(root: str) -> list[str]:
    """The dates, as YYYY-MM-DD and in order, of which a release stands in a folder of releases.

    Raises NotReadyError or RequestError where the folder cannot be listed, now or at all.
    """
    found = matching(FileSystems.join(root, RELEASES, "*", MANIFEST_FILE))
    names = sorted(one.path.split("/")[-2] for one in found)
    return [name for name in names if _NIGHT.fullmatch(name)]


def published_releases(root: str) -> dict[str, Release]:
    """The published releases by date, in order. What is no release, or is being replaced just now, is left out.

    Raises NotReadyError or RequestError where the folder cannot be listed, now or at all.
    """
    dates = published_dates(root)

    def opened(date: str) -> Release | None:
        try:
            return open_release(FileSystems.join(root, RELEASES, date))
        except RequestError:
            return None

    with ThreadPoolExecutor(16) as pool:
        return {date: one for date, one in zip(dates, pool.map(opened, dates), strict=True) if one is not None}


def disagreement(release: Release, history: History) -> str | None:
    """What a published release and the ledger disagree on; None where they agree.

    The ledger must have been read after the release: it was charged before it was published.
    """
    release_id = str(release.manifest.get("release_id"))
    reservation = history.reservations.get(release_id)
    if reservation is None:
        return f"release {release_id} was never charged"
    stated = release.manifest.get("ledger")
    if not (isinstance(stated, dict) and stated.get("hash") == reservation.hash):
        return f"release {release_id} names another entry than the ledger's; one of the two was rewritten"
    if reservation.manifest not in (None, release.digest):
        return f"release {release_id} has been changed since it was published"
    privacy = release.manifest["privacy"]
    # Of bit pushing whoever collects the reports may learn more than readers do: the larger is charged.
    collector = privacy.get("collector") or {"epsilon": 0}
    epsilon = max(amount("epsilon", privacy["epsilon"]), amount("epsilon", collector["epsilon"]))
    cost = epsilon, amount("delta", privacy.get("delta", 0))
    if cost != (reservation.charge.epsilon, reservation.charge.delta):
        return f"release {release_id} states another cost than it was charged"
    return None
