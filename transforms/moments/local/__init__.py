"""Bit pushing (paper 002): each user reports one bit of their value, by randomised response."""
