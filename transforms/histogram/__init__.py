"""Sample and threshold (paper 004): histograms, heavy hitters, quantiles; no noise, and an exact guarantee."""
