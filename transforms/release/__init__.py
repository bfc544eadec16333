"""Releases: tables, pictures and pages made of finished statistics, published whole or not at all, and read back.

`from sfumato.transforms.release import open_release` opens one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.transforms.release.published_release import Release, open_release

__all__ = ["Release", "open_release"]


def __getattr__(name: str) -> Any:
    # The page and the picture import this package, and need no tables.
    if name in __all__:
        from sfumato.transforms.release import published_release

        return getattr(published_release, name)
    raise AttributeError(name)
