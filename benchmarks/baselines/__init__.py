"""Mechanisms of other papers for the same task. Only the benchmarks use them."""
