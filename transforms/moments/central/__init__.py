"""Sums of values by a trusted curator, with noise added once.

plan              statistics and their privacy, with the error from public figures: `CentralMomentsPlan`
bernstein_sums    exact sums of polynomials over a range, and the choice of the range
central_moments   noisy sums: `CentralSums`, and the estimates from them
transform         `SumMoments`: from paths of logs to noisy sums
release           those sums -> the files of a release
view              what the page of moments states of them
"""
