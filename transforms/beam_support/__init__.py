"""What Beam lacks: caches for building graphs, and fixes of two bugs. The import of this package installs them."""

from sfumato.transforms.beam_support import beam_caches, beam_patch

__all__ = ["beam_caches", "beam_patch"]
