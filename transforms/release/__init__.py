"""Releases: tables, pictures and pages made of finished statistics, published whole or not at all, and read back."""

from sfumato.transforms.release.store import Release, open_release

__all__ = ["Release", "open_release"]
