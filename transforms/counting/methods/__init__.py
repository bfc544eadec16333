"""The methods of making heatmaps, by name. Every job of a program takes one that the program adds to METHODS.

A method is a class with a `next_query` and a `decode`. It states which requests it takes: see `Method`.
"""

from sfumato.transforms.counting.methods.adaptive import Adaptive
from sfumato.transforms.counting.methods.base import Errors, Flat, Method
from sfumato.transforms.counting.methods.emd import Emd

METHODS: dict[str, type[Method]] = {method.NAME: method for method in (Adaptive, Flat, Emd)}

__all__ = ["METHODS", "Adaptive", "Emd", "Errors", "Flat", "Method"]
