"""Sums of values by a trusted curator, with noise added once."""
