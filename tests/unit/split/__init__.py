"""Prio3 with two aggregators: field, proofs, shares and encryption."""
