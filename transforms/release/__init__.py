"""Releases: tables, pictures and pages made of finished statistics, published whole or not at all, and read back.

`from sfumato.transforms.release import open_release` opens one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.transforms.release.release_folder import Release, open_release

__all__ = ["Release", "open_release"]


def __getattr__(name: str) -> Any:
    # The store needs Beam's file systems; the page and the picture, which are pure, must not pull Beam in.
    if name in __all__:
        from sfumato.transforms.release import release_folder

        return getattr(release_folder, name)
    raise AttributeError(name)
