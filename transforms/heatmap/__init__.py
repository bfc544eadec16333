"""Adaptive heatmaps: a quadtree refined over sub-queries, and what is estimated from its last answers."""
