"""Private heatmaps: sub-queries over a quadtree, their schedule, and the estimate from their noisy counts."""
