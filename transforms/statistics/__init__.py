"""Statistics that several rooms share: bisection, shrinkage of many estimates, least squares on a tree."""
