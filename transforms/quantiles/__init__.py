"""Quantiles of a number by a trusted curator: the exponential mechanism, and a hierarchy of noisy counts."""
