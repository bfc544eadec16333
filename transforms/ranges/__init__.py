"""Range queries: how many people are in any square, from one private release (paper 003)."""
