"""Range queries: how many users are in any square, answered from one private release (paper 003)."""

from sfumato.transforms.ranges.model_file import open_model

__all__ = ["open_model"]
