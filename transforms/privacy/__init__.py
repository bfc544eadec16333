"""Noise, keyed randomness and budgets: everything that the guarantee is based on."""
