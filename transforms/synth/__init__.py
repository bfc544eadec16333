"""Synthetic location logs of any size: a city, its people, and the Beam transform that writes them."""
