"""Noise, keyed randomness and budgets: everything that the guarantee rests on."""
