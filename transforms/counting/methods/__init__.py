"""The methods of making heatmaps, by name. One that a program adds to METHODS is taken by every job of that program.

A method is a class with a `next_query` and a `decode`. What is asked of it elsewhere, it says itself: see `Method`.
"""

from sfumato.transforms.counting.methods.adaptive import Adaptive
from sfumato.transforms.counting.methods.base import Errors, Flat, Method
from sfumato.transforms.counting.methods.emd import Emd

METHODS: dict[str, type[Method]] = {method.NAME: method for method in (Adaptive, Flat, Emd)}

__all__ = ["METHODS", "Adaptive", "Emd", "Errors", "Flat", "Method"]
