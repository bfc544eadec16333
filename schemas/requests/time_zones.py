"""Names of time zones, as the IANA database has them."""

from __future__ import annotations

import zoneinfo

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.request_base import did_you_mean

UTC = "UTC"


def check_time_zone(option: str, name: str) -> str:
    """Returns the name of a zone. Raises RequestError, which names the option, if there is no such zone."""
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        hint = did_you_mean(name, sorted(zoneinfo.available_timezones()))
        raise RequestError(f"{option}: no time zone is named {name!r}{hint}; give a name such as Asia/Tokyo") from None
    return name
