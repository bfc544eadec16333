"""Bit pushing (paper 002): means and moments of a number, of which each client reports one bit."""
