"""Evaluation: metrics, reference levels, comparisons. It reads exact data, so no release may use any of it."""
