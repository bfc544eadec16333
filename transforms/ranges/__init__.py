"""Range queries: how many people are in any square, from one private release (paper 003).

`from sfumato.transforms.ranges import open_model` opens a released model.
"""

from sfumato.transforms.ranges.opening import open_model

__all__ = ["open_model"]
